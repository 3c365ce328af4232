"""What each command of `rails-ray` takes and does; `cli` parses them and turns errors into exit codes."""

import importlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import tyro
from rich.console import Console

from rails_ray.config import RunConfig
from rails_ray.errors import DamagedError
from rails_ray.recipes import by_name

STORAGE = "rails-ray-data"
DEFAULT_RECIPE = "emoji-mol"
DEFAULT_URL = "http://127.0.0.1:8000"

out = Console()
errors = Console(stderr=True)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What every command has that reads or writes storage."""

    storage: str = STORAGE
    """Folder, or s3://bucket/prefix, for everything that is made."""


@dataclass(frozen=True, kw_only=True)
class Quickstart(Stored):
    """Do the whole job on packaged data: train, encode, publish, serve, ask over HTTP, and measure."""

    steps: int | None = None
    """Training steps of each model; fewer are faster and worse."""
    port: int = 8000
    """HTTP port on 127.0.0.1."""
    keep: bool = False
    """Go on serving until Ctrl-C, and print a curl line."""

    def run(self) -> None:
        _load()
        from rails_ray.quickstart import quickstart

        quickstart(self.storage, num_steps=self.steps, port=self.port, keep=self.keep, console=out)


@dataclass(frozen=True, kw_only=True)
class Train(Stored):
    """Train a model by a recipe and store it as a run. Every field of the recipe can be overridden by its name."""

    recipe: tyro.conf.Positional[str] = DEFAULT_RECIPE
    """emoji-mol, text-mol, ml1m-sasrec-mol (Mixture of Logits); emoji-dot, text-dot, ml1m-sasrec (dot product)."""
    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """Name of the run, the same again to go on with one that was cut off; by default the recipe's name and the time."""
    workers: int = 2
    """Data-parallel workers; each takes a GPU where the cluster has enough of them."""
    checkpoint_s: float = 60.0
    """Seconds between two checkpoints: the most work that a crash can lose."""
    config: Annotated[tyro.conf.AvoidSubcommands[RunConfig], tyro.conf.arg(name="")] = field(
        default_factory=lambda: by_name(DEFAULT_RECIPE)
    )

    def run(self) -> None:
        _load()
        from rails_ray import on_ray, rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.storage.filesystem import timed_name

        name = self.run_name or timed_name(self.config.name)
        with rendering.bar(out, f"train {name}") as on_progress, cluster(self.workers + 2):
            run = on_ray.train(
                self.config,
                self.storage,
                run=name,
                num_workers=self.workers,
                checkpoint_s=self.checkpoint_s,
                on_progress=on_progress,
            )
        hit_rate = run.validation["hit_rate"]
        out.print(
            f"run {run.name}: validation hit rate@1 {hit_rate['1']:.4f}, hit rate@10 {hit_rate['10']:.4f}, "
            f"MRR {run.validation['mrr']:.4f}, {run.training['seconds']:.0f} s of training"
        )
        _next(f"rails-ray encode --run {run.name}", self.storage)


@dataclass(frozen=True, kw_only=True)
class Encode(Stored):
    """Encode the items of a run into the parts of an index version, which is not served before it is published."""

    run_name: Annotated[str, tyro.conf.arg(name="run")]
    """A run that `rails-ray train` made."""
    version: str | None = None
    """Name of the version, the same again to go on with one that was cut off; by default the run and the time."""
    shards: int = 2
    """Parts of the corpus that are searched side by side."""
    workers: int = 1
    """Encoders that work side by side; each takes a GPU where the cluster has enough of them."""
    part_items: int = 16_384
    """Items of a part, at most: the work that a crash can lose of each encoder."""

    def run(self) -> None:
        _load()
        from rails_ray import on_ray, rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.storage.filesystem import timed_name

        version = self.version or timed_name(self.run_name)
        with rendering.bar(out, f"encode {version}") as on_progress, cluster(self.workers + 2):
            encoded = on_ray.encode(
                self.storage,
                self.run_name,
                version=version,
                num_shards=self.shards,
                num_workers=self.workers,
                part_items=self.part_items,
                on_progress=on_progress,
            )
        out.print(f"version {encoded.version}: {encoded.num_items} items in {len(encoded.shard_items)} shards")
        _next(f"rails-ray publish --version {encoded.version}", self.storage)


@dataclass(frozen=True, kw_only=True)
class Publish(Stored):
    """Check an encoded version, write its manifest, and make it the current one."""

    version: str
    """A version that `rails-ray encode` made."""

    def run(self) -> None:
        _load()
        from rails_ray import rendering
        from rails_ray.on_ray.publishing import publish

        with rendering.bar(out, f"check {self.version}") as on_progress:
            manifest = publish(self.storage, self.version, on_file=partial(on_progress, note="files"))
        out.print(f"version {manifest.version} is current: {manifest.num_items} items, {len(manifest.parts)} parts")
        _next("rails-ray serve", self.storage)


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
        _load()
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


