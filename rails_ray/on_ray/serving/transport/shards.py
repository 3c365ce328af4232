"""Ask all shards of one version at once, and the heavy ranker; if a replica is lost, ask another.

A shard is asked directly where that is possible, and else by handle.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError

from rails_ray.errors import BusyError, LostGpuError, UnavailableError
from rails_ray.modules.similarities.states import AnyQuery
from rails_ray.on_ray.failures import own_cause
from rails_ray.on_ray.serving.ranker import RankerCaller
from rails_ray.on_ray.serving.transport.codec import question, reply
from rails_ray.on_ray.serving.transport.replicas import LOOK_AGAIN_S, Replicas
from rails_ray.schema.requests import SearchRequest
from rails_ray.search.rounds import AskRanker, Done, Rounds, next_step
from rails_ray.serving.batching import ASSUMED_K
from rails_ray.serving.deadlines import is_late, left_s
from rails_ray.serving.short_work import ShortWork

Value = TypeVar("Value")

REPLICA_LOST = (ActorDiedError, ActorUnavailableError, ReplicaUnavailableError, LostGpuError)
# Pauses before each try, 0.8 s in all: with two replicas, seven more chances to reach the right one.
PAUSES_S = (0.0, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
READY_S = 600.0  # for replicas to load a version beside another one
SILENT_S = 2.0  # of a call by handle, before it is made again beside: its replica may stand still


@dataclass(frozen=True)
class Shards:
    """
    handles: handles of the shards, by number.
    version, identity: the version that must answer, and its `Manifest.contents_sha256`.
    timeout_s: limit for a shard to answer, all tries together.
    ranker: the heavy ranker; None for none.
    direct: replicas of each shard that can be asked directly; empty to ask all by handle.
    encoding, merging: the work before the first question of some rounds, and after each.
    """

    handles: list[Any]
    version: str
    identity: str
    timeout_s: float
    ranker: RankerCaller | None = None
    direct: Sequence[Replicas] = ()
    encoding: ShortWork = field(default_factory=ShortWork)
    merging: ShortWork = field(default_factory=ShortWork)

    async def ask(self, method: str, *arguments: Any, within_s: float | None = None) -> list[Any]:
        """Each shard's answer to a call of its `method`, or the exception instead.

        Args:
            within_s: a limit beside `timeout_s`.
        """
        limit_s = self.timeout_s if within_s is None else min(self.timeout_s, within_s)
        message = question(self.identity, arguments)
        calls = [self._ask(number, method, message, limit_s) for number in range(len(self.handles))]
        return await asyncio.gather(*calls, return_exceptions=True)

    @property
    def gpu_scans(self) -> list[str]:
        """As of `HeldShards`, of all replicas that are known."""
        return sorted(set().union(*(replicas.gpu_scans for replicas in self.direct)))

    @property
    def indexes_on_cpu(self) -> list[str]:
        """As of `HeldShards`, of all replicas that are known."""
        return sorted(set().union(*(replicas.indexes_on_cpu for replicas in self.direct)))

    async def ready(self) -> None:
        """Wait until a replica of each shard has the version, and those that are loading it have it too.

        Raises:
            UnavailableError: if a shard has none within READY_S, or all of its replicas refuse the version.
        """
        ends_at = time.monotonic() + READY_S
        while True:
            await asyncio.gather(*(replicas.look_quietly() for replicas in self.direct))
            is_late = time.monotonic() >= ends_at
            for number, replicas in enumerate(self.direct):
                if not replicas.are_known and (is_late or not replicas.num_loading) and replicas.refused:
                    raise UnavailableError(f"shard {number} refuses it: {replicas.refused}")
                if not replicas.are_known and is_late:
                    raise UnavailableError(
                        f"shard {number} must have a replica of version {self.version} within {READY_S:g} s, got none"
                    )
            is_known = all(replicas.are_known for replicas in self.direct)
            if is_known and (is_late or not any(replicas.num_loading for replicas in self.direct)):
                return
            await asyncio.sleep(LOOK_AGAIN_S)

    def leave(self) -> None:
        """Close the connections, each once no call is under way."""
        for replicas in self.direct:
            replicas.leave()

    def look_soon(self) -> None:
        """Look soon which replicas there are."""
        for replicas in self.direct:
            replicas.look_soon()

    async def num_items(self) -> list[Any]:
        """How many items each shard has, or the exception instead."""
        return await self.ask("num_items")

    def check(self, query: AnyQuery) -> None:
        """Do nothing: Serve watches the replicas."""

    async def search(self, rounds: Rounds[Value], request: SearchRequest) -> Value:
        """The result of a search's rounds; raises what `carry_out` does."""
        num_queries = len(request.queries)
        sizes = None if request.budget else (num_queries, num_queries * (request.k or ASSUMED_K))
        return await self.carry_out(rounds, sizes)

    async def carry_out(self, rounds: Rounds[Value], sizes: tuple[int, int] | None = None) -> Value:
        """The result of the rounds; a failure of Ray becomes the error beneath it.

        Args:
            sizes: how much there is to encode and to merge, as it tells how long that takes; None if nobody knows.
        """
        answers: list[Any] | None = None
        while True:
            work = partial(next_step, rounds, answers)
            if sizes is None:
                step = await asyncio.to_thread(work)
            elif answers is None:
                step = await self.encoding.done(work, sizes[0])
            else:
                step = await self.merging.done(work, sizes[1])
            if isinstance(step, Done):
                value: Value = step.value
                return value
            if isinstance(step, AskRanker):
                assert self.ranker is not None  # the engine refuses what needs one
                answers = await self.ranker.ask(step)
                continue
            answers = [
                own_cause(answer) or answer if isinstance(answer, BaseException) else answer
                for answer in await self.ask(step.method, *step.arguments, within_s=step.within_s)
            ]

    async def _ask(self, number: int, method: str, message: bytes, limit_s: float) -> Any:
        """The answer of a replica. If one dies or serves another version, ask another: searching changes nothing, so
        asking again is safe.

        Raises:
            TimeoutError: if all tries together take too long.
            UnavailableError: if every replica that answers serves another version.
            BusyError: if the queues of the replicas and of this router are full.
        """
        lost: Exception = UnavailableError(
            f"shard {number} must be of version {self.version}, got replicas of another one: try again"
        )
        async with asyncio.timeout(limit_s):
            if self.direct and not is_late():
                # The client's deadline ends the wait here by itself; the replica needs the limit.
                answered = await self.direct[number].ask(method, message, min(limit_s, left_s()))
                if answered is not None and answered.identity == self.identity:
                    return answered.value
            if is_late():
                raise TimeoutError
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                try:
                    answer = reply(await _answer_by_handle(partial(self.handles[number].call.remote, method, message)))
                except REPLICA_LOST as error:
                    lost = error
                    continue
                except BackPressureError:
                    raise BusyError(
                        f"shard {number} must have a place for one more call, got a full queue: try again"
                    ) from None
                if answer.identity == self.identity:
                    return answer.value
        raise lost


async def _answer_by_handle(call: Callable[[], Awaitable[Value]]) -> Value:
    """Return what a call by handle gives or, if it is silent for SILENT_S, what the same call gives again; Serve
    prefers a replica that has fewer of them. A failure counts only if both fail."""
    calls = [asyncio.ensure_future(call())]
    try:
        done, _ = await asyncio.wait(calls, timeout=SILENT_S)
        if not done:
            calls.append(asyncio.ensure_future(call()))
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            if waiting and all(one.exception() for one in done):
                done = waiting
        return await done.pop()
    finally:
        for one in calls:
            one.cancel()
