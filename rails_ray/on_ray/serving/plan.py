"""Plan of a deployment: the application's arguments, replicas and reservations, and the Serve config."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rails_ray.allowed_code import VARIABLE, AllowedCode
from rails_ray.errors import renaming
from rails_ray.on_ray.environment import ROUTER_PORTS, Profile, ProxyPorts, variables_of
from rails_ray.schema.deployment import REQUEST_TIMEOUT_S, RankerArgs, RankerPlacement, check_replica
from rails_ray.schema.items import MOST_CHANGES
from rails_ray.schema.requests import CutoffInput
from rails_ray.serving.http import origins
from rails_ray.serving.http.limits import ANSWER_S, DEADLINE_S, MAX_BODY_BYTES, MAX_REQUESTS
from rails_ray.serving.http.ports import LOOPBACK

NAME = "rails-ray"
SHARD, RANKER, ITEMS = "Shard", "Ranker", "Items"  # how the names of deployments begin
IMPORT_PATH = "rails_ray.serve_app:build"  # a name in what is installed, not in the repository around it
# Requests at once in a replica. A router accepts every request, and `access` refuses quickly what has no place: Ray
# would queue it, and a slow body would hold a place.
ONGOING_OF_ROUTER, ONGOING_OF_SHARD = 2000, 32
# Calls that may wait at each replica of a shard, and in each router by Serve's handle. It is enough for two full
# routers whose requests cannot be batched.
QUEUED_OF_SHARD = 128
POLICY_OF_SHARD = "rails_ray.on_ray.serving.scaling:by_all_calls"  # Serve's controller imports it
SMALL_BYTES = 64_000_000  # of a version that is searched in milliseconds
TARGET_ONGOING = 8  # average per replica above which autoscaling adds one: a quarter of a shard's limit


class ServeArgs(BaseModel):
    """The arguments of `rails_ray.serve_app:build`."""

    model_config = ConfigDict(extra="forbid")

    storage: str
    version: str | None = Field(None, description="by default the current one")
    keys_file: str | None = Field(None, description="on the router's machines; one API key a line")
    allow_anonymous: bool = Field(False, description="let in anyone who can reach the port, without keys")
    cutoff: CutoffInput | None = Field(None, description="for requests that name none; by default the version's")
    calibration: str | None = Field(None, description="file of the calibration; by default the version's current one")
    filter_calibrations: list[str] | None = Field(
        None, description="files of calibrations under filters; by default the version's current ones"
    )
    search: str | None = Field(None, description="file of the default search; by default the version's current one")
    max_body_bytes: int = Field(MAX_BODY_BYTES, ge=1, description="limit for a request")
    max_queries: int = Field(1024, ge=1, description="limit for a request")
    max_answered_items: int = Field(100_000, ge=1, description="limit on queries times k in a request")
    max_requests: int = Field(MAX_REQUESTS, ge=1, description="most that a router answers at once; others get 429")
    timeout_s: float = Field(10, gt=0, description="how long a shard may take to answer")
    deadline_s: float = Field(
        DEADLINE_S, gt=0, lt=ANSWER_S, description="when to stop waiting for the heavy ranker; answers are due later"
    )
    shards_in_routers: bool = Field(
        False, description="each router holds all shards and asks them without a call to another process"
    )
    shadow_fraction: float = Field(
        0, ge=0, le=1, description="share of approximate searches that are searched again exactly, to measure recall"
    )
    follow_s: float | None = Field(
        None,
        gt=0,
        description="seconds between two looks for another current version, which is then served; by "
        "default the version of the start is served",
    )
    change_items: bool = Field(
        False, description="answer POST and DELETE of /v1/items, for keys with the scope admin, by a replica of its own"
    )
    log_queries: bool = Field(False, description="log each search with its queries; by default no query is logged")
    ranker: RankerArgs | None = Field(None, description="the heavy ranker; by default the version's own, if any")
    allow_origins: list[str] = Field([], description="origins whose pages may ask, as https://shop.example; * for any")
    allow_code: list[str] = Field([], description=f"modules whose code the version's config may name; also {VARIABLE}")

    @field_validator("allow_origins")
    @classmethod
    def _check_origins(cls, allow_origins: list[str]) -> list[str]:
        return origins.checked(allow_origins)

    @field_validator("allow_code")
    @classmethod
    def _check_code(cls, allow_code: list[str]) -> list[str]:
        AllowedCode.given(allow_code, {})
        return allow_code

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.keys_file is None) != self.allow_anonymous:
            given = "neither" if self.keys_file is None else "both"
            raise ValueError(f"give keys_file, or allow_anonymous for a server without access control, got {given}")
        if self.change_items and self.allow_anonymous:
            raise ValueError("change_items must be given with keys_file, got allow_anonymous")
        return self

    def num_deployed(self, num_shards: int) -> int:
        """How many of a version's shards have a deployment of their own."""
        return 0 if self.shards_in_routers else num_shards


