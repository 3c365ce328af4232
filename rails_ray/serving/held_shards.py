"""Shards that this process holds, searched at the same time unless that takes longer than one after the other."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any, TypeVar

from rails_ray.kernels.torch_threads import torch_pool
from rails_ray.search.rounds import AskRanker, AskShards, Done, Rounds, next_step
from rails_ray.serving.gpu_faults import gpu_failures
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.serving.short_work import Slowest

Value = TypeVar("Value")

IN_TURN_S = 0.006  # of all shards; threads gain nothing below, as measured with two (docs/log/serving.md)


class HeldShards:
    """Threads may share it.

    Args:
        shards: all shards of a version, by number.
    """

    def __init__(self, shards: Sequence[ShardSearch]) -> None:
        self.shards = shards
        self._others = torch_pool(len(shards) - 1, "shard") if len(shards) > 1 else None
        self._slowest = Slowest()  # of the first shard, by what is asked of it

    @property
    def gpu_scans(self) -> list[str]:
        """Scans that GPUs make of the items: "fused", or why it is not the fused kernel; empty on a CPU."""
        return sorted({shard.gpu_scan for shard in self.shards if shard.gpu_scan is not None})

    @property
    def indexes_on_cpu(self) -> list[str]:
        """Why indexes are searched on the CPU beside a GPU; empty on a CPU."""
        return sorted(frozenset().union(*(shard.indexes_on_cpu for shard in self.shards)))

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
        calls = [
            partial(gpu_failures(shard.device)(getattr(shard, step.method)), *step.arguments) for shard in self.shards
        ]
        if self._others is None:
            return [calls[0]()]
        if len(self.shards) * self._slowest[step.method] <= IN_TURN_S:
            return [self._timed(step, calls[0]), *(call() for call in calls[1:])]
        found = [self._others.submit(call) for call in calls[1:]]
        try:
            return [self._timed(step, calls[0]), *(other.result() for other in found)]
        finally:
            wait(found)  # nothing of a search goes on after its end

    def _timed(self, step: AskShards, call: Callable[[], Value]) -> Value:
        began = time.thread_time()
        try:
            return call()
        finally:
            self._slowest.note(step.method, time.thread_time() - began)
