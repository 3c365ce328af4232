"""Serve a version over HTTP, and query a server."""

import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rails_ray.commands.base import EXIT_FAILED, STORAGE, Stored, errors, fail, load, out
from rails_ray.relevance.rankers.calling import RankerConfig, ranker_of

CutoffName = Literal["mass", "coverage", "nucleus", "probability", "score", "top_k"]
Search = Callable[..., dict[str, Any]]
DEFAULT_URL = "http://127.0.0.1:8000"
MORE_BY_BUCKETS = "the buckets looked up hold no more items; raise --num-probes to look up more"
MORE_BY_INDEX = "the index found no more items; raise --nprobe or --ef-search to look at more"


@dataclass(frozen=True, kw_only=True)
class Ranker:
    """The heavy ranker and where it runs.

    Args:
        path: Import path, MODULE:NAME. If left out: the version's own.
        folder: What it reads. If left out: the version's own, or nothing.
        replicas: Replicas of the ranker.
        cpus: CPUs that each replica reserves.
        gpus: GPUs that each replica reserves; may be a part of one.
        timeout_s: Seconds that a call may take, its wait for a place included.
        concurrency: Calls that a replica scores at once.
        max_in_flight: Calls of a router that are under way at once; others wait.
    """

    path: str = ""
    folder: str = ""
    replicas: int = 1
    cpus: float = 1
    gpus: float = 0
    timeout_s: float = 10
    concurrency: int = 1
    max_in_flight: int = 32