@dataclass(frozen=True, kw_only=True)
class DeploymentSize:
    """How many replicas each deployment has, and what each replica reserves.

    Args:
        replicas: replicas of the router and of each shard.
        max_replicas: most replicas when autoscaling on load; by default no autoscaling.
        num_cpus: CPUs that each replica reserves.
        num_gpus: GPUs, or part of one, that each replica reserves that holds shards: a shard's, or a router with all.
        router_gpus: those that each router reserves to encode queries, if it holds no shards. The CPU encodes short
            texts as fast.
        nodes: nodes that can hold replicas, all alike; or how many replicas with so many CPUs and GPUs each node is
            large enough for. The replicas of a deployment are spread over them, so that a node that is lost does not
            take all of them.
        ranker: where the heavy ranker runs, if there is one.
    """

    replicas: int = 1
    max_replicas: int | None = None
    num_cpus: float = 0.1
    num_gpus: float = 0
    router_gpus: float = 0
    nodes: int | Callable[[float, float], Sequence[float]] = 1
    ranker: RankerPlacement = field(default_factory=RankerPlacement)

    def __post_init__(self) -> None:
        check_replica(self.replicas, self.num_cpus, self.num_gpus)
        with renaming("num_gpus", "router_gpus"):
            check_replica(self.replicas, 0, self.router_gpus)
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas must be at least the {self.replicas} replicas, got {self.max_replicas}")
        if isinstance(self.nodes, int) and self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {self.nodes}")

    def spread(self, replicas: int, num_cpus: float, num_gpus: float) -> dict[str, int]:
        """Return Ray Serve's bound on the replicas of a deployment on one node: the least by which all have a place;
        none where one node must hold them all.

        Autoscaling does not raise it: with two replicas on two nodes, a third one waits for a third node.

        Args:
            num_cpus, num_gpus: what each replica reserves.
        """
        rooms = [math.inf] * self.nodes if isinstance(self.nodes, int) else self.nodes(num_cpus, num_gpus)
        bounds = (most for most in range(1, replicas) if sum(min(most, room) for room in rooms) >= replicas)
        bound = next(bounds, None)
        return {} if bound is None else {"max_replicas_per_node": bound}


def fits_routers(size_bytes: int, placement: DeploymentSize, follow_s: float | None) -> bool:
    """Return whether routers hold the shards of a version by default: the version is small, no other version will
    follow it, and neither GPUs nor autoscaling are asked for.

    Args:
        size_bytes: of all files of the version.
    """
    is_scaled = placement.max_replicas is not None or placement.num_gpus > 0 or placement.router_gpus > 0
    return size_bytes <= SMALL_BYTES and follow_s is None and not is_scaled


def shard_name(shard: int) -> str:
    return f"{SHARD}{shard:03d}"


def deployments(
    placement: DeploymentSize, num_shards: int, ranker: RankerArgs | None = None, *, changes_items: bool = False
) -> dict[str, dict[str, Any]]:
    """Ray Serve's options for each deployment, by name."""

    def options(
        max_ongoing_requests: int, num_gpus: float, policy: str | None = None, queued: int | None = None
    ) -> dict[str, Any]:
        replicas: dict[str, Any] = {"num_replicas": placement.replicas}
        if placement.max_replicas is not None:
            replicas = {
                "autoscaling_config": {
                    "min_replicas": placement.replicas,
                    "max_replicas": placement.max_replicas,
                    "target_ongoing_requests": TARGET_ONGOING,
                    **({} if policy is None else {"policy": {"policy_function": policy}}),
                }
            }
        reserved = {"num_cpus": placement.num_cpus} | ({"num_gpus": num_gpus} if num_gpus else {})
        limits = {"max_ongoing_requests": max_ongoing_requests}
        limits |= {} if queued is None else {"max_queued_requests": queued}
        spread = placement.spread(placement.replicas, placement.num_cpus, num_gpus)
        return {**replicas, **spread, **limits, "ray_actor_options": reserved}

    shards = {
        shard_name(shard): options(ONGOING_OF_SHARD, placement.num_gpus, POLICY_OF_SHARD, QUEUED_OF_SHARD)
        for shard in range(num_shards)
    }
    of_router = placement.router_gpus if num_shards else placement.num_gpus  # a router without shards holds them all
    found = {"Router": options(ONGOING_OF_ROUTER, of_router)} | shards
    if changes_items:  # one replica, as changes at the same time would begin again and again
        limits = {"max_ongoing_requests": MOST_CHANGES, "max_queued_requests": MOST_CHANGES}
        found |= {ITEMS: {"num_replicas": 1, **limits, "ray_actor_options": {"num_cpus": placement.num_cpus}}}
    return found if ranker is None else found | {RANKER: _of_ranker(placement, ranker)}


def _of_ranker(placement: DeploymentSize, ranker: RankerArgs) -> dict[str, Any]:
    own = placement.ranker
    reserved = {"num_cpus": own.num_cpus} | ({"num_gpus": own.num_gpus} if own.num_gpus else {})
    return {
        "num_replicas": own.replicas,
        **placement.spread(own.replicas, own.num_cpus, own.num_gpus),
        "max_ongoing_requests": ranker.concurrency,
        "max_queued_requests": ranker.max_in_flight,
        "ray_actor_options": reserved,
    }


