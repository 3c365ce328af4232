import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rails_ray.training.evaluation.gates import Gates, churn_objection, objection
from rails_ray.training.evaluation.report import HIT_RATES, Report

RATES = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


def report(hit_rate: float, k: int = 10) -> Report:
    """One whose hit rate@k alone says something: a gate that looked elsewhere would see nothing."""
    hit_rates = dict.fromkeys(HIT_RATES, math.nan) | {k: hit_rate}
    return Report("test", 7, 60, hit_rates, mrr=math.nan, cutoff_mass=None, lists=None)


@given(RATES, st.none() | RATES, RATES, st.none() | RATES, st.sampled_from(HIT_RATES))
@example(0.5, 0.6, 0.0, 0.1, 10)  # 0.6 - 0.1 is 0.5 exactly: what is allowed passes
def test_a_version_passes_where_it_reaches_the_floor_and_has_not_dropped_too_far(
    hit_rate: float, current: float | None, min_hit_rate: float, max_drop: float | None, k: int
) -> None:
    gates = Gates(k=k, min_hit_rate=min_hit_rate, max_drop=max_drop)
    reason = objection(gates, report(hit_rate, k), None if current is None else report(current, k))
    reaches_floor = hit_rate >= min_hit_rate
    has_not_dropped = current is None or max_drop is None or hit_rate >= current - max_drop
    assert (reason is None) == (reaches_floor and has_not_dropped)


@pytest.mark.parametrize(
    ("gates", "hit_rate", "current", "message"),
    [
        (
            Gates(min_hit_rate=0.9),
            0.8,
            None,
            "hit rate@10 must be at least 0.9000 (min_hit_rate), got 0.8000",
        ),
        (
            Gates(),
            0.88,
            0.9,
            "hit rate@10 must be at least 0.8900 (the current version's 0.9000 less max_drop 0.01), got 0.8800",
        ),
        (
            Gates(min_hit_rate=0.95),
            0.93,
            0.9,
            "hit rate@10 must be at least 0.9500 (min_hit_rate), got 0.9300",
        ),
        (
            Gates(min_hit_rate=0.5, max_drop=0.25),
            0.6,
            1.0,
            "hit rate@10 must be at least 0.7500 (the current version's 1.0000 less max_drop 0.25), got 0.6000",
        ),
        (
            Gates(k=1, max_drop=0.0),
            0.25,
            0.5,
            "hit rate@1 must be at least 0.5000 (the current version's 0.5000 less max_drop 0), got 0.2500",
        ),
        (
            Gates(min_hit_rate=0.1),
            math.nan,
            None,
            "hit rate@10 must be at least 0.1000 (min_hit_rate), got nan",
        ),
    ],
)
def test_an_objection_says_which_gate_and_by_how_much(
    gates: Gates, hit_rate: float, current: float | None, message: str
) -> None:
    former = None if current is None else report(current, gates.k)
    assert objection(gates, report(hit_rate, gates.k), former) == message


def test_by_default_a_version_must_not_be_worse_than_the_current_one() -> None:
    assert objection(Gates(), report(0.0), None) is None
    assert objection(Gates(), report(0.895), report(0.9)) is None
    assert objection(Gates(), report(0.8), report(0.9)) is not None
    assert objection(Gates(max_drop=None), report(0.0), report(1.0)) is None


@pytest.mark.parametrize(
    ("churn", "reason", "message"),
    [
        (0.2, None, None),
        (0.0, None, None),
        (0.2001, None, "churn@10 must be at most 0.2, got 0.2001"),
        (None, "no data", "churn@10 must be at most 0.2, got none, as it could not be measured: no data"),
    ],
)
def test_churn_up_to_the_gate_passes_and_unknown_churn_does_not(
    churn: float | None, reason: str | None, message: str | None
) -> None:
    assert churn_objection(0.2, 10, churn, reason) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 5}, "k must be one of 1, 10, 50, 200, got 5"),
        ({"k": 0}, "k must be one of 1, 10, 50, 200, got 0"),
        ({"min_hit_rate": -0.1}, r"min_hit_rate must be from 0 to 1, got -0\.1"),
        ({"min_hit_rate": 90.0}, "min_hit_rate must be from 0 to 1, got 90"),
        ({"min_hit_rate": math.nan}, "min_hit_rate must be from 0 to 1, got nan"),
        ({"max_drop": 1.5}, r"max_drop must be from 0 to 1, got 1\.5"),
        ({"max_drop": -0.01}, r"max_drop must be from 0 to 1, got -0\.01"),
        ({"max_churn": 2.0}, "max_churn must be from 0 to 1, got 2"),
        ({"max_churn": math.nan}, "max_churn must be from 0 to 1, got nan"),
    ],
)
def test_gates_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Gates(**arguments)
