"""A server in one process, without Ray: the same routes and the same answers, for a laptop or a test."""

import asyncio
import math
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fastapi import Response
from numpy.typing import NDArray

from rails_ray.errors import UnsupportedError
from rails_ray.families.version import Version
from rails_ray.kernels.torch_threads import torch_pool
from rails_ray.schema.items import DeleteItemsRequest, ItemsRequest
from rails_ray.schema.requests import ExplainRequest, SearchRequest
from rails_ray.schema.responses import ExplainResponse, ItemsResponse
from rails_ray.search.rounds import Rounds
from rails_ray.serving.engine import Answered
from rails_ray.serving.following import Follower
from rails_ray.serving.gpu_faults import check_gpu
from rails_ray.serving.held_shards import HeldShards
from rails_ray.serving.http.access import Access
from rails_ray.serving.http.api import ALWAYS, api_of
from rails_ray.serving.http.instruments import PrometheusMetrics
from rails_ray.serving.http.items import CHANGES_NONE, check_who_changes
from rails_ray.serving.http.keys import KeysFile
from rails_ray.serving.http.limits import MAX_BODY_BYTES, MAX_REQUESTS
from rails_ray.serving.http.origins import checked
from rails_ray.serving.http.ports import check_port
from rails_ray.serving.http.refusals import refused_with
from rails_ray.serving.http.running import Running, nothing, running
from rails_ray.serving.item_changes import ItemChanges, WaitingChanges
from rails_ray.serving.loaded import Loaded
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.room import check_room
from rails_ray.serving.short_work import ShortWork
from rails_ray.serving.traffic import Traffic

LOOK_S = 1.0  # between two looks at the file of keys

Value = TypeVar("Value")