def http_options(host: str, port: int) -> dict[str, Any]:
    """Where and how Ray Serve listens."""
    return {"host": host, "port": port, "request_timeout_s": REQUEST_TIMEOUT_S}


def serve_config(
    args: ServeArgs, placement: DeploymentSize, num_shards: int, *, host: str, port: int
) -> dict[str, Any]:
    """The application as a config for `serve deploy` and for KubeRay's `serveConfigV2`."""
    return {
        "proxy_location": "EveryNode",
        "http_options": http_options(host, port),
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": NAME,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": args.model_dump(exclude_defaults=True),
                "deployments": [
                    {"name": name, **options}
                    for name, options in deployments(
                        placement, args.num_deployed(num_shards), args.ranker, changes_items=args.change_items
                    ).items()
                ],
            }
        ],
    }


def assignment(name: str, value: str) -> str:
    """An assignment of an environment variable in bash."""
    return f"{name}=" + (f"$'{value.encode('unicode_escape').decode()}'" if "\n" in value else value)


def _about_nodes(deployments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Comments on what is left of a deployment when a machine is lost."""
    if any("max_replicas_per_node" in deployment for deployment in deployments):
        return [
            "# A machine holds max_replicas_per_node of a deployment at most; a replica more waits for another machine."
        ]
    least = [own.get("num_replicas", own.get("autoscaling_config", {}).get("min_replicas")) for own in deployments]
    if max(least) > 1:
        return [
            "# For several machines print it with --nodes, so that none of them holds all replicas of a deployment."
        ]
    return []


def commented(config: dict[str, Any], profile: Profile, ports: ProxyPorts = ProxyPorts()) -> str:
    """A Serve config as YAML, with comments on what may be changed and what that does.

    Args:
        ports: what else profile `production` opens.
    """
    application = config["applications"][0]
    num_shards = sum(deployment["name"].startswith(SHARD) for deployment in application["deployments"])
    shards = f"in {num_shards} shards" if num_shards else "with all shards in each router"
    host = config["http_options"]["host"]
    lines = [
        f"# rails-ray {shards}, profile {profile}; made by `rails-ray serve --print-config`.",
        "# Deploy it:  serve deploy THIS_FILE --address http://HEAD:8265",
        "# A deployment that the version does not have is refused, and what was deployed before goes on serving;",
        "# a shard that is not named here runs with one replica: print anew for a version of more shards."
        if num_shards
        else "# each router reads the whole version, of any size: print anew for a larger one.",
    ]
    lines += [
        "#",
        "# Every machine of the cluster must have had these variables when Ray started on it:",
        *(f"#   {assignment(name, value)}" for name, value in variables_of(profile, ports).items()),
    ]
    calls = [
        "# Routers call each shard's replicas on ports that these choose, with a key of each: the machines must reach",
        "# each other on all ports, as Ray's own processes must.",
    ]
    lines += calls if num_shards else []
    lines += _about_nodes(application["deployments"])
    if profile == "production":
        routers = f"{ROUTER_PORTS[0]}-{ROUTER_PORTS[-1]}"
        lines += [
            "# HAProxy then takes requests in place of Ray's own proxy. A firewall or a NetworkPolicy must let in only",
            "# the port below, and none of these:",
            f"#   {ports.stats_port} and {ports.metrics_port}, on all interfaces: its statistics and metrics; no key",
            f"#   {routers}, on all interfaces: the routers, which ask for a key",
            f"#   {ports.fallback_port}, on the head, at the host below: Ray's own proxy; routers ask for a key",
        ]
    comments = {
        "proxy_location:": "a proxy on each machine that has a replica",
        "  host:": {"0.0.0.0": "all interfaces"}.get(
            host, "this machine only" if host in LOOPBACK else "one interface"
        ),
        "  request_timeout_s:": "then 408; more than shards may take",
        "  import_path:": "rails-ray must be installed on each machine",
        "  args:": "another value of any of them starts all replicas anew",
        "    allow_anonymous:": "no access control: only where none but the trusted can reach the port",
        "    keys_file:": "on each router's machine: a key a line, read again every ten seconds",
        "    shards_in_routers:": "each replica of the router has the memory of the whole version",
        "    follow_s:": "serve what is current, also after it changes, as long as it has as many shards",
        "    change_items:": "the storage must let this cluster write",
        "    version:": "the one to serve; without it, the one that is current when this is deployed",
        "  deployments:": "replicas and autoscaling change in place; reservations start replicas anew",
    }
    for line in yaml.safe_dump(config, sort_keys=False).splitlines():
        comment = next((text for start, text in comments.items() if line.startswith(start)), None)
        lines.append(line if comment is None else f"{line}  # {comment}")
    return "\n".join(lines) + "\n"
