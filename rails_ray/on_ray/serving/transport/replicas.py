"""The replicas of a shard, each called over a connection of its own.

Serve stays in charge: handles say where each replica listens and give the key to it (`address`, over Ray's own
channel), Serve watches their health, and what cannot be asked directly is asked by handle. So nothing here tries again.
If a call takes longer than 95% of recent calls, the router also asks a second replica and uses the first answer; a
budget of one call in twenty limits this. It does not limit second calls beside a replica that has answered nothing for
many times as long, as it stands still; if the router knows of no second one, it looks again, or asks by handle.

    router  --handle.broadcast("address")-->  each replica: URL, key, version
    router  --search, ms left, message-->  one replica: message
"""

import asyncio
import logging
import random
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from rails_ray.on_ray.serving.transport.codec import Reply, reply
from rails_ray.on_ray.serving.transport.link import Link
from rails_ray.on_ray.serving.transport.listener import ANSWERED, FAILED, FULL, LATE, Address

LOOK_AGAIN_S = 1.0  # after a look, if a replica was lost or none is known
SETTLED_S = 10.0  # without a change; until then more replicas may be starting, and looks go on
LOOK_TIMEOUT_S = 2.0  # for all replicas to say where they listen
# Another replica is asked after this quantile of the last NUM_REMEMBERED call times, once FEWEST_KNOWN are known.
QUANTILE, NUM_REMEMBERED, FEWEST_KNOWN = 0.95, 200, 50
SECOND_CALLS, MOST_SAVED = 0.05, 10.0  # second calls for each call; most that are in reserve
STUCK, LEAST_STUCK_S, UNKNOWN_STUCK_S = 5.0, 0.5, 2.0  # times the quantile; if it is short; if it is not known yet
LOOK_FOR_BUDGET_S = 0.05
MOST_LATE = 3  # calls in a row that another replica answered first; then a replica is asked last, until the next look
UNUSABLE = (ConnectionError, ValueError, KeyError, TypeError)  # what a call, or its answer, raises


@dataclass(eq=False)
class _Replica:
    """
    link: the connection to it.
    num_late: calls since its last answer that another replica answered first.
    answered: when its last answer came, by `time.monotonic`.
    """

    address: Address
    link: Link = field(init=False)
    num_under_way: int = 0
    num_late: int = 0
    answered: float = 0.0

    def __post_init__(self) -> None:
        self.link = Link(self.address)


@dataclass(frozen=True)
class _Question:
    """
    body: the message.
    ends_at: when the caller stops waiting, by `time.monotonic`.
    """

    method: str
    body: bytes
    ends_at: float


class Patience:
    """How long to wait for a replica before another one is asked as well: as long as all but a few of the last calls
    took. A budget limits second calls, so that they cannot overload a shard that is slow everywhere."""

    def __init__(self) -> None:
        self._took, self._in_order = deque[float](), list[float]()
        self._left, self._second_s = 0.0, inf

    def took(self, seconds: float) -> None:
        """Note how long a call took."""
        if len(self._took) == NUM_REMEMBERED:
            del self._in_order[bisect_left(self._in_order, self._took.popleft())]
        self._took.append(seconds)
        insort(self._in_order, seconds)
        self._left = min(self._left + SECOND_CALLS, MOST_SAVED)
        if len(self._took) >= FEWEST_KNOWN:
            self._second_s = self._in_order[int(QUANTILE * len(self._took))]

    @property
    def second_s(self) -> float | None:
        """Seconds after which to ask another one; None for never."""
        return self._second_s if self._left >= 1 and self._second_s < inf else None

    @property
    def stuck_s(self) -> float:
        """Seconds without an answer after which a replica stands still, and another one is asked, whatever is left."""
        return UNKNOWN_STUCK_S if self._second_s == inf else max(LEAST_STUCK_S, STUCK * self._second_s)

    def spend(self) -> None:
        """Count a call that is asked twice."""
        self._left -= 1


