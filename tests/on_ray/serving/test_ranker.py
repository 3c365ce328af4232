"""The heavy ranker's replica, without a cluster: what it calls healthy, and how many calls it scores at once. And its
caller: how many calls are under way, and what becomes of those that fail."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.errors import LateError, UnavailableError, UnsupportedError
from rails_ray.on_ray.serving.ranker import LATE, Ranker, RankerCaller
from rails_ray.reranking.rankers import RankerCandidates
from rails_ray.search.rounds import AskRanker, RankerCall

CANDIDATES = RankerCandidates(["a", "b"], ["red hat", "blue car"])


def replica(**fields: Any) -> Any:
    given = {"path": "support.ranked:by_pairs", "folder": "", "concurrency": 1, "timeout_s": 0.3}
    allowed = AllowedCode(("support", "no"))
    return Ranker.func_or_class(**{**given, "allowed": allowed, **fields})


def test_it_scores_and_is_well() -> None:
    own = replica()
    scores = asyncio.run(own.score({"text": "red hat"}, CANDIDATES))
    assert scores.tolist() == [1.0, 0.0]
    asyncio.run(own.check_health())


def test_a_call_that_hangs_is_no_health() -> None:
    """Its replica is replaced, as nothing can stop the call."""
    own, held = replica(), threading.Event()

    def hang(query: Any, candidates: Any) -> list[float]:
        held.wait(60)
        return [0.0, 0.0]

    own.ranker = hang

    async def ask() -> None:
        call = asyncio.create_task(own.score({"text": "red"}, CANDIDATES))
        await asyncio.sleep(0.02)
        await own.check_health()  # within its time
        await asyncio.sleep(LATE * own.timeout_s + 0.05)
        with pytest.raises(UnavailableError, match=r"must end within 0\.3 s, got one that hangs"):
            await own.check_health()
        held.set()
        await call
        await own.check_health()

    asyncio.run(ask())


def test_a_ranker_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="ranker must be the import path of a callable, MODULE:NAME"):
        replica(path="no:no")
    with pytest.raises(UnsupportedError, match=r"names the ranker .*by_pairs', code that this process is not allowed"):
        replica(allowed=OURS_ALONE)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_replica_scores_as_many_calls_at_once_as_it_was_told(concurrency: int) -> None:
    own, lock, inside, most = replica(concurrency=concurrency, timeout_s=10), threading.Lock(), 0, 0
    both = threading.Barrier(concurrency)

    def counting(query: Any, candidates: Any) -> list[float]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        both.wait(10)  # until so many calls are here
        with lock:
            inside -= 1
        return [float(query["text"])] * 2

    own.ranker = counting

    async def ask() -> list[Any]:
        return await asyncio.gather(*(own.score({"text": str(number)}, CANDIDATES) for number in range(4)))

    assert [scores.tolist() for scores in asyncio.run(ask())] == [[float(number)] * 2 for number in range(4)]
    assert most == concurrency


class Handle:
    """A handle of a deployment whose answers are given by hand. It injects what a replica's death or its queue raises.

    Args:
        raised: what calls raise, one after the other, before one is answered.
    """

    def __init__(self, raised: Sequence[Exception] = ()) -> None:
        self.raised, self.begun, self.inside, self.most = list(raised), list[str](), 0, 0
        self.may_answer = asyncio.Event()
        self.score = self

    async def remote(self, query: Any, candidates: Any) -> Any:
        self.begun.append(query["text"])
        if self.raised:
            raise self.raised.pop(0)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.may_answer.wait()
            await asyncio.sleep(0)
            return np.array([float(query["text"])])
        finally:
            self.inside -= 1


def calls(*numbers: int) -> AskRanker:
    return AskRanker([RankerCall({"text": str(number)}, CANDIDATES[:1]) for number in numbers])


async def turns() -> None:
    """Let the others do what they can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_calls_beyond_the_bound_wait() -> None:
    """The requests of a router share it."""

    async def ask() -> None:
        handle = Handle()
        caller = RankerCaller(handle, timeout_s=10, max_in_flight=3)
        asked = [asyncio.create_task(caller.ask(calls(*range(first, first + 4)))) for first in (0, 4)]
        await turns()
        assert handle.begun == ["0", "1", "2"]
        handle.may_answer.set()
        assert [[float(own) for [own] in await answers] for answers in asked] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert handle.most == 3

    asyncio.run(ask())


def test_a_call_that_waits_too_long_is_late_and_holds_no_place() -> None:
    """Neither for its place, nor for its answer."""

    async def ask() -> None:
        handle = Handle()
        caller = RankerCaller(handle, timeout_s=60, max_in_flight=1)
        first = asyncio.create_task(caller.ask(calls(0)))
        await turns()
        [waiting] = await caller.ask(AskRanker(calls(1).calls, within_s=0.05))
        assert handle.begun == ["0"]
        assert type(waiting) is LateError
        assert str(waiting) == "the heavy ranker must answer within 0.05 s, got no answer"
        handle.may_answer.set()
        assert await first == [0]
        handle.may_answer.clear()
        [silent] = await caller.ask(AskRanker(calls(2).calls, within_s=0.05))
        assert type(silent) is LateError
        handle.may_answer.set()
        assert await caller.ask(calls(3)) == [3]
        assert handle.begun[-1] == "3"

    asyncio.run(ask())


def test_a_deadline_bounds_a_call_where_it_comes_first() -> None:
    async def ask() -> list[Any]:
        caller = RankerCaller(Handle(), timeout_s=10, max_in_flight=1)
        return await caller.ask(AskRanker(calls(0).calls, within_s=0.02))

    [answer] = asyncio.run(ask())
    assert str(answer) == "the heavy ranker must answer within 0.02 s, got no answer"


DIED, AWAY = ActorDiedError(), ActorUnavailableError("away", None)
FULL = BackPressureError(num_queued_requests=9, max_queued_requests=8)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ([FULL], "the heavy ranker must have room for a call, got a full queue: try again"),
        ([DIED, DIED], "the heavy ranker must answer, got ActorDiedError: try again"),  # the call itself may kill it
        ([DIED], None),
        ([AWAY, AWAY, DIED, AWAY], None),
    ],
    ids=["full", "two die", "one dies", "away for a while"],
)
def test_a_replica_that_is_lost_is_not_the_last_that_is_asked(raised: list[Exception], told: str | None) -> None:
    async def ask() -> tuple[list[Any], Handle]:
        handle = Handle(raised)
        handle.may_answer.set()
        return await RankerCaller(handle, timeout_s=10, max_in_flight=1).ask(calls(5)), handle

    [answer], handle = asyncio.run(ask())
    assert not handle.raised
    assert len(handle.begun) == len(raised) + (told is None)
    assert str(answer) == told if told else answer.tolist() == [5.0]