@dataclass(frozen=True, kw_only=True)
class Serve(Stored):
    """Serve an index version over HTTP until Ctrl-C, or print a config for `serve deploy`.

    Args:
        version: A published version. If left out: the current one.
        keys_file: File with one API key a line. A request must carry one of them as its bearer token. You may edit the
            file while the server runs: a missing or empty file lets nobody in, a malformed one keeps the last good
            keys.
        allow_anonymous: Answer anyone who can reach the port, without keys.
        profile: local: loopback only. production: all interfaces, HAProxy and Serve's faster settings; HAProxy also
            opens ports 8404 and 9101 on all interfaces.
        host: Address to listen on. If left out: 127.0.0.1, or 0.0.0.0 in production.
        port: HTTP port.
        replicas: Replicas of the router and of each shard. If left out: 1, or 2 in production, so that one may die.
        max_replicas: Most replicas when autoscaling on load. If left out: no autoscaling.
        cpus: CPUs that each replica reserves.
        gpus: GPUs that each replica reserves; may be a part of one.
        cutoff: Cut-off for requests that name none: its name and value. If left out: the version's.
        ranker: The heavy ranker, which a request's budget pays for. If left out: the one that a version of RBE was made
            with.
        print_config: Print a config for `serve deploy`, with one deployment per shard, and exit.
    """

    version: str | None = None
    keys_file: str | None = None
    allow_anonymous: bool = False
    profile: Literal["local", "production"] = "local"
    host: str | None = None
    port: int = 8000
    replicas: int | None = None
    max_replicas: int | None = None
    cpus: float = 0.1
    gpus: float = 0
    cutoff: tuple[CutoffName, float] | None = None
    ranker: Ranker = field(default_factory=lambda: Ranker())
    print_config: bool = False

    def run(self) -> None:
        load()
        from rails_ray.on_ray.environment import set_profile
        from rails_ray.on_ray.serving.plan import (
            LOOPBACK,
            Placement,
            RankerPlacement,
            ServeArgs,
            commented,
            serve_config,
        )

        host = self.host or ("0.0.0.0" if self.profile == "production" else "127.0.0.1")
        if self.profile == "local" and host not in LOOPBACK:
            raise ValueError(f"profile local must listen on loopback, got --host {host}: use --profile production")
        is_production = self.profile == "production"
        if is_production and not self.print_config and "RAY_ADDRESS" in os.environ:
            raise ValueError(
                "profile production must be set on all machines before Ray starts, got a cluster that runs "
                "(RAY_ADDRESS): deploy what --print-config prints, and see k8s/ for the variables"
            )
        if not self.print_config and "RAY_ADDRESS" not in os.environ:  # a cluster of our own
            set_profile(self.profile)  # Ray Serve reads it when it is first imported, below
        from contextlib import ExitStack

        from rails_ray import rendering
        from rails_ray.on_ray import liveness
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.serving.app import check_port, check_port_number, ranker_of_version, served
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_manifest

        if (self.keys_file is None) != self.allow_anonymous:
            came = "neither" if self.keys_file is None else "both"
            raise ValueError(f"give --keys-file, or --allow-anonymous to answer anyone, got {came}")
        cutoff = cutoff_of(self.cutoff)
        replicas = self.replicas if self.replicas is not None else 2 if is_production else 1
        placement = Placement(
            replicas=replicas,
            max_replicas=self.max_replicas,
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            ranker=RankerPlacement(replicas=self.ranker.replicas, num_cpus=self.ranker.cpus, num_gpus=self.ranker.gpus),
        )
        store = Storage(self.storage)
        manifest = read_manifest(store, self.version)
        ranker = self._ranker(ranker_of_version(store, manifest))
        num_shards = len(manifest.shard_items)
        arguments = ServeArgs(
            storage=str(store),
            version=manifest.version,
            keys_file=None if self.keys_file is None else str(Path(self.keys_file).expanduser().absolute()),
            allow_anonymous=self.allow_anonymous,
            cutoff=cutoff,
            ranker=ranker,
        )
        check_port_number(self.port)
        if self.print_config:
            config = serve_config(arguments, placement, num_shards, host=host, port=self.port)
            print(commented(config, self.profile), end="")
            return
        check_port(host, self.port)
        num_replicas = (1 + num_shards) * (self.max_replicas or replicas)
        num_cpus = placement.num_cpus * num_replicas + (self.ranker.cpus * self.ranker.replicas if ranker else 0)
        with ExitStack() as stack:
            with rendering.spinner(out, f"deploy version {manifest.version}"):
                is_own = stack.enter_context(cluster(4 + math.ceil(num_cpus)))
                url = stack.enter_context(served(arguments, placement, host=host, port=self.port, leave_serve=is_own))
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, in place of Ray's stack trace
            keys = "to anyone" if self.allow_anonymous else f"to holders of a key in {self.keys_file}"
            told = f"serving at {url} {keys} until Ctrl-C; API: {url}/openapi.json"
            out.print(told, highlight=False, soft_wrap=True)
            liveness.stay(_telling(arguments.keys_file), fail, EXIT_FAILED)

    def _ranker(self, own: Any) -> Any:
        """The heavy ranker to deploy: the one that is named, or else the version's own; None for none."""
        from pydantic import ValidationError

        from rails_ray.answering.schemas import sentence
        from rails_ray.on_ray.serving.plan import RankerArgs

        named = RankerConfig(path=self.ranker.path, folder=self.ranker.folder).at_absolute_folder()
        if own is None and not named.path:
            _check_folder(named)
            return None
        try:
            return RankerArgs(
                path=named.path or own.path,
                folder=named.folder or ("" if named.path else own.folder),
                timeout_s=self.ranker.timeout_s,
                concurrency=self.ranker.concurrency,
                max_in_flight=self.ranker.max_in_flight,
            )
        except ValidationError as error:
            name, _, told = sentence(dict(error.errors()[0])).partition(" ")
            raise ValueError(f"--ranker.{name.replace('_', '-')} {told}") from None


def _check_folder(ranker: RankerConfig) -> None:
    """Raises:
    ValueError: for a folder of no ranker.
    """
    if ranker.folder and not ranker.path:
        raise ValueError(f"--ranker.folder must stand beside --ranker.path, got {ranker.folder} alone")


def _telling(keys_file: str | None) -> Callable[[], None]:
    """A function that reports, at each call, what has changed about the file of keys."""
    from rails_ray.on_ray.serving.keys import KeysFile

    if keys_file is None:
        return lambda: None
    keys, told = KeysFile(keys_file), None

    def tell() -> None:
        nonlocal told
        problem = keys.look().problem
        if problem != told:
            told = problem
            if problem is None:
                out.print(f"the keys of {keys_file} are valid", highlight=False, soft_wrap=True)
            else:
                fail(problem)

    return tell


