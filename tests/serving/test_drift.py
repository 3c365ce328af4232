"""Drift: live queries beside those that calibrated."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rails_ray.serving.drift import EVERY, WINDOW, Distance, Drift

CALIBRATED = np.random.default_rng(0).uniform(0.02, 0.3, 500)


def slow_distance(live: list[float], calibrated: list[float]) -> float:
    """max_t |F(t) - G(t)|, at each t where one of them steps."""

    def share(values: list[float], t: float) -> float:
        return sum(value <= t for value in values) / len(values)

    return max(abs(share(live, t) - share(calibrated, t)) for t in [*live, *calibrated])


def test_the_distance_is_that_of_the_newest_queries() -> None:
    told = list[Distance]()
    drift = Drift(CALIBRATED, told.append)
    live = np.random.default_rng(1).uniform(0.1, 0.4, WINDOW + EVERY).tolist()
    for temperature in live:
        drift.seen(temperature)
    assert [one.num_queries for one in told] == [*range(EVERY, WINDOW + 1, EVERY), WINDOW]
    assert told[0].distance == pytest.approx(slow_distance(live[:EVERY], CALIBRATED.tolist()))
    assert drift.found == told[-1]
    assert drift.found.distance == pytest.approx(slow_distance(live[EVERY:], CALIBRATED.tolist()))
    assert drift.found.p == pytest.approx(0, abs=1e-6)


def test_answers_of_several_threads_are_all_noted() -> None:
    told = list[Distance]()
    drift = Drift(CALIBRATED, told.append)

    def note(seed: int) -> None:
        for temperature in np.random.default_rng(seed).uniform(0.02, 0.3, 20 * EVERY).tolist():
            drift.seen(temperature)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(note, range(8)))
    assert len(told) == 8 * 20
    assert drift.found.num_queries == WINDOW


def test_queries_like_those_that_calibrated_are_rarely_far() -> None:
    random = np.random.default_rng(2)
    values = []
    for _ in range(200):
        drift = Drift(random.uniform(0.02, 0.3, 300))
        for temperature in random.uniform(0.02, 0.3, EVERY).tolist():
            drift.seen(temperature)
        values.append(drift.found.p)
    assert 0.01 < np.mean(np.array(values) < 0.1) < 0.2


@pytest.mark.parametrize(("calibrated", "temperature"), [(None, 0.1), (CALIBRATED, None)])
def test_without_a_calibration_or_a_trained_temperature_nothing_is_compared(
    calibrated: np.ndarray | None, temperature: float | None
) -> None:
    drift = Drift(calibrated)
    for _ in range(2 * EVERY):
        drift.seen(temperature)
    assert drift.found.to_dict() == {"num_queries": 0, "distance": None, "p": None}