class SingleProcessServer:
    """The contract of `Server`: a version in this process, one search at a time, in a thread unless it is short.

    Args:
        keys_file: file of API keys; None lets everyone in.
        ranker_path: import path of the version's heavy ranker, which `/v1/index` returns.
        shadow_fraction, on_search: as in `Traffic`.
        allowed_origins: origins whose pages may ask.
        follow_s: seconds between two looks for another version in the storage; None to serve this one.
        changes_items: whether keys with the scope admin may add and delete items.
        num_processes: how many such servers load a version at the same time on this machine.

    Raises:
        ValueError: if the file of keys lets nobody in, an origin is none, or anyone might change items.
    """

    def __init__(
        self,
        version: LocalVersion,
        keys_file: str | None = None,
        *,
        ranker_path: str | None = None,
        shadow_fraction: float = 0.0,
        allowed_origins: Sequence[str] = (),
        on_search: Callable[[str, SearchRequest], None] | None = None,
        follow_s: float | None = None,
        changes_items: bool = False,
        num_processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_who_changes(changes_items, keys_file)
        self.version, self.loaded = version, version.loaded
        self._keys_file = None if keys_file is None else KeysFile(keys_file)
        self._ranker_path = ranker_path
        self.allowed_origins = checked(allowed_origins)
        self._clock, self._num_processes = clock, num_processes
        self._looked_at, self._access = -math.inf, Access(None, MAX_BODY_BYTES, MAX_REQUESTS)
        self._thread = torch_pool(1, "search")
        # By method, and by the bits of k.
        self._kinds = defaultdict[tuple[str | None, int], ShortWork](lambda: ShortWork(threads=self._thread))
        self.instruments = PrometheusMetrics()
        search = partial(self._search, self.loaded)
        self.traffic = Traffic(search, self.loaded.engine, self.instruments, shadow_fraction, on_search)
        self.keys_problem: str | None = None
        if (keys := self.access.keys) is not None and not keys.known:
            raise ValueError(self.keys_problem)
        storage, allowed = self.served.storage, self.served.allowed.named
        self.follower = None if follow_s is None else Follower(self, storage, follow_s)
        self.changes = WaitingChanges(ItemChanges(storage, allowed, follow_s)) if changes_items else None

    @property
    def access(self) -> Access:
        """The contract of `Server`, by what the file of keys said within the last second."""
        if self._keys_file is not None and self._clock() >= self._looked_at + LOOK_S:
            keys, self.keys_problem = self._keys_file.look()
            self._looked_at, self._access = self._clock(), Access(keys, MAX_BODY_BYTES, MAX_REQUESTS)
        return self._access

    @property
    def served(self) -> Version:
        """The contract of `Follows`."""
        return self.loaded.version

    def prepare(self, version: Version) -> Callable[[], None]:
        """The contract of `Follows`."""
        version.family.check_code(has_ranker=self.version.ranker is not None)
        check_room(self._num_processes * self.loaded.bytes_to_load(version), version.name)
        loaded = self.loaded.followed_by(version)
        loaded.check()
        return partial(self._switch, loaded)

    def _switch(self, loaded: Loaded) -> None:
        """Answer from another version; searches that have begun end with theirs."""
        self.loaded = self.version.loaded = loaded
        self.traffic = self.traffic.after(partial(self._search, loaded), loaded.engine)

    def note_refused(self, is_refused: bool) -> None:
        """The contract of `Follows`."""
        self.traffic.metrics.refused(is_refused)

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """The contract of `Server`."""
        loaded = self.loaded
        return await self._in_turn(loaded.engine.explain(request), loaded.held)

    async def health(self) -> dict[str, Any]:
        """The contract of `Server`."""
        device = self.loaded.shards[0].device
        if device != "cpu":
            await asyncio.get_running_loop().run_in_executor(self._thread, check_gpu, device)
        facts, refused = self.loaded.engine.facts, None if self.follower is None else self.follower.refused
        problems = [problem for problem in (self.keys_problem, refused) if problem is not None]
        warning = {"warning": "; ".join(problems)} if problems else {}
        return {"status": "ok", "version": facts["version"], "num_shards": facts["num_shards"], **warning}

    def index(self) -> dict[str, Any]:
        """The contract of `Server`."""
        traffic = self.traffic
        follows_every_s = None if self.follower is None else self.follower.every_s
        own: dict[str, Any] = {"ranker": self._ranker_path, "follows_every_s": follows_every_s}
        own |= {"gpu_scans": self.loaded.held.gpu_scans, "indexes_on_cpu": self.loaded.held.indexes_on_cpu}
        return {**traffic.engine.facts, **own, **traffic.facts}

    @property
    def version_name(self) -> str:
        """The contract of `Server`."""
        return self.served.name

    async def embed(self, texts: Sequence[str], *, are_items: bool = False) -> NDArray[np.float32]:
        """The contract of `Server`."""
        embed = partial(self.loaded.engine.embed, texts, are_items=are_items)
        return await asyncio.get_running_loop().run_in_executor(self._thread, embed)

    async def upsert(self, request: ItemsRequest) -> ItemsResponse:
        """The contract of `Server`."""
        return await self._changed("upsert", request)

    async def delete(self, request: DeleteItemsRequest) -> ItemsResponse:
        """The contract of `Server`."""
        return await self._changed("delete", request)

    async def _changed(self, method: str, request: ItemsRequest | DeleteItemsRequest) -> ItemsResponse:
        if self.changes is None:
            raise UnsupportedError(CHANGES_NONE)
        found = await self.changes.carry_out(method, request)
        if self.follower is not None:
            self.follower.look_soon()
        return found

    async def _search(self, loaded: Loaded, request: SearchRequest) -> Answered:
        rounds = loaded.engine.search(request)
        if self.version.ranker is not None:  # which one search at a time may ask
            return await self._in_turn(rounds, loaded.held)
        kind = self._kinds[request.method, (request.k or 0).bit_length()]
        return await kind.done(partial(self.version.carry_out, rounds, loaded.held), len(request.queries))

    async def _in_turn(self, rounds: Rounds[Value], held: HeldShards) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.version.carry_out, rounds, held)


@contextmanager
def listening(
    single: SingleProcessServer,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    shared: socket.socket | None = None,
    at_start: Callable[[], None] = nothing,
) -> Iterator[Running]:
    """Serve inside the block, and yield the server.

    Args:
        shared, at_start: see `running`.

    Raises:
        UnavailableError: if the port is taken, or the server does not begin to listen.
    """
    if shared is None:
        check_port(host, port)
    if single.follower is not None:
        single.follower.look()  # a worker that replaces another one has what was current when the first was forked
    api = api_of(lambda: single)

    @api.get("/metrics", responses=refused_with(*ALWAYS))
    async def metrics() -> Response:
        """Return what the server counted, as Prometheus reads it."""
        return Response(single.instruments.text(), media_type="text/plain; version=0.0.4")

    with running(api, host=host, port=port, shared=shared, at_start=at_start) as server:
        try:
            if single.follower is not None:
                single.follower.start()
            yield server
        finally:
            if single.follower is not None:
                single.follower.stop()
