"""Serve a version over HTTP, and ask a server."""

import time
from dataclasses import dataclass
from typing import Any

import tyro

from rails_ray.commands.base import Stored, load, out

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, kw_only=True)
class Serve(Stored):
    """Serve an index version over HTTP until Ctrl-C."""

    version: str | None = None
    """A published version; by default the current one."""
    host: str = "127.0.0.1"
    """Address to listen on. There is no access control: other machines can ask where it is not 127.0.0.1."""
    port: int = 8000
    """HTTP port."""

    def run(self) -> None:
        load()
        from contextlib import ExitStack

        from rails_ray import rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.serving.app import ServeArgs, check_port, served
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_manifest

        check_port(self.host, self.port)
        manifest = read_manifest(Storage(self.storage), self.version)
        with ExitStack() as stack:
            with rendering.spinner(out, f"deploy version {manifest.version}"):
                is_own = stack.enter_context(cluster(4 + len(manifest.shard_items)))
                arguments = ServeArgs(storage=self.storage, version=manifest.version)
                url = stack.enter_context(served(arguments, host=self.host, port=self.port, leave_serve=is_own))
            out.print(f"serving at {url} until Ctrl-C; its API is described at {url}/openapi.json", highlight=False)
            while True:
                time.sleep(3600)


@dataclass(frozen=True)
class Query:
    """Ask a running server, by texts or, of an index of histories, by users or by one history."""

    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Queries."""
    user_id: tuple[str, ...] = ()
    """Users whose history the index holds."""
    history: tuple[str, ...] = ()
    """Item ids in time order: one query."""
    k: int = 1000
    """At most so many items per query are counted as kept."""
    show: int = 4
    """Items per query that are shown."""
    mass: float | None = None
    """Cut at this probability mass; by default at the version's own."""
    method: str = "brute_force"
    """brute_force (exact) or average (two steps)."""
    url: str = DEFAULT_URL
    """Of the server."""

    def run(self) -> None:
        from rails_ray import client, rendering

        if not (self.texts or self.user_id or self.history):
            raise ValueError("give at least 1 query, got none")
        facts = client.index(self.url)
        queries: list[dict[str, Any]] = [{"text": text} for text in self.texts]
        queries += [{"user_id": _typed(user, facts["query"].get("user_id"))} for user in self.user_id]
        if self.history:
            queries.append({"history": [_typed(item, facts["query"].get("history")) for item in self.history]})
        cutoff = None if self.mass is None else {"mass": self.mass}
        best = client.search(self.url, queries, self.show, method=self.method, cutoff={"top_k": self.show})
        k = min(self.k, *(result["num_searched"] for result in best["results"]))
        cut = client.search(self.url, queries, k, method=self.method, cutoff=cutoff)
        names = [*self.texts, *(f"user {user}" for user in self.user_id)]
        names += [f"after {' '.join(self.history)}"] if self.history else []
        exactness = "exact" if cut["is_exact"] else "approximate"
        out.print(rendering.answers(names, cut, best, f"version {cut['version']}, {self.method}: {exactness}"))


def _typed(word: str, kind: str | None) -> str | int:
    """An id as the index has it."""
    is_number = kind is not None and "int" in kind and word.removeprefix("-").isdecimal()
    return int(word) if is_number else word
