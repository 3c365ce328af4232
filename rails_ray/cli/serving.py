"""Serve a version over HTTP."""

import dataclasses
import math
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.filesize import decimal

from rails_ray.cli.base import EXIT_FAILED, AllowsCode, Stored, fail, load, out
from rails_ray.cli.until_stopped import on_signals, telling
from rails_ray.paths import expanded
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from rails_ray.schema.ranker import RankerConfig
from rails_ray.schema.requests import CutoffKind

if TYPE_CHECKING:
    from rails_ray.on_ray.environment import ProxyPorts

LOOK_S = 1.0  # between two looks at the file of keys
WHERE = tyro.conf.create_mutex_group(required=False, title="where shards are")
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # of prometheus_client, which reads it when it is imported


@dataclass(frozen=True, kw_only=True)
class RankerOptions(RankerArgs, RankerPlacement):
    """The heavy ranker: which one, how it is called, and where it runs.

    Args:
        path: Import path, MODULE:NAME. If left out: the version's own.
        folder: What it reads. If left out: the version's own, or nothing.
    """


@dataclass(frozen=True, kw_only=True)
class Haproxy:
    """Ports that profile production opens on each machine, next to the one of the requests.

    Args:
        stats_port: HAProxy's statistics, on all interfaces. If left out: RAY_SERVE_HAPROXY_STATS_PORT, or 8404.
        metrics_port: HAProxy's metrics, on all interfaces. If left out: RAY_SERVE_HAPROXY_METRICS_PORT, or 9101.
        fallback_port: Ray's own proxy, which HAProxy asks if it knows no router. If left out:
            RAY_SERVE_FALLBACK_PROXY_HTTP_PORT, or 8500.
    """

    stats_port: int | None = None
    metrics_port: int | None = None
    fallback_port: int | None = None


