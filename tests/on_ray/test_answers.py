"""What the router decides, with made-up shards: faults are easier to inject here than on a cluster."""

import asyncio
import math
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
from rails_ray.on_ray.serving.answers import coverage_of, cutoff_of, explained, results_of
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.router import Router, answer_of
from rails_ray.on_ray.serving.schemas import CertificateResult, Coverage, CutoffInput
from rails_ray.on_ray.serving.shard import ShardAnswer, ShardExplanation
from rails_ray.top_k import TopK


def shard_answer(
    scores: list[float], rows: list[int], num_searched: int = 10, bound: float | None = -math.inf
) -> ShardAnswer:
    top_k = TopK(torch.tensor([scores]), torch.tensor([rows]))
    item_ids, titles = [[f"item-{row}" for row in rows]], [[f"Title {row}" for row in rows]]
    no_bound = "nobody looked" if bound is None else None
    bounds = None if bound is None else [bound]
    return ShardAnswer([top_k], bounds, no_bound, [7], item_ids, titles, [num_searched])


ALL = Coverage(shards_answered=2, num_shards=2, items_searched=20, num_items=20)
LEFT, RIGHT = shard_answer([0.9, 0.2], [3, 0]), shard_answer([0.5, 0.2], [12, 11])


def test_the_merged_list_is_cut_and_named() -> None:
    (result,) = results_of([LEFT, RIGHT], 3, CutoffInput(score=0.3), np.array([0.1]), ALL)
    assert result.items == ["item-3", "item-12"]
    assert result.titles == ["Title 3", "Title 12"]
    assert (result.num_searched, result.num_scored) == (20, 14)
    assert result.scores == pytest.approx([0.9, 0.5])
    assert (result.threshold, result.num_kept, result.is_truncated) == (0.3, 2, False)


@pytest.mark.parametrize(
    ("bounds", "cutoff", "expected"),
    [
        ((-math.inf, 0.2), CutoffInput(top_k=3), (True, 0.0)),  # the third score is .2
        ((-math.inf, 0.5), CutoffInput(top_k=3), (False, 0.3)),
        ((0.6, 0.5), CutoffInput(top_k=3), (False, 0.4)),
        ((-math.inf, 0.5), CutoffInput(top_k=2), (True, 0.0)),  # the second is .5
        ((-math.inf, 0.5), CutoffInput(score=0.55), (True, 0.0)),  # nothing that is missing reaches the threshold
        ((-math.inf, 0.5), CutoffInput(score=0.4), (False, 0.1)),
        ((-math.inf, 0.5), CutoffInput(score=-1), (False, 0.3)),  # k ends the list
        ((-math.inf, None), CutoffInput(top_k=3), (False, None)),
    ],
)
def test_certificates_over_shards(
    bounds: tuple[float | None, float | None], cutoff: CutoffInput, expected: tuple[bool, float | None]
) -> None:
    answers = [shard_answer([0.9, 0.2], [3, 0], bound=bounds[0]), shard_answer([0.5, 0.2], [12, 11], bound=bounds[1])]
    (result,) = results_of(answers, 3, cutoff, np.array([0.1]), ALL)
    certificate = result.certificate
    assert (certificate.is_exact, certificate.gap) == (expected[0], pytest.approx(expected[1], abs=1e-6))
    assert certificate.reason == ("nobody looked" if expected[1] is None else None)


def test_nothing_is_certified_where_shards_are_missing() -> None:
    some = Coverage(shards_answered=1, num_shards=2, items_searched=10, num_items=20)
    (result,) = results_of([LEFT], 2, CutoffInput(top_k=2), np.array([0.1]), some)
    assert result.certificate == CertificateResult(is_exact=False, gap=None, reason="only 10 of 20 items were searched")


def test_an_item_that_no_shard_explains() -> None:
    known = ShardExplanation(["a"], None, [0.5], [[[0.5]]], [[[1.0]]])
    assert [item.item for item in explained("v", [known, known], ["a"]).items] == ["a"]
    with pytest.raises(ValueError, match=r"items\[1\] must be an item of the index, got 'b'"):
        explained("v", [known], ["a", "b"])
    with pytest.raises(UnavailableError, match=r"all shards must answer to find items\[0\], got fewer: try again"):
        explained("v", [known, TimeoutError()], ["b"])


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
