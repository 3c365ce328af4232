"""Make an API key."""

import secrets
from dataclasses import dataclass, replace
from typing import Literal

from rails_ray.cli.base import errors
from rails_ray.serving.http.keys import SCOPES, Key

LENGTH = 32  # bytes of a key
MOST = 1e6  # requests a second


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """Make an API key: on stdout the line for a server's file of keys, on stderr the key, which nothing stores.

    Args:
        scope: Requests that the key may make. search: those of clients; admin: also changes of items, metrics and the
            description of the API.
        rate: Requests a second that it may make of each router. If left out: any number.
    """

    scope: Literal["search", "admin"] = "search"
    rate: float | None = None

    def run(self) -> None:
        if self.rate is not None and not 0 < self.rate < MOST:
            raise ValueError(f"--rate must be above 0 and below {MOST:g}, got {self.rate:g}")
        key = f"rr-{secrets.token_urlsafe(LENGTH)}"
        scopes = frozenset(SCOPES if self.scope == "admin" else ("search",))
        errors.print(f"the key, which is not shown again: {key}", highlight=False, soft_wrap=True)
        print(replace(Key.of(key), scopes=scopes, rate=self.rate).line())
