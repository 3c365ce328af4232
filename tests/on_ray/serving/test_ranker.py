"""The heavy ranker's replica, without a cluster: what it calls healthy."""

import asyncio
import threading
from typing import Any

import pytest

from rails_ray.errors import UnavailableError, UnsupportedError
from rails_ray.on_ray.serving.ranker import LATE, Ranker
from rails_ray.relevance.rankers import Candidates

CANDIDATES = Candidates(["a", "b"], ["red hat", "blue car"])


def replica(**fields: Any) -> Any:
    given = {"path": "support.ranked:by_pairs", "folder": "", "concurrency": 1, "timeout_s": 0.05}
    return Ranker.func_or_class(**{**given, **fields})


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
        with pytest.raises(UnavailableError, match=r"must end within 0\.05 s, got one that hangs"):
            await own.check_health()
        held.set()
        await call
        await own.check_health()

    asyncio.run(ask())


def test_a_ranker_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="ranker must be the import path of a callable, MODULE:NAME"):
        replica(path="no:no")
