"""Deadlines of searches within a budget, by a clock of the test's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import LateError, UnavailableError
from rails_ray.reranking.rankers.calling import answers_of
from rails_ray.schema.requests import BudgetInput
from rails_ray.search.rounds import AskShards
from rails_ray.serving.deadlines import Deadline
from support.budgets import Clock, opened
from support.ranked import by_pairs
from support.rounds import answered_by

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@pytest.mark.parametrize(("deadline_ms", "limit_ms"), [(None, 25), (60, 25), (15, 15)])
def test_a_deployments_deadline_holds_for_a_request_without_an_earlier_one(
    dot_products: Path, deadline_ms: float | None, limit_ms: float
) -> None:
    version, ranker = Clock().opened(dot_products)
    version.engine.limits = replace(version.engine.limits, deadline_s=0.025)
    budget = {"calls": 60, "rounds": 6, "deadline_ms": deadline_ms}
    [result] = version.search(["red hat"], k=20, budget=budget).results
    [plain] = version.search(["red hat"], k=20).results
    assert len(ranker.calls) == limit_ms // 10 + 1  # the last one is late
    assert result.budget is not None
    assert result.budget.reason == f"the deadline of {limit_ms} ms came first"
    assert result.budget.is_reranked == (limit_ms == 25)
    assert (result.items == plain.items) == (limit_ms == 15)


def test_a_search_of_a_later_round_has_no_more_time_than_the_deadline(
    dot_products: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, within_s = Clock(), list[float | None]()

    def answers(step: Any) -> list[Any]:
        if not isinstance(step, AskShards):
            clock.now += 0.010
            return answers_of(by_pairs, step.calls, step.within_s, clock)
        within_s.append(step.within_s)
        if len(within_s) == 1:
            return [getattr(shard, step.method)(*step.arguments) for shard in version.shards]
        clock.now += 1
        return [TimeoutError() for _ in version.shards]

    version, _ = clock.opened(dot_products)
    monkeypatch.setattr(version, "carry_out", answered_by(answers))
    budget = {"calls": 40, "rounds": 4, "deadline_ms": 25}
    [result] = version.search(["red hat"], k=5, budget=budget).results
    assert within_s == [None, pytest.approx(0.015)]
    assert result.budget is not None
    assert result.budget.model_dump() == {
        "calls_used": 10,
        "is_reranked": True,
        "reason": "the deadline of 25 ms came first",
    }


@pytest.mark.parametrize(
    ("deadline_ms", "is_reranked"), [(25, True), (15, False)], ids=["after reranking", "before reranking"]
)
def test_a_deadline_leaves_the_order_of_the_index(
    root: Path, monkeypatch: pytest.MonkeyPatch, deadline_ms: float, is_reranked: bool
) -> None:
    clock = Clock()
    version, _ = clock.opened(root)
    expected = opened(root)[0].search(["red hat"], k=5).results[0]
    monkeypatch.setattr("rails_ray.reranking.rankers.calling.time.monotonic", clock)
    [result] = version.search(["red hat"], k=5, budget={"calls": 30, "deadline_ms": deadline_ms}).results
    assert result.budget is not None
    assert result.budget.is_reranked == is_reranked
    if not is_reranked:
        assert result.items == expected.items
        assert result.budget.reason == "the deadline of 15 ms came first"


def test_a_deadline_before_the_supports_fails_the_query(root: Path) -> None:
    version, _ = Clock().opened(root)
    with pytest.raises(UnavailableError, match="supports scored, got: the deadline of 5 ms came first"):
        version.search(["red hat"], k=5, budget={"calls": 30, "deadline_ms": 5})


def test_a_failure_before_the_deadline_is_not_blamed_on_it(root: Path) -> None:
    clock = Clock()

    def failing_for_blue(query: Any, candidates: Any) -> Any:
        if query["text"] == "blue":
            raise RuntimeError("out of memory")
        return clock.rank(query, candidates)

    version, _ = clock.opened(root, failing_for_blue)
    with pytest.raises(UnavailableError, match=r"queries\[0\] must have .* got: .* RuntimeError: out of memory"):
        version.search(["blue", "red hat"], k=5, budget={"calls": 30, "deadline_ms": 5})


@pytest.mark.parametrize(
    ("now", "answer", "reason"),
    [
        (0.0985, LateError("no answer"), "the deadline of 100 ms came first"),  # as uvloop ends a wait of 100 ms
        (0.09, LateError("no answer"), "no answer"),  # the ranker's own limit
        (0.11, UnavailableError("a full queue"), "a full queue"),
        (0.11, None, "the deadline of 100 ms came first"),
    ],
)
def test_a_wait_that_ends_a_moment_too_soon_is_the_deadlines(now: float, answer: Any, reason: str) -> None:
    clock = Clock()
    deadline = Deadline(BudgetInput(calls=1, deadline_ms=100), clock)
    clock.now = now
    assert deadline.reason(answer) == reason
