"""What the router decides, with made-up shards: faults are easier to inject here than on a cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ray.exceptions import ActorDiedError, ActorUnavailableError

from rails_ray.errors import DamagedError, UnavailableError
from rails_ray.on_ray.failures import own_cause, told_plainly
from rails_ray.on_ray.serving.answers import coverage_of, cutoff_of, results_of
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.router import Router, answer_of
from rails_ray.on_ray.serving.schemas import CutoffInput
from rails_ray.on_ray.serving.shard import ShardAnswer
from rails_ray.top_k import TopK


def shard_answer(scores: list[float], rows: list[int], num_searched: int = 10) -> ShardAnswer:
    top_k = TopK(torch.tensor([scores]), torch.tensor([rows]))
    item_ids, titles = [[f"item-{row}" for row in rows]], [[f"Title {row}" for row in rows]]
    return ShardAnswer([top_k], item_ids, titles, [num_searched], is_exact=True)


LEFT, RIGHT = shard_answer([0.9, 0.2], [3, 0]), shard_answer([0.5, 0.2], [12, 11])


def test_the_merged_list_is_cut_and_named() -> None:
    (result,) = results_of([LEFT, RIGHT], 3, CutoffInput(score=0.3), np.array([0.1]))
    assert result.items == ["item-3", "item-12"]
    assert result.titles == ["Title 3", "Title 12"]
    assert result.num_searched == 20
    assert result.scores == pytest.approx([0.9, 0.5])
    assert (result.threshold, result.num_kept, result.is_truncated) == (0.3, 2, False)


def test_coverage_counts_the_shards_that_answered() -> None:
    coverage = coverage_of([LEFT, TimeoutError()], [10, 30], min_coverage=0.25)
    assert (coverage.shards_answered, coverage.items_searched, coverage.num_items) == (1, 10, 40)


@pytest.mark.parametrize(
    ("answers", "min_coverage", "got"),
    [
        ([LEFT, TimeoutError()], 0.26, "0.26 of 40 items, got 10 from 1 of 2 shards"),
        ([TimeoutError(), TimeoutError()], 0.0, "0 of 40 items, got 0 from 0 of 2 shards"),
    ],
)
def test_too_little_coverage(answers: list, min_coverage: float, got: str) -> None:
    with pytest.raises(UnavailableError, match=f"min_coverage must be reached, {got}: try again or ask for less"):
        coverage_of(answers, [10, 30], min_coverage)


def test_a_shard_that_refuses_is_no_missing_shard() -> None:
    failure = RuntimeError("a traceback")
    failure.cause = ValueError("k must be something else")
    with pytest.raises(ValueError, match="k must be something else"):
        coverage_of([LEFT, failure], [10, 30], min_coverage=0.1)


def replica(*answers: Any) -> tuple[Callable[..., Awaitable[Any]], list[Any]]:
    """One that gives these answers in turn, or raises them, and what it was asked."""
    left, asked = list(answers), list[Any]()

    async def ask(*arguments: Any) -> Any:
        asked.append(arguments)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return answer

    return ask, asked


@pytest.mark.parametrize("lost", [ActorDiedError(), ActorUnavailableError("gone", None)])
def test_another_replica_is_asked_once_when_one_dies(lost: Exception) -> None:
    ask, asked = replica(lost, "found")
    assert asyncio.run(answer_of(5, ask, "query", 3)) == "found"
    assert asked == [("query", 3)] * 2
    ask, asked = replica(lost, lost, "found")
    with pytest.raises(type(lost)):
        asyncio.run(answer_of(5, ask))
    assert len(asked) == 2


def test_what_a_replica_refuses_is_not_asked_again_and_one_that_is_slow_not_waited_for() -> None:
    ask, asked = replica(ValueError("no"), "found")
    with pytest.raises(ValueError, match="no"):
        asyncio.run(answer_of(5, ask))
    assert len(asked) == 1
    for answers in ([None], [ActorDiedError(), None]):
        with pytest.raises(TimeoutError):
            asyncio.run(answer_of(0.05, replica(*answers)[0]))


def test_keys_that_can_no_longer_be_read_leave_the_former_ones_in_use(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("former-key-of-the-test\n")
    args = ServeArgs(storage="x", keys_file=str(file))
    router = SimpleNamespace(args=args, encoder=SimpleNamespace(check=lambda: None))  # less its shards and its model
    router._read_access = lambda: Router.func_or_class._read_access(router)
    router.access = router._read_access()
    for content, allowed in (("short\n", "former"), ("second-key-of-the-test\n", "second")):
        file.write_text(content)
        asyncio.run(Router.func_or_class.check_health(router))
        for name in ("former", "second"):
            assert router.access.keys.hold(f"{name}-key-of-the-test".encode()) == (name == allowed)


def test_a_mass_needs_a_trained_temperature() -> None:
    assert cutoff_of(None, 7, None) == CutoffInput(top_k=7)
    assert cutoff_of(None, 7, 0.9) == CutoffInput(mass=0.9)
    assert cutoff_of(CutoffInput(score=0.1), 7, None) == CutoffInput(score=0.1)
    with pytest.raises(ValueError, match=r"cutoff must be score or top_k for this index, .* got mass"):
        cutoff_of(CutoffInput(mass=0.9), 7, None)


def test_a_failure_of_ray_is_told_as_the_error_beneath_it() -> None:
    outer = RuntimeError("a traceback of another process")
    outer.__cause__ = middle = RuntimeError("another")
    middle.cause = DamagedError("the part must be whole")
    assert own_cause(outer) is middle.cause
    assert own_cause(RuntimeError("nothing of ours")) is None
    with pytest.raises(DamagedError, match="the part must be whole"), told_plainly():
        raise outer
    with pytest.raises(RuntimeError, match="nothing of ours"), told_plainly():
        raise RuntimeError("nothing of ours")
