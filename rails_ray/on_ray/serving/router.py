"""The router: HTTP in, all shards asked at once, HTTP out; `serving.engine` decides what is asked and answered.

The query side of the model is part of the router: a call to another deployment costs more than most encoders do.

No annotation here may be a string: FastAPI and Ray read them.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve as ray_serve
from ray.serve.handle import DeploymentHandle

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import BusyError, UnavailableError
from rails_ray.families.version import Version
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.serving.in_router import ShardsInRouter
from rails_ray.on_ray.serving.instruments import RayMetrics
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.ranker import RankerCaller
from rails_ray.on_ray.serving.transport.replicas import Replicas
from rails_ray.on_ray.serving.transport.shards import Shards
from rails_ray.schema.requests import ExplainRequest, SearchRequest
from rails_ray.schema.responses import ExplainResponse
from rails_ray.serving.engine import Answered, Engine, Limits
from rails_ray.serving.heap import trim
from rails_ray.serving.http import logs, query_log
from rails_ray.serving.http.access import Access
from rails_ray.serving.http.api import Server, api_of
from rails_ray.serving.http.keys import KeysFile
from rails_ray.serving.traffic import Traffic
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.leases import Lease


def _router() -> Server:
    """This replica's router, which does not exist yet when the application is made."""
    router: Any = ray_serve.get_replica_context().servable_object
    found: Server = router
    return found


api = api_of(_router)


@ray_serve.deployment(name="Router")
@ray_serve.ingress(api)
class Router:
    """
    Args:
        shards: handles of the shards, by number; none if routers hold them.
        args: arguments of the application, with the version set.
        ranker: handle of the heavy ranker; None for none.
    """

    def __init__(
        self,
        shards: list[DeploymentHandle[Any]],
        args: ServeArgs,
        ranker: DeploymentHandle[Any] | None = None,
    ) -> None:
        logs.to_stderr()
        allowed = AllowedCode(tuple(args.allow_code))
        version = Version.published(Storage(args.storage), args.version, allowed)
        self.lease = Lease(version.storage, lambda: version.name)
        self.lease.look()
        self.renewing: asyncio.Task[None] | None = None
        caller = None
        if ranker is not None:
            assert args.ranker is not None
            caller = RankerCaller(ranker, args.ranker.timeout_s, args.ranker.max_in_flight)
        identity = version.manifest.contents_sha256
        device = reserved_device()
        self.shards: Shards | ShardsInRouter
        if args.shards_in_routers:
            self.shards = ShardsInRouter(version, device, caller)
            trim()
        else:
            direct = [Replicas(shard, identity) for shard in shards]
            self.shards = Shards(shards, version.name, identity, args.timeout_s, caller, direct)
        limits = Limits(
            max_queries=args.max_queries, max_answered_items=args.max_answered_items, deadline_s=args.deadline_s
        )
        self.engine = Engine(
            version,
            cutoff=args.cutoff,
            calibration=args.calibration,
            search=args.search,
            limits=limits,
            device=device,
            has_ranker=caller is not None,
        )
        noting = query_log.noting(args.log_queries)
        self.traffic = Traffic(self._search, self.engine, RayMetrics(), args.shadow_fraction, noting)
        self.args, self.allowed_origins = args, args.allow_origins
        self.keys_file = None if args.keys_file is None else KeysFile(args.keys_file)
        self.keys_problem: str | None = None
        self.access = self._look_at_keys()
        self.asking_health: asyncio.Task[list[Any]] | None = None

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """The contract of `Server`."""
        return await self.shards.carry_out(self.engine.explain(request))

    async def health(self) -> dict[str, Any]:
        """The contract of `Server`."""
        if self.asking_health is None or self.asking_health.done():
            self.asking_health = asyncio.create_task(self.shards.num_items())
        shards = await asyncio.shield(self.asking_health)  # one check for all concurrent callers
        # A shard whose queue is full is there: nothing is to be restarted.
        missing = [f"shard {number}" for number, answer in enumerate(shards) if not isinstance(answer, int | BusyError)]
        if missing:
            raise UnavailableError(f"{len(shards)} shards must answer, got none from {', '.join(missing)}")
        warning = {} if self.keys_problem is None else {"warning": self.keys_problem}
        return {"status": "ok", "version": self.engine.facts["version"], "num_shards": len(shards), **warning}

    def index(self) -> dict[str, Any]:
        """The contract of `Server`."""
        ranker = None if self.args.ranker is None else self.args.ranker.path
        return {**self.engine.facts, "ranker": ranker, **self.traffic.facts}

    @property
    def version_name(self) -> str:
        """The contract of `Server`."""
        name: str = self.engine.facts["version"]
        return name

    async def embed(self, texts: Sequence[str], *, are_items: bool = False) -> NDArray[np.float32]:
        """The contract of `Server`."""
        return await asyncio.to_thread(self.engine.embed, texts, are_items=are_items)

    async def check_health(self) -> None:
        """Encode an example query, ask the shards that are here, look for the others, and read the keys again.

        The lease is renewed in the background, as a router must not end for storage that does not answer.
        """
        if self.renewing is None or self.renewing.done():
            self.renewing = asyncio.create_task(asyncio.to_thread(self.lease.look))
        self.shards.look_soon()
        encoded = await asyncio.to_thread(self.engine.encoder.check)
        await asyncio.to_thread(self.shards.check, encoded.state)
        self.access = await asyncio.to_thread(self._look_at_keys)

    async def _search(self, request: SearchRequest) -> Answered:
        return await self.shards.search(self.engine.search(request), request)

    def _look_at_keys(self) -> Access:
        """The access rules from now on. A new problem with the file of keys is logged once."""
        keys, problem = None, None
        if self.keys_file is not None:
            keys, problem = self.keys_file.look()
        if problem is not None and problem != self.keys_problem:
            logging.getLogger("ray.serve").error(problem)
        self.keys_problem = problem
        return Access(keys, self.args.max_body_bytes, self.args.max_requests)
