"""What a router asks of the shards: each of them at once, of one version, and elsewhere if a replica is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import ReplicaUnavailableError

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.serving.shard import Answer

REPLICA_LOST = (ActorDiedError, ActorUnavailableError, ReplicaUnavailableError)
# Before another replica is asked: seven chances of finding one of two, within the second that a deployment may need.
PAUSES_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Shards:
    """
    handles: of the shards, by number.
    version, identity: that an answer must be of (`Manifest.sha256`).
    timeout_s: that a shard may take to answer, all tries together.
    """

    handles: list[Any]
    version: str
    identity: str
    timeout_s: float

    async def ask(self, method: str, *arguments: Any) -> list[Any]:
        """What each shard answers to a call of its `method`, or the exception that came instead."""
        asked = [
            self._ask(number, getattr(handle, method).remote, arguments) for number, handle in enumerate(self.handles)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, number: int, ask: Callable[..., Awaitable[Answer[Any]]], arguments: tuple[Any, ...]) -> Any:
        """What a replica answers. If it dies, or is of another version, another one is asked: nothing that is asked
        changes it.

        Raises:
            TimeoutError: if all tries together take too long.
            UnavailableError: if each replica that answers is of another version.
        """
        async with asyncio.timeout(self.timeout_s):
            for pause_s in (*PAUSES_S, None):
                try:
                    answer = await ask(self.identity, *arguments)
                    if answer.identity == self.identity:
                        return answer.value
                except REPLICA_LOST:
                    if pause_s is None:
                        raise
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
        raise UnavailableError(
            f"shard {number} must be of version {self.version}, got replicas of another one: try again"
        )