@dataclass(frozen=True)
class Query:
    """Query a running server, or a version in this process, with what its index takes: texts, users or a history,
    features, or a vector.

    Args:
        texts: Text queries.
        user_id: Users, by their ids in the index; one query each.
        history: Item ids in time order; one query.
        features: Features as NUMBER:VALUE, such as 17:0.5, or NUMBER for a value of 1; one query.
        embedding: The numbers of a vector; one query.
        k: Most items per query to count as kept.
        show: Items per query to show.
        cutoff: Name and value of the cut-off. If left out: the server's own.
        method: brute_force and two_pass are exact. per_embedding, average, combined, gated (mixtures only), ann (dot
            products only), surrogate (versions with one), lookup and ivf_lookup (components stored as codes) and
            inverted (SOLAR only) are approximate and say how far off an answer can be.
        num_probes: Buckets that inverted looks up in each chunk.
        nprobe: Lists that ivf_lookup, or an ivf index, scans.
        ef_search: Items in the beam of an hnsw index.
        calls: Budget of calls of the heavy ranker for each query. If left out: none but those that an index of RBE
            spends on a query.
        deadline_ms: With --calls: milliseconds after which the order is the index's.
        rounds: With --calls: rounds that the reranking is split into (AXN).
        url: Address of the server. If it needs an API key, set RAILS_RAY_API_KEY.
        local: Load the version into this process instead of asking a server.
        ranker: With --local: the heavy ranker. If left out: the one that a version of RBE was made with.
        storage: With --local: folder or s3://bucket/prefix that holds the version.
        version: With --local: a published version. If left out: the current one.
    """

    texts: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TEXT ...]")] = ()
    user_id: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    embedding: tuple[float, ...] = ()
    k: int = 1000
    show: int = 4
    cutoff: tuple[CutoffName, float] | None = None
    method: str = "brute_force"
    num_probes: int | None = None
    nprobe: int | None = None
    ef_search: int | None = None
    calls: int | None = None
    deadline_ms: float | None = None
    rounds: int = 1
    url: str = DEFAULT_URL
    local: bool = False
    ranker: RankerConfig = field(default_factory=RankerConfig)
    storage: str = STORAGE
    version: str | None = None

    def run(self) -> None:
        from rails_ray import rendering

        if not (self.texts or self.user_id or self.history or self.features or self.embedding):
            raise ValueError("give at least 1 query, got none")
        kinds, search = self._here() if self.local else self._at_url()
        names, queries = zip(*self.asked(kinds), strict=True)
        cutoff = None if self.cutoff is None else named_cutoff(self.cutoff)
        how: dict[str, Any] = {
            "method": self.method,
            "num_probes": self.num_probes,
            "nprobe": self.nprobe,
            "ef_search": self.ef_search,
        }
        budget = self.budget()
        best = search(queries, self.show, **how, **budget, cutoff={"top_k": self.show})
        cut = best
        if not budget:
            k = min(self.k, *(result["num_searched"] for result in best["results"] if result["error"] is None))
            cut = search(queries, k, **how, cutoff=cutoff)
        certified = _certified([result["certificate"] for result in best["results"]])
        out.print(rendering.answers(names, cut, best, f"version {cut['version']}, {self.method}: {certified}"))
        coverage = cut["coverage"]
        if coverage["num_chunks"] != coverage["chunks_trained"]:
            out.print(f"{coverage['chunks_trained']} of {coverage['num_chunks']} chunks of the model are trained")
        for name, result in zip(names, best["results"], strict=True):
            if result["is_short"]:
                out.print(f"{name!r}: {MORE_BY_BUCKETS if self.method == 'inverted' else MORE_BY_INDEX}")
            if result["is_known"] is False:
                out.print(f"training saw no part of {name!r}: this is the answer to an empty query")
            if result["error"] is not None:
                errors.print(f"rails-ray: {name!r}: {result['error']}", highlight=False, markup=False, soft_wrap=True)
            elif budget:
                out.print(f"{name!r}: {_told(result['budget'])}", highlight=False, markup=False, soft_wrap=True)

    def budget(self) -> dict[str, Any]:
        """The field `budget` of the request, if there is one.

        Raises:
            ValueError: if a part of it is given without --calls.
        """
        if self.calls is None:
            if self.deadline_ms is not None or self.rounds != 1:
                raise ValueError("--deadline-ms and --rounds must stand beside --calls, got none")
            return {}
        if self.cutoff is not None:
            raise ValueError(f"--cutoff must be left out beside --calls, got {self.cutoff[0]}")
        return {"budget": {"calls": self.calls, "deadline_ms": self.deadline_ms, "rounds": self.rounds}}

    def _at_url(self) -> tuple[dict[str, str], Search]:
        """The fields that the server's index takes, and what searches there."""
        from rails_ray import client

        return client.index(self.url)["query"], partial(client.search, self.url)

    def _here(self) -> tuple[dict[str, str], Search]:
        """The fields that a version takes, and what searches it in this process."""
        from rails_ray import local

        _check_folder(self.ranker)
        ranker = ranker_of(self.ranker) if self.ranker.path else None
        with out.status("loading the version"):
            version = local.open(self.storage, self.version, ranker=ranker)
        return version.facts["query"], lambda *asked, **how: version.search(*asked, **how).model_dump()

    def asked(self, kinds: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """The queries, each with the name to show for it.

        Args:
            kinds: type of each field of a query that the index takes.
        """
        asked: list[tuple[str, dict[str, Any]]] = [(text, {"text": text}) for text in self.texts]
        asked += [(f"user {user}", {"user_id": typed(user, kinds.get("user_id"))}) for user in self.user_id]
        if self.history:
            history = [typed(item, kinds.get("history")) for item in self.history]
            asked.append((f"after {' '.join(self.history)}", {"history": history}))
        if self.features:
            asked.append((" ".join(self.features), {"features": _features(self.features)}))
        if self.embedding:
            if not all(map(math.isfinite, self.embedding)):
                raise ValueError(f"--embedding must be finite numbers, got {' '.join(map(str, self.embedding))}")
            asked.append((f"vector of {len(self.embedding)} numbers", {"embedding": self.embedding}))
        return asked


def _told(budget: dict[str, Any]) -> str:
    """What became of a budget."""
    order = "the heavy ranker's order" if budget["is_reranked"] else "the index's order"
    reason = "" if budget["reason"] is None else f": {budget['reason']}"
    return f"{budget['calls_used']} calls, {order}{reason}"


def cutoff_of(given: tuple[str, float] | None) -> Any:
    """The default cut-off of a deployment.

    Raises:
        ValueError: if its value is out of range.
    """
    from pydantic import ValidationError

    from rails_ray.answering.schemas import CutoffInput, sentence

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


def _certified(certificates: list[dict[str, Any]]) -> str:
    """What the certificates of all lists together say."""
    gaps = [certificate["gap"] for certificate in certificates]
    if None in gaps:
        return "approximate"
    return "exact" if not max(gaps) else f"a missing item scores at most {max(gaps):.2g} more than the last item"


def typed(word: str, kind: str | None) -> str | int:
    """An id in the type that the index uses."""
    is_number = kind is not None and "int" in kind and word.removeprefix("-").isdecimal()
    return int(word) if is_number else word


def _features(words: tuple[str, ...]) -> dict[str, float]:
    """Feature values by feature number.

    Raises:
        ValueError: if a word is not NUMBER or NUMBER:VALUE, or a number comes twice.
    """
    values: dict[str, float] = {}
    for word in words:
        number, colon, value = word.partition(":")
        try:
            key, own = str(int(number)), float(value) if colon else 1.0
        except ValueError:
            own = math.nan
        if not math.isfinite(own):
            raise ValueError(f"--features must be numbers with finite values, such as 17:0.5, got {word!r}")
        if key in values:
            raise ValueError(f"--features must name each feature once, got {key} twice")
        values[key] = own
    return values
