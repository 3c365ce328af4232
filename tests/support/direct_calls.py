"""A listener and a router's side of it in one process, over real sockets, with Serve's part faked."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvloop

from rails_ray.on_ray.serving.transport.codec import answered, question
from rails_ray.on_ray.serving.transport.listener import Address, Listener
from rails_ray.on_ray.serving.transport.replicas import Replicas
from rails_ray.on_ray.serving.transport.shards import Shards

OPEN: list[Any] = []  # what `run` closes


class Replica:
    """Of a version; doubles what it is asked."""

    def __init__(self, identity: str = "ours", most_at_once: int = 8, most_waiting: int = 100) -> None:
        self.identity = identity
        self.num_asked = self.most_ongoing = self.num_cancelled = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.methods = frozenset({"search"})
        self.listener = Listener(self, most_at_once, most_waiting)
        OPEN.append(self.listener)
        self.ongoing = 0

    def of(self, identity: str) -> "Replica | None":
        return self if identity == self.identity else None

    async def search(self, values: np.ndarray) -> np.ndarray:
        self.num_asked += 1
        self.ongoing += 1
        self.most_ongoing = max(self.most_ongoing, self.ongoing)
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.ongoing -= 1
        if not len(values):
            raise ValueError("no values")
        return values * 2


class Handle:
    """Serve's handle of a shard with these replicas."""

    def __init__(self, *replicas: Any) -> None:
        self.replicas, self.num_by_handle, self.num_looks = list(replicas), 0, 0
        self.failure: Exception | None = None
        self.wanted: tuple[str, ...] = ()
        self.is_silent = False  # one of the replicas, so that nobody is told of any
        self.call = SimpleNamespace(remote=self._call)

    async def _call(self, method: str, message: bytes) -> bytes:
        self.num_by_handle += 1
        if self.failure is not None:
            raise self.failure
        return await answered(self.replicas[0], method, message)

    def broadcast(self, method: str, *wanted: str) -> Any:
        assert method == "address"
        self.wanted = wanted

        async def results_async(timeout_s: float, return_exceptions: bool) -> list[Any]:
            assert return_exceptions
            self.num_looks += 1
            if self.is_silent:
                raise TimeoutError
            return [
                own if isinstance(own, Exception | Address) else await own.listener.address() for own in self.replicas
            ]

        return SimpleNamespace(results_async=results_async)


async def one_known() -> tuple[Replica, Handle, Replicas]:
    """A replica, its handle, and a router's side that has found it."""
    replica = Replica()
    handle = Handle(replica)
    replicas = direct_to(handle)
    await replicas.look()
    return replica, handle, replicas


VALUES = np.arange(3)
MESSAGE = question("ours", [VALUES])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await scenario()
        finally:
            while OPEN:
                await OPEN.pop().close()

    uvloop.run(whole())  # as Serve's replicas do


def direct_to(handle: Handle) -> Replicas:
    OPEN.append(Replicas(handle, "ours"))
    replicas: Replicas = OPEN[-1]
    return replicas


async def asked(replicas: Replicas, handle: Handle, *, within_s: float = 5) -> Any:
    (answer,) = await Shards([handle], "v2", "ours", within_s, direct=[replicas]).ask("search", VALUES)
    return answer


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)
