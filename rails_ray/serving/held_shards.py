"""Shards that this process holds, all searched at the same time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from rails_ray.search.rounds import AskRanker, AskShards, Done, Rounds, next_step
from rails_ray.serving.shard_search import ShardSearch

Value = TypeVar("Value")


class HeldShards:
    """Threads may share it.

    Args:
        shards: all shards of a version, by number.
    """

    def __init__(self, shards: Sequence[ShardSearch]) -> None:
        self.shards = shards
        self._others = ThreadPoolExecutor(len(shards) - 1, "shard") if len(shards) > 1 else None

    def advance(self, rounds: Rounds[Value], answers: Sequence[Any] | None = None) -> AskRanker | Done:
        """Carry out rounds until they end, or ask the heavy ranker.

        Args:
            answers: those of the heavy ranker, if it was asked.
        """
        step = next_step(rounds, answers)
        while isinstance(step, AskShards):
            step = next_step(rounds, self._answers(step))
        return step

    def _answers(self, step: AskShards) -> list[Any]:
        first, *others = (partial(getattr(shard, step.method), *step.arguments) for shard in self.shards)
        if self._others is None:
            return [first()]
        found = [self._others.submit(other) for other in others]
        try:
            return [first(), *(other.result() for other in found)]
        finally:
            wait(found)  # nothing of a search goes on after its end