class Replicas:
    """The replicas of one shard, as far as they can be asked directly.

    Args:
        handle: Serve's handle of the shard.
        identity: the version that must answer; replicas of another one are not asked.
        wanted: name of that version, for replicas that load what routers want; None for others.

    num_loading: replicas that do not have the version yet, by the last look.
    refused: why a replica cannot have it; None if none refuses it.
    """

    def __init__(self, handle: Any, identity: str, wanted: str | None = None) -> None:
        self._handle, self._identity = handle, identity
        self._wanted = () if wanted is None else (wanted,)
        self.num_loading = 0
        self.refused: str | None = None
        self._known: list[_Replica] = []
        self._looking: asyncio.Task[None] | None = None
        self._is_told = False  # by the last look
        self._looked_at = self._changed_at = -inf
        self.patience = Patience()

    async def look(self) -> None:
        """Learn from Serve which replicas there are. If it does not say, those that are known stay."""
        self._looked_at, self._is_told = time.monotonic(), False
        addresses = await self._handle.broadcast("address", *self._wanted).results_async(
            timeout_s=LOOK_TIMEOUT_S, return_exceptions=True
        )
        known = {replica.address: replica for replica in self._known}
        for replica in self._known:
            replica.num_late = 0
        there = [own for own in addresses if isinstance(own, Address)]
        addresses = [own for own in there if own.identity == self._identity]
        self.refused = next((own.refused for own in there if own.refused is not None), None)
        self.num_loading = len(there) - len(addresses) - sum(own.refused is not None for own in there)
        if known.keys() != set(addresses):
            self._changed_at = time.monotonic()
        for address in known.keys() - set(addresses):
            known[address].link.leave()
        self._known = [known.get(address) or _Replica(address) for address in addresses]
        self._is_told = True

    @property
    def gpu_scans(self) -> set[str]:
        """Scans that GPUs make of the items: "fused", or why it is not the fused kernel."""
        return {known.address.gpu_scan for known in self._known if known.address.gpu_scan is not None}

    @property
    def indexes_on_cpu(self) -> set[str]:
        """Why indexes are searched on the CPU beside a GPU."""
        return set().union(*(known.address.indexes_on_cpu for known in self._known))

    @property
    def are_known(self) -> bool:
        """Return whether a replica can be asked."""
        return bool(self._known)

    def look_soon(self) -> None:
        """`look` in the background, unless that is under way or was a moment ago."""
        is_looking = self._looking is not None and not self._looking.done()
        if not is_looking and time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
            self._looking = asyncio.create_task(self.look_quietly())

    async def look_quietly(self) -> None:
        """`look`, unless Ray fails."""
        try:
            await self.look()
        except (RayError, RayServeException, TimeoutError):  # the shard starts or ends, or a replica is silent
            logging.getLogger("ray.serve").debug("the replicas of a shard are not known", exc_info=True)

    def leave(self) -> None:
        """Close each connection once no call is under way."""
        for replica in self._known:
            replica.link.leave()

    async def close(self) -> None:
        """Ask no more."""
        if self._looking is not None:
            self._looking.cancel()
        for replica in self._known:
            replica.link.close()

    async def ask(self, method: str, message: bytes, within_s: float) -> Reply | None:
        """Ask the replica with the fewest calls under way; if it is slow, ask the next one too, and take the first
        answer. None if the shard must be asked by handle.

        Args:
            message: a question.
            within_s: how long the caller waits.
        """
        if time.monotonic() - self._changed_at < SETTLED_S or not self._known:
            self.look_soon()
        if not self._known:
            return None
        question = _Question(method, message, time.monotonic() + within_s)
        first, *others = sorted(
            self._known, key=lambda own: (own.num_late >= MOST_LATE, own.num_under_way, random.random())
        )
        calls = [self._calling(first, question)]
        try:
            another = await self._another(calls[0], first, others)
            if another is not None:
                calls.append(self._calling(another, question))
            elif not calls[0].done():
                self._lose(first)
                return None
            answer = await _first_answer(calls)
            first.num_late += not calls[0].done()
            return answer
        finally:
            for call in calls:
                call.cancel()

    async def _another(self, call: asyncio.Task[Any], first: _Replica, others: Sequence[_Replica]) -> _Replica | None:
        """The replica to ask as well, once the call has taken long enough; None once it has ended, or if its replica
        stands still and nobody says who else is there. Other calls spend and refill the budget meanwhile, so it is
        looked at again and again."""
        began = time.monotonic()
        while not call.done():
            now = time.monotonic()
            is_stuck = now >= (stuck := max(began, first.answered) + self.patience.stuck_s)
            if is_stuck and not others:  # one may have come since the last look
                self.look_soon()
                if (looking := self._looking) is not None:
                    await asyncio.wait([call, looking], return_when=asyncio.FIRST_COMPLETED)
                    if looking.done() and not self._is_told:
                        return None
                others = [known for known in self._known if known is not first]
            if is_stuck and others:
                return others[0]
            second_s = self.patience.second_s if others else None
            if second_s is not None and now - began >= second_s:
                self.patience.spend()
                return others[0]
            next_look = now + LOOK_FOR_BUDGET_S if second_s is None else began + second_s
            await asyncio.wait([call], timeout=(next_look if is_stuck else min(next_look, stuck)) - now)
        return None

    def _lose(self, replica: _Replica) -> None:
        """Ask it no more until it is found again."""
        self._known = [known for known in self._known if known is not replica]
        replica.link.leave()
        self.look_soon()

    def _calling(self, replica: _Replica, question: _Question) -> asyncio.Task[Reply | None]:
        """A call that counts as under way from now on."""
        replica.num_under_way += 1
        call = asyncio.create_task(self._call(replica, question))
        call.add_done_callback(partial(_no_longer_under_way, replica))
        return call

    async def _call(self, replica: _Replica, question: _Question) -> Reply | None:
        """The answer of one replica; None if it cannot be asked."""
        began = time.monotonic()
        try:
            answer = await _answer_of(replica.link, question)
            if answer is not None:
                replica.answered, replica.num_late = time.monotonic(), 0
                self.patience.took(replica.answered - began)
            return answer
        except UNUSABLE:
            self._lose(replica)
            return None


async def _answer_of(link: Link, question: _Question) -> Reply | None:
    """The answer over a connection; None if the handle finds a place elsewhere, or tells what is wrong.

    Raises:
        ConnectionError, ValueError, KeyError, TypeError: if the replica is not there, or answers nonsense.
    """
    status, message = await link.ask(question.method, question.body, question.ends_at - time.monotonic())
    if status in (FULL, FAILED, LATE):
        return None
    if status != ANSWERED:
        raise ConnectionError(f"status must be {ANSWERED}, got {status}")
    return reply(message)


def _no_longer_under_way(replica: _Replica, _: asyncio.Task[Any]) -> None:
    replica.num_under_way -= 1


async def _first_answer(calls: Sequence[asyncio.Task[Reply | None]]) -> Reply | None:
    """The answer that comes first; None if no call has one."""
    for call in asyncio.as_completed(calls):
        answer = await call
        if answer is not None:
            return answer
    return None
