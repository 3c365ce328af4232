"""The router: HTTP in, all shards asked at once, HTTP out; `serving.engine` decides what is asked and answered.

The query side of the model is part of the router: a call to another deployment costs more than most encoders do.

No annotation here may be a string: FastAPI and Ray read them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve as ray_serve
from ray.serve.handle import DeploymentHandle

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import BusyError, RailsRayError, UnavailableError, UnsupportedError
from rails_ray.families.version import Version
from rails_ray.on_ray.cluster import reserved_device, reserved_share
from rails_ray.on_ray.serving.in_router import ShardsInRouter
from rails_ray.on_ray.serving.instruments import RayMetrics
from rails_ray.on_ray.serving.items import ItemsCaller
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.ranker import RankerCaller
from rails_ray.on_ray.serving.transport.replicas import Replicas
from rails_ray.on_ray.serving.transport.shards import Shards
from rails_ray.schema.deployment import REQUEST_TIMEOUT_S
from rails_ray.schema.items import DeleteItemsRequest, ItemsRequest
from rails_ray.schema.requests import ExplainRequest, SearchRequest
from rails_ray.schema.responses import ExplainResponse, ItemsResponse
from rails_ray.serving.engine import Answered, Engine
from rails_ray.serving.following import Follower
from rails_ray.serving.golden import golden_search
from rails_ray.serving.gpu_room import check_gpu_room
from rails_ray.serving.heap import trim
from rails_ray.serving.http import logs, query_log
from rails_ray.serving.http.access import Access
from rails_ray.serving.http.api import Server, api_of
from rails_ray.serving.http.items import CHANGES_NONE
from rails_ray.serving.http.keys import KeysFile
from rails_ray.serving.request_limits import Limits
from rails_ray.serving.traffic import Traffic
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.leases import Lease


def _router() -> Server:
    """This replica's router, which does not exist yet when the application is made."""
    router: Any = ray_serve.get_replica_context().servable_object
    found: Server = router
    return found


api = api_of(_router)


@dataclass(frozen=True)
class RoutedVersion:
    """A version, what is made of requests for it, and its shards."""

    version: Version
    engine: Engine
    shards: Shards | ShardsInRouter


