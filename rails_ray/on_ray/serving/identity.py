"""A replica's answer names the version that it serves. While one version replaces another, routers and shards of both
are up."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """A replica's answer, and the version that it serves.

    identity: `Manifest.contents_sha256` of that version.
    value: None if the caller asked for another version.
    """

    identity: str
    value: Value | None


def of_identity(method: Callable[..., Awaitable[Value]]) -> Callable[..., Awaitable[Answer[Value]]]:
    """Wrap a replica's method. The caller names a version; the method runs only if the replica serves it. The answer
    names the replica's version."""

    @wraps(method)
    async def asked(self: Any, identity: str, *arguments: Any) -> Answer[Value]:
        value = await method(self, *arguments) if identity == self.identity else None
        return Answer(self.identity, value)

    return asked
