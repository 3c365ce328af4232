import re

import numpy as np
import pytest

import oracles.cutoffs
from rails_ray.cutoffs.calibration import Calibration, Positives
from rails_ray.cutoffs.measuring import LEVELS, drift, left_out, measure, segment_name
from support.calibrations import BETA, drawn


@pytest.mark.parametrize("num_queries", [100, 25])  # at .9, 25 are too few for segments
@pytest.mark.parametrize("is_tied", [False, True])
def test_coverage_equals_the_definition(num_queries: int, is_tied: bool) -> None:
    before, new = drawn(num_queries, 0), drawn(40, 1)
    if is_tied:
        before, new = (Positives(of.query, of.share, np.ceil(20 * of.temperature) / 20) for of in (before, new))
    calibration = Calibration(before, BETA)
    shares = [before.share[before.query == query].tolist() for query in range(before.num_queries)]
    found = measure(calibration, new, levels=(0.5, 0.9))
    assert {one.segment for one in found} == {None, 0, 1, 2}
    v = {
        (level, tau): oracles.cutoffs.calibrated_share(shares, before.temperature.tolist(), tau, 3, level)
        for level in {one.nominal for one in found}
        for tau in new.temperature.tolist()
    }
    for one in found:
        asked = [
            (new.share[new.query == query].tolist(), v[one.nominal, tau])
            for query, tau in enumerate(new.temperature.tolist())
            if one.segment in (None, sum(edge < tau for edge in calibration.segments.edges))
        ]
        assert one.num_queries == len(asked)
        assert one.coverage == pytest.approx(oracles.cutoffs.coverage(asked))
        assert one.low <= one.coverage <= one.high
        assert one.low_both <= one.high_both


def test_levels_for_which_queries_are_too_few_are_left_out() -> None:
    calibration = Calibration(drawn(90, 0), BETA)
    assert {one.nominal for one in measure(calibration, drawn(50, 1))} == {0.5, 0.8, 0.9, 0.95}
    (told,) = left_out(calibration)
    assert told.startswith("coverage 0.99 needs at least 99 calibration queries, got 90: ")


def test_nothing_to_measure_on() -> None:
    nothing = Positives.of(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), BETA)
    assert measure(Calibration(drawn(120, 0), BETA), nothing) == []


def test_the_nominal_lies_in_the_interval_as_often_as_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """95 of 100 times, if calibration queries and those that measure are alike; the interval of the latter alone is
    narrower than chance. Of fewer draws an interval is less certain, but no narrower."""
    monkeypatch.setattr("rails_ray.cutoffs.measuring.NUM_RESAMPLES", 200)
    hits, narrow, total = 0, 0, 0
    for seed in range(40):
        for one in measure(Calibration(drawn(600, seed), BETA), drawn(600, 500 + seed), levels=(0.8, 0.9)):
            hits += one.is_as_promised
            narrow += one.low <= one.nominal <= one.high
            total += 1
    assert hits / total > 0.9
    assert narrow < hits


def test_queries_alike_are_no_drift() -> None:
    assert drift(measure(Calibration(drawn(600, 0), BETA), drawn(600, 2))) is None
    assert drift([]) is None


def test_what_a_measurement_is_about_has_a_name() -> None:
    names = [segment_name(number, [0.01, 0.2]) for number in (None, 0, 1, 2)]
    assert names == ["all queries", "tau_q up to 0.01", "tau_q above 0.01, up to 0.2", "tau_q above 0.2"]


def test_drift_is_seen() -> None:
    """Queries whose positives score lower than those that calibrated."""
    new = drawn(600, 1)
    lower = Positives(new.query, new.share**2, new.temperature)
    found = [one for one in measure(Calibration(drawn(600, 0), BETA), lower) if one.segment is None]
    assert [one.nominal for one in found] == list(LEVELS)
    assert not any(one.is_as_promised for one in found)
    told = drift(found)
    assert told is not None
    assert re.fullmatch(
        r"coverage 0\.\d+ must keep that share of the relevant items, got 0\.\d{4} \(0\.\d{4} to 0\.\d{4}\) on "
        "600 queries: calibrate on newer queries with `rails-ray calibrate`",
        told,
    )
    assert all(one.high_both < one.nominal for one in found)