@dataclass(frozen=True, kw_only=True)
class Evaluate(Stored):
    """Measure a run or a version on held-out queries."""

    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """A run to evaluate."""
    version: str | None = None
    """A version to evaluate; by default the current one."""
    split: str = "test"
    """train, valid or test."""

    def run(self) -> None:
        _load()
        from rails_ray import on_ray, rendering
        from rails_ray.on_ray.cluster import cluster

        with rendering.spinner(out, "evaluate"), cluster():
            report = on_ray.evaluate(self.storage, run=self.run_name, version=self.version, split=self.split)
        name = self.run_name or self.version or "current version"
        out.print(rendering.reports([(name, report, None)], f"{report.num_queries} queries of split {report.split}"))


@dataclass(frozen=True, kw_only=True)
class ListVersions(Stored):
    """List all versions: which is current, which could be, which were cut off."""

    def run(self) -> None:
        from rails_ray import rendering
        from rails_ray.storage import versions
        from rails_ray.storage.filesystem import Storage

        out.print(rendering.versions(versions.listed(Storage(self.storage)), f"versions in {self.storage}"))


@dataclass(frozen=True, kw_only=True)
class ShowVersion(Stored):
    """Show what a version consists of."""

    version: tyro.conf.Positional[str | None] = None
    """A published version; by default the current one."""

    def run(self) -> None:
        from rails_ray import rendering
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_manifest

        out.print(*rendering.version(read_manifest(Storage(self.storage), self.version)), sep="\n")


@dataclass(frozen=True, kw_only=True)
class VerifyVersion(Stored):
    """Read every byte of a version and compare it with the manifest."""

    version: tyro.conf.Positional[str | None] = None
    """A published version; by default the current one."""

    def run(self) -> None:
        from rails_ray import rendering
        from rails_ray.storage import versions
        from rails_ray.storage.filesystem import Storage

        store = Storage(self.storage)
        manifest = versions.read_manifest(store, self.version)
        num_files = len(manifest.parts) + len(manifest.files)
        damages = []
        with rendering.bar(out, f"verify {manifest.version}") as on_progress:
            for done, damage in enumerate(versions.damages(store, manifest), start=1):
                on_progress(done, num_files, "files")
                damages += [damage] if damage else []
        for damage in damages:
            errors.print(f"rails-ray: {damage}", highlight=False, markup=False, soft_wrap=True)
        if damages:
            raise DamagedError(f"all {num_files} files of {manifest.version} must be whole, got {len(damages)} damaged")
        out.print(f"version {manifest.version}: {num_files} files, {manifest.num_items} items, all as published")


@dataclass(frozen=True, kw_only=True)
class Rollback(Stored):
    """Make an earlier version current again, by one write. A running server goes on with the version it began with."""

    version: tyro.conf.Positional[str | None] = None
    """A published version; by default the one that was current before the current one."""

    def run(self) -> None:
        from rails_ray.storage import versions
        from rails_ray.storage.filesystem import Storage

        manifest = versions.rollback(Storage(self.storage), self.version)
        out.print(f"version {manifest.version} is current: {manifest.num_items} items, {len(manifest.parts)} parts")


@dataclass(frozen=True)
class Index:
    """List, show, verify and roll back index versions."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[ListVersions, tyro.conf.subcommand("list")]
        | Annotated[ShowVersion, tyro.conf.subcommand("show")]
        | Annotated[VerifyVersion, tyro.conf.subcommand("verify")]
        | Annotated[Rollback, tyro.conf.subcommand("rollback")]
    ]

    def run(self) -> None:
        self.action.run()


def _load() -> None:
    """Import what takes seconds to import under a spinner."""
    with out.status("loading torch and Ray"):
        importlib.import_module("rails_ray.on_ray")


def _next(command: str, storage: str) -> None:
    where = "" if storage == STORAGE else f" --storage {storage}"
    out.print(f"next: {command}{where}", highlight=False, markup=False, emoji=False, soft_wrap=True)


Command = (
    Annotated[Quickstart, tyro.conf.subcommand("quickstart")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Encode, tyro.conf.subcommand("encode")]
    | Annotated[Publish, tyro.conf.subcommand("publish")]
    | Annotated[Serve, tyro.conf.subcommand("serve")]
    | Annotated[Query, tyro.conf.subcommand("query")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Index, tyro.conf.subcommand("index")]
)