@dataclass(frozen=True, kw_only=True)
class Serve(AllowsCode, Stored):
    """Serve an index version over HTTP until Ctrl-C, or print a config for `serve deploy`.

    Args:
        version: A published version. If left out: the current one.
        keys_file: File with one API key a line. A request must carry one of them as its bearer token. You may edit the
            file while the server runs: a missing or empty file lets nobody in, a malformed one keeps the last good
            keys.
        allow_anonymous: Answer anyone who can reach the port, without keys.
        profile: local: loopback only. production: all interfaces, HAProxy and Serve's faster settings; HAProxy also
            opens the ports of --haproxy.
        haproxy: Ports of profile production, next to the one of the requests.
        host: Address to listen on. If left out: 127.0.0.1, or 0.0.0.0 in production.
        port: HTTP port.
        replicas: Replicas of the router and of each shard that is apart. If left out: 1, or 2 in production, so that
            one may die.
        max_replicas: Most replicas when autoscaling on load. If left out: no autoscaling.
        shards_in_routers: Each router holds all shards and asks them without a call to another process, which a client
            that asks alone gains by; the whole version must fit into the memory of each replica. If neither this nor
            --shards-apart is given, routers hold a version of at most 64 MB, unless --follow, --max-replicas or GPUs
            are given.
        shards_apart: Each shard has replicas of its own.
        cpus: CPUs that each replica reserves.
        gpus: GPUs that each replica of a shard reserves, or each router with --shards-in-routers; may be a part of one.
        router_gpus: GPUs that each router without shards reserves to encode queries; may be a part of one. A CPU
            encodes short texts as fast.
        nodes: Machines that can hold replicas, over which those of the router and of each shard are spread evenly. If
            left out: those of the cluster, or 1 with --print-config.
        cutoff: Cut-off for requests that name none: its name and value. If left out: the version's.
        shadow_fraction: Fraction of the searches by an approximate method that are searched again exactly in the
            background; /v1/index and the metrics tell their recall.
        allow_origins: Origins whose pages may ask from a browser, such as https://shop.example, or * for any. If left
            out: none.
        log_queries: Log each search with its queries and the id of its request. By default no query is logged.
        ranker: The heavy ranker, which a request's budget pays for. If left out: the one that a version of RBE was made
            with.
        single: One machine without Ray: same API, same answers, from one process, or from --workers.
        workers: Processes of --single that answer at the port, each with its share of the cores. They share the memory
            of the version. One that ends is replaced.
        follow: Serve whatever version is current, also after another one is published or rolled back to, without a
            restart. One that cannot be served is refused, and the former one goes on; /v1/health tells.
        follow_s: Seconds between two looks at what is current.
        change_items: Answer POST and DELETE of /v1/items, for keys with the scope admin, which change the current
            version in the storage.
        print_config: Print a config for `serve deploy`, and exit.
    """

    version: str | None = None
    keys_file: str | None = None
    allow_anonymous: bool = False
    profile: Literal["local", "production"] = "local"
    haproxy: Haproxy = field(default_factory=lambda: Haproxy())
    host: str | None = None
    port: int = 8000
    replicas: int | None = None
    max_replicas: int | None = None
    shards_in_routers: Annotated[bool, tyro.conf.FlagCreatePairsOff, WHERE] = False
    shards_apart: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(aliases=("--no-shards-in-routers",)), WHERE
    ] = False
    cpus: float = 0.1
    gpus: float = 0
    router_gpus: float = 0
    nodes: int | None = None
    cutoff: tuple[CutoffKind, float] | None = None
    shadow_fraction: float = 0
    allow_origins: tuple[str, ...] = ()
    log_queries: bool = False
    ranker: RankerOptions = field(default_factory=RankerOptions)
    single: Annotated[bool, tyro.conf.arg(aliases=("--lite",))] = False
    workers: int = 1
    follow: bool = False
    follow_s: float = 5.0
    change_items: bool = False
    print_config: bool = False

    def run(self) -> None:
        self._check_follow()
        if self.single:
            from rails_ray.cli.serving_single import serve_single

            self._check_single()
            serve_single(self)
            return
        if self.workers != 1:
            raise ValueError(
                f"--workers must be given with --single, got {self.workers} alone: add --single, or take --replicas"
            )
        load("serve", on_cluster=not self.print_config)
        from rails_ray.on_ray.environment import ray_address, set_profile
        from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs, commented, fits_routers, serve_config
        from rails_ray.serving.http.ports import LOOPBACK, check_port, check_port_number

        host = self.host or ("0.0.0.0" if self.profile == "production" else "127.0.0.1")
        if self.profile == "local" and host not in LOOPBACK:
            raise ValueError(f"profile local must listen on loopback, got --host {host}: use --profile production")
        is_production = self.profile == "production"
        is_own_cluster = not self.print_config and ray_address() is None
        if is_production and not self.print_config and not is_own_cluster:
            raise ValueError(
                "profile production must be set on all machines before Ray starts, got a running cluster "
                "(RAY_ADDRESS): set the variables that --print-config prints on all machines, and give its config to "
                "`serve deploy`"
            )
        check_port_number(self.port)
        ports = self._ports()
        if is_own_cluster:
            set_profile(self.profile, ports)  # Ray Serve reads it when it is first imported, below
        from rails_ray.allowed_code import AllowedCode
        from rails_ray.cli import rendering
        from rails_ray.families.version import Version
        from rails_ray.on_ray import liveness, nodes
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.serving.app import ranker_of_family, served
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.usage import size_of

        self.check_who_gets_in()
        cutoff = cutoff_of(self.cutoff)
        replicas = self.replicas if self.replicas is not None else 2 if is_production else 1
        placement = DeploymentSize(
            replicas=replicas,
            max_replicas=self.max_replicas,
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            router_gpus=self.router_gpus,
            nodes=self.nodes or (1 if self.print_config else nodes.rooms),
            ranker=self.ranker,
        )
        allowed = AllowedCode.given(self.allow_code).also(self.ranker.path)
        version = Version.published(Storage(self.storage), self.version, allowed)
        version.family.check_code(has_ranker=bool(self.ranker.path))
        size_bytes = size_of(version.described)
        fits = not self.shards_apart and fits_routers(size_bytes, placement, self.follows_every_s)
        ranker = self._ranker(ranker_of_family(version.family))
        arguments = ServeArgs(
            storage=str(version.storage),
            version=version.name,
            keys_file=None if self.keys_file is None else str(expanded(self.keys_file).absolute()),
            allow_anonymous=self.allow_anonymous,
            cutoff=cutoff,
            shards_in_routers=self.shards_in_routers or fits,
            shadow_fraction=self.shadow_fraction,
            allow_origins=list(self.allow_origins),
            follow_s=self.follows_every_s,
            change_items=self.change_items,
            log_queries=self.log_queries,
            ranker=ranker,
            allow_code=list(allowed.named),
        )
        if self.print_config:
            config = serve_config(arguments, placement, version.num_shards, host=host, port=self.port)
            print(commented(config, self.profile, ports), end="")
            return
        check_port(host, self.port)
        if is_production:
            ports.check_free(host)
        num_replicas = (1 + arguments.num_deployed(version.num_shards)) * (self.max_replicas or replicas)
        num_cpus = placement.num_cpus * (num_replicas + self.change_items) + (
            self.ranker.num_cpus * self.ranker.replicas if ranker else 0
        )
        with ExitStack() as stack:
            with rendering.spinner(out, f"deploy version {version.name}"):
                is_own = stack.enter_context(cluster(4 + math.ceil(num_cpus)))
                url = stack.enter_context(served(arguments, placement, host=host, port=self.port, leave_serve=is_own))
            check_stop = on_signals()  # in place of Ray's stack trace at SIGTERM
            tell = telling(arguments.keys_file)
            if arguments.shards_in_routers and not self.shards_in_routers:
                out.print(f"each router holds the whole version, {decimal(size_bytes)} (otherwise: --shards-apart)")
            self.say_where(url)

            def look() -> None:
                check_stop()
                tell()

            liveness.stay(look, fail, EXIT_FAILED)

    @property
    def follows_every_s(self) -> float | None:
        """Seconds between two looks at what is current; None to serve one version."""
        return self.follow_s if self.follow else None

    def _check_follow(self) -> None:
        """Raises:
        ValueError: for options that a server that follows cannot keep.
        """
        if not (math.isfinite(self.follow_s) and self.follow_s > 0):
            raise ValueError(f"--follow-s must be a number of seconds above 0, got {self.follow_s:g}")
        if self.follow_s != Serve.follow_s and not self.follow:
            raise ValueError(f"--follow-s must be given with --follow, got {self.follow_s:g} alone")
        if self.follow and self.version is not None:
            raise ValueError(f"--follow must be without --version, got {self.version}: leave one of them out")

    def _check_single(self) -> None:
        """Raises:
        ValueError: for options that one process cannot keep.
        """
        from rails_ray.serving.http.ports import LOOPBACK

        if self.host is not None and self.host not in LOOPBACK and self.allow_anonymous:
            raise ValueError(f"--single must listen on loopback without keys, got --host {self.host}: give --keys-file")
        if self.workers < 1:
            raise ValueError(f"--workers must be at least 1, got {self.workers}")
        if self.workers > 1 and self.gpus:
            raise ValueError(f"--workers must be 1 with --gpus, got {self.workers}: a GPU is not shared by a fork")
        given = {
            "--profile production": self.profile == "production",
            "--replicas": self.replicas not in (None, 1),
            "--max-replicas": self.max_replicas is not None,
            "--shards-in-routers": self.shards_in_routers,
            "--shards-apart": self.shards_apart,
            "--print-config": self.print_config,
            "--cpus": self.cpus != Serve.cpus,
            "--nodes": self.nodes is not None,
            "--router-gpus": self.router_gpus != Serve.router_gpus,
            "--haproxy options": self.haproxy != Haproxy(),
            "--ranker options": self.ranker != RankerOptions(path=self.ranker.path, folder=self.ranker.folder),
        }
        for name, is_given in given.items():
            if is_given:
                raise ValueError(
                    f"--single serves without Ray and must be without {name}, got both: leave one of them out"
                )

    def _ports(self) -> "ProxyPorts":
        """Raises:
        ValueError: for ports that cannot be.
        """
        from rails_ray.on_ray.environment import ProxyPorts, chosen_ports

        if self.profile != "production":
            if self.haproxy != Haproxy():
                raise ValueError(
                    f"--haproxy options must be given with --profile production, got --profile {self.profile}: leave "
                    "them out"
                )
            return ProxyPorts()
        ports = chosen_ports(dataclasses.asdict(self.haproxy), os.environ)
        ports.check_all_differ(self.port)
        return ports

    def check_who_gets_in(self) -> None:
        from rails_ray.serving.http.origins import checked

        checked(self.allow_origins)
        if self.change_items and self.allow_anonymous:
            raise ValueError("--change-items must be given with --keys-file, got --allow-anonymous")
        if not 0 <= self.shadow_fraction <= 1:
            raise ValueError(f"--shadow-fraction must be between 0 and 1, got {self.shadow_fraction:g}")
        if (self.keys_file is None) != self.allow_anonymous:
            given = "neither" if self.keys_file is None else "both"
            raise ValueError(f"give --keys-file, or --allow-anonymous to answer anyone, got {given}")

    def say_where(self, url: str) -> None:
        keys = "to anyone" if self.allow_anonymous else f"to holders of a key in {self.keys_file}"
        line = f"serving at {url} {keys} until Ctrl-C; API: {url}/openapi.json"
        out.print(line, highlight=False, soft_wrap=True)

    def _ranker(self, own: Any) -> Any:
        """The heavy ranker to deploy: the one that is named, or else the version's own; None for none."""
        from pydantic import TypeAdapter, ValidationError

        from rails_ray.serving.validation_messages import sentence

        named = self.ranker.at_absolute_folder()
        if own is None and not named.path:
            check_folder(named)
            return None
        chosen = {setting.name: getattr(named, setting.name) for setting in dataclasses.fields(RankerArgs)}
        chosen |= {} if named.path else {"path": own.path, "folder": named.folder or own.folder}
        try:
            return TypeAdapter(RankerArgs).validate_python(chosen)
        except ValidationError as error:
            name, _, rest = sentence(dict(error.errors()[0])).partition(" ")
            raise ValueError(f"--ranker.{name.replace('_', '-')} {rest}") from None


def check_folder(ranker: RankerConfig) -> None:
    """Raises:
    ValueError: for a folder of no ranker.
    """
    if ranker.folder and not ranker.path:
        raise ValueError(f"--ranker.folder must be given with --ranker.path, got {ranker.folder} alone")


def cutoff_of(given: tuple[str, float] | None) -> Any:
    """The default cut-off of a deployment.

    Raises:
        ValueError: if its value is out of range.
    """
    from pydantic import ValidationError

    from rails_ray.schema.requests import CutoffInput
    from rails_ray.serving.validation_messages import sentence

    if given is None:
        return None
    try:
        return CutoffInput(**named_cutoff(given))
    except ValidationError as error:
        raise ValueError(f"--cutoff {sentence(dict(error.errors()[0]))}") from None


def named_cutoff(cutoff: tuple[str, float]) -> dict[str, Any]:
    """A cut-off as the JSON of a request: top_k must be an integer there."""
    name, value = cutoff
    return {name: int(value) if name == "top_k" and value.is_integer() else value}