@ray_serve.deployment(name="Router")
@ray_serve.ingress(api)
class Router:
    """
    Args:
        shards: handles of the shards, by number; none if routers hold them.
        args: arguments of the application, with the version set.
        ranker: handle of the heavy ranker; None for none.
        items: handle of what changes items; None for none.
    """

    def __init__(
        self,
        shards: list[DeploymentHandle[Any]],
        args: ServeArgs,
        ranker: DeploymentHandle[Any] | None = None,
        items: DeploymentHandle[Any] | None = None,
    ) -> None:
        logs.to_stderr()
        self.args, self.allowed_origins = args, args.allow_origins
        self.handles, self.device, self.caller = shards, reserved_device(), None
        if ranker is not None:
            assert args.ranker is not None
            self.caller = RankerCaller(ranker, args.ranker.timeout_s, args.ranker.max_in_flight)
        self.items = None if items is None else ItemsCaller(items)
        self.current = self._begun()
        self.lease = Lease(Storage(args.storage), lambda: self.current.engine.version.name)
        self.lease.look()
        self.renewing: asyncio.Task[None] | None = None
        trim()
        self.follower = None
        if args.follow_s is not None:
            self.follower = Follower(self, self.served.storage, args.follow_s)
        self.loop: asyncio.AbstractEventLoop | None = None  # the replica's, once it is known
        noting, search = query_log.noting(args.log_queries), partial(self._search, self.current)
        self.traffic = Traffic(search, self.current.engine, RayMetrics(), args.shadow_fraction, noting)
        self.keys_file = None if args.keys_file is None else KeysFile(args.keys_file)
        self.keys_problem: str | None = None
        self.access = self._look_at_keys()
        self.asking_health: asyncio.Task[list[Any]] | None = None

    def _begun(self) -> RoutedVersion:
        """The version to begin with: the current one if the router follows, and that can be served; else the one that
        was deployed."""
        storage, allowed = Storage(self.args.storage), AllowedCode(tuple(self.args.allow_code))
        if self.args.follow_s is not None:
            try:
                return self._routed(Version.published(storage, None, allowed))
            except (RailsRayError, ValueError):  # which the follower refuses, and tells
                pass
        return self._routed(Version.published(storage, self.args.version, allowed))

    def _routed(self, version: Version, former: RoutedVersion | None = None) -> RoutedVersion:
        args, identity = self.args, version.manifest.contents_sha256
        shards: Shards | ShardsInRouter
        if args.shards_in_routers:
            held = None if former is None else former.shards
            held = held if isinstance(held, ShardsInRouter) else None
            shards = ShardsInRouter(version, self.device, self.caller, held, reserved_share())
        else:
            if version.num_shards != len(self.handles):
                raise ValueError(
                    f"version {version.name} must have {len(self.handles)} shards, as are deployed, got "
                    f"{version.num_shards}: deploy it anew"
                )
            if former is None or not version.has_model_of(former.version):
                check_gpu_room(version, {}, self.device, reserved_share(), encodes=True)
            wanted = None if args.follow_s is None else version.name
            direct = [Replicas(handle, identity, wanted) for handle in self.handles]
            shards = Shards(self.handles, version.name, identity, args.timeout_s, self.caller, direct)
        limits = Limits(
            max_queries=args.max_queries, max_answered_items=args.max_answered_items, deadline_s=args.deadline_s
        )
        is_deployed = version.name == args.version
        engine = Engine(
            version,
            cutoff=args.cutoff,
            calibration=args.calibration if is_deployed else None,
            filter_calibrations=args.filter_calibrations if is_deployed else None,
            search=args.search if is_deployed else None,
            limits=limits,
            device=self.device,
            has_ranker=self.caller is not None,
        )
        return RoutedVersion(version, engine, shards)

    @property
    def served(self) -> Version:
        """The contract of `Follows`."""
        return self.current.version

    def prepare(self, version: Version) -> Callable[[], None]:
        """The contract of `Follows`."""
        version.family.check_code(has_ranker=self.caller is not None)
        assert self.loop is not None  # set before anything is followed
        found = self._routed(version, self.current)

        async def opened() -> None:
            await found.shards.ready()
            await found.shards.carry_out(golden_search(found.engine))

        asyncio.run_coroutine_threadsafe(opened(), self.loop).result()
        return partial(self._switch, found)

    def _switch(self, found: RoutedVersion) -> None:
        """Answer from another version; searches that have begun end with theirs."""
        former, self.current = self.current, found
        self.traffic = self.traffic.after(partial(self._search, found), found.engine)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.call_later, REQUEST_TIMEOUT_S, former.shards.leave)

    def note_refused(self, is_refused: bool) -> None:
        """The contract of `Follows`."""
        self.traffic.metrics.refused(is_refused)

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """The contract of `Server`."""
        current = self.current
        return await current.shards.carry_out(current.engine.explain(request))

    async def health(self) -> dict[str, Any]:
        """The contract of `Server`."""
        current = self.current
        if self.asking_health is None or self.asking_health.done():
            self.asking_health = asyncio.create_task(current.shards.num_items())
        shards = await asyncio.shield(self.asking_health)  # one check for all concurrent callers
        # A shard whose queue is full is there: nothing is to be restarted.
        missing = [f"shard {number}" for number, answer in enumerate(shards) if not isinstance(answer, int | BusyError)]
        if missing:
            raise UnavailableError(f"{len(shards)} shards must answer, got none from {', '.join(missing)}")
        refused = None if self.follower is None else self.follower.refused
        problems = [problem for problem in (self.keys_problem, refused) if problem is not None]
        warning = {"warning": "; ".join(problems)} if problems else {}
        return {"status": "ok", "version": current.engine.facts["version"], "num_shards": len(shards), **warning}

    def index(self) -> dict[str, Any]:
        """The contract of `Server`."""
        traffic, ranker = self.traffic, None if self.args.ranker is None else self.args.ranker.path
        return {
            **traffic.engine.facts,
            "ranker": ranker,
            "follows_every_s": self.args.follow_s,
            "gpu_scans": self.current.shards.gpu_scans,
            "indexes_on_cpu": self.current.shards.indexes_on_cpu,
            **traffic.facts,
        }

    @property
    def version_name(self) -> str:
        """The contract of `Server`."""
        return self.served.name

    async def embed(self, texts: Sequence[str], *, are_items: bool = False) -> NDArray[np.float32]:
        """The contract of `Server`."""
        return await asyncio.to_thread(self.current.engine.embed, texts, are_items=are_items)

    async def upsert(self, request: ItemsRequest) -> ItemsResponse:
        """The contract of `Server`."""
        return await self._changed("upsert", request)

    async def delete(self, request: DeleteItemsRequest) -> ItemsResponse:
        """The contract of `Server`."""
        return await self._changed("delete", request)

    async def _changed(self, method: str, request: ItemsRequest | DeleteItemsRequest) -> ItemsResponse:
        if self.items is None:
            raise UnsupportedError(CHANGES_NONE)
        found = await self.items.carry_out(method, request)
        if self.follower is not None:
            self.follower.look_soon()
        return found

    async def check_health(self) -> None:
        """Encode an example query, ask the shards that are here, look for the others, and read the keys again.

        The lease is renewed in the background, as a router must not end for storage that does not answer.
        """
        if self.renewing is None or self.renewing.done():
            self.renewing = asyncio.create_task(asyncio.to_thread(self.lease.look))
        if self.follower is not None:
            self.loop = asyncio.get_running_loop()
            self.follower.start()
        current = self.current
        current.shards.look_soon()
        encoded = await asyncio.to_thread(current.engine.encoder.check)
        await asyncio.to_thread(current.shards.check, encoded.state)
        self.access = await asyncio.to_thread(self._look_at_keys)

    async def _search(self, routed: RoutedVersion, request: SearchRequest) -> Answered:
        return await routed.shards.search(routed.engine.search(request), request)

    def _look_at_keys(self) -> Access:
        """The access rules from now on. A new problem with the file of keys is logged once."""
        keys, problem = None, None
        if self.keys_file is not None:
            keys, problem = self.keys_file.look()
        if problem is not None and problem != self.keys_problem:
            logging.getLogger("ray.serve").error(problem)
        self.keys_problem = problem
        return Access(keys, self.args.max_body_bytes, self.args.max_requests)
