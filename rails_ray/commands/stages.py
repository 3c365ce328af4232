"""The stages as commands: train, encode, publish, evaluate, calibrate, and all of them in one."""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rails_ray.commands.base import Stored, errors, load, out, say_next
from rails_ray.config import DataConfig, RunConfig
from rails_ray.evaluation.gates import Gates
from rails_ray.on_ray.placing import Placing
from rails_ray.recipes import by_name

DEFAULT_RECIPE = "emoji-mol"


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
        load()
        from rails_ray.quickstart import quickstart

        quickstart(self.storage, num_steps=self.steps, port=self.port, keep=self.keep, console=out)


@dataclass(frozen=True, kw_only=True)
class OfRecipe(Stored):
    """What a command has that trains."""

    recipe: tyro.conf.Positional[str] = DEFAULT_RECIPE
    """emoji-mol, text-mol, text-transformer-mol, ml1m-sasrec-mol (Mixture of Logits); emoji-dot, text-dot,
    text-transformer-dot, ml1m-sasrec (dot product); text-dot-glas (with the GLaS regulariser); text-solar,
    features-solar, vector-solar (SOLAR)."""
    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """The name of the run, and of a pipeline's version; give it again to go on with the run. By default the recipe's
    name and the time."""
    workers: int = 2
    """Data-parallel workers. SOLAR trains so many chunks side by side."""
    use_gpu: bool | None = None
    """Each worker has a GPU; by default if the cluster has enough of them when the run begins (an autoscaling cluster
    may not have them yet). SOLAR uses a GPU if the cluster has one; --chunks.num-gpus says how many each chunk has, or
    what part of one."""
    checkpoint_s: float = 60.0
    """Seconds between two checkpoints: a crash loses no more work than that."""
    timeout_s: float = 600.0
    """Workers wait for one another so many seconds before all go on from the last checkpoint. SOLAR's wait for
    nobody."""
    resume: bool = False
    """Refuse to begin a new run. What a run has is never done again, with or without this."""
    chunks: Placing = field(default_factory=Placing)
    """Where the chunks of SOLAR are trained."""
    config: Annotated[tyro.conf.AvoidSubcommands[RunConfig], tyro.conf.arg(name="")] = field(
        default_factory=lambda: by_name(DEFAULT_RECIPE)
    )

    def check_resume(self) -> None:
        """Raises:
        ValueError: if the run was to be begun and was not.
        """
        from rails_ray.storage import runs
        from rails_ray.storage.filesystem import Storage

        if self.resume and not (self.run_name and runs.is_begun(Storage(self.storage), self.run_name)):
            raise ValueError(
                f"--resume needs the --run of one that was begun in {self.storage}, got {self.run_name!r}: leave "
                "--resume out to begin it"
            )


@dataclass(frozen=True, kw_only=True)
class Train(OfRecipe):
    """Train a model by a recipe and store it as a run. Every field of the recipe can be overridden by its name."""

    def run(self) -> dict[str, Any]:
        load()
        from rails_ray import on_ray, rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.storage.filesystem import timed_name

        name = self.run_name or timed_name(self.config.name)
        self.check_resume()
        with rendering.bar(out, f"train {name}") as on_progress, cluster(self.workers + 2):
            run = on_ray.train(
                self.config,
                self.storage,
                run=name,
                num_workers=self.workers,
                use_gpu=self.use_gpu,
                checkpoint_s=self.checkpoint_s,
                timeout_s=self.timeout_s,
                placing=self.chunks,
                on_progress=on_progress,
            )
        _show_pieces(run.name, run.training)
        hit_rate = run.validation["hit_rate"]
        out.print(
            f"run {run.name}: validation hit rate@1 {hit_rate['1']:.4f}, hit rate@10 {hit_rate['10']:.4f}, "
            f"MRR {run.validation['mrr']:.4f}, {run.training['seconds']:.0f} s of training"
        )
        say_next(f"rails-ray encode --run {run.name}", self.storage)
        return {
            "run": run.name,
            "hit_rate": hit_rate,
            "mrr": run.validation["mrr"],
            "seconds": round(run.training["seconds"], 3),
        }


@dataclass(frozen=True, kw_only=True)
class Encode(Stored):
    """Encode the items of a run into the parts of an index version, which is not served before it is published."""

    run_name: Annotated[str, tyro.conf.arg(name="run")]
    """A run that `rails-ray train` made."""
    version: str | None = None
    """The name of the version; give it again to go on with a version that was cut off. By default the run's name and
    the time."""
    shards: int = 2
    """Parts of the corpus that are searched side by side."""
    workers: int = 1
    """Encoders that work side by side."""
    use_gpu: bool | None = None
    """Each worker has a GPU; by default if the cluster has enough of them when encoding begins (an autoscaling cluster
    may not have them yet)."""
    part_items: int = 16_384
    """A part has at most so many items; a crash loses no more work of each worker than a part."""
    folder: str | None = None
    """The data whose items are encoded, newer data for example; by default those of the run."""
    new_codes: Literal["least_loaded", "predicted"] = "least_loaded"
    """SOLAR puts items that it was not trained for into buckets that are not full (least_loaded), or into those that it
    predicts for their text (predicted)."""
    min_chunks: int | None = None
    """Go on if at least so many chunks of SOLAR are trained; by default all must be."""

    def run(self) -> dict[str, Any]:
        load()
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
                use_gpu=self.use_gpu,
                part_items=self.part_items,
                data=_data(self.folder),
                new_codes=self.new_codes,
                min_chunks=self.min_chunks,
                on_progress=on_progress,
            )
        out.print(f"version {encoded.version}: {encoded.num_items} items in {len(encoded.shard_items)} shards")
        say_next(f"rails-ray publish --version {encoded.version}", self.storage)
        return {"version": encoded.version, "num_items": encoded.num_items, "shard_items": encoded.shard_items}


@dataclass(frozen=True, kw_only=True)
class Publish(Stored):
    """Check an encoded version, write its manifest, and make it the current one."""

    version: str
    """A version that `rails-ray encode` made."""

    def run(self) -> dict[str, Any]:
        load()
        from rails_ray import rendering
        from rails_ray.on_ray.publishing import publish

        with rendering.bar(out, f"check {self.version}") as on_progress:
            manifest = publish(self.storage, self.version, on_file=partial(on_progress, note="files"))
        out.print(f"version {manifest.version} is current: {manifest.num_items} items, {len(manifest.parts)} parts")
        say_next("rails-ray serve --allow-anonymous", self.storage)
        return {"version": manifest.version, "num_items": manifest.num_items, "num_parts": len(manifest.parts)}


@dataclass(frozen=True, kw_only=True)
class Evaluate(Stored):
    """Measure a run or a version on held-out queries."""

    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """A run to evaluate."""
    version: str | None = None
    """A version to evaluate, published or not; by default the current one."""
    split: str = "test"
    """train, valid or test."""
    folder: str | None = None
    """Data to evaluate on, newer ones say; by default those of the run or the version."""

    def run(self) -> dict[str, Any]:
        load()
        from rails_ray import on_ray, rendering
        from rails_ray.cutoffs.measuring import drift
        from rails_ray.on_ray.cluster import cluster

        with rendering.spinner(out, "evaluate"), cluster():
            report = on_ray.evaluate(
                self.storage, run=self.run_name, version=self.version, split=self.split, data=_data(self.folder)
            )
        name = self.run_name or self.version or "current version"
        out.print(rendering.reports([(name, report, None)], f"{report.num_queries} queries of split {report.split}"))
        if report.coverage is not None:
            out.print(rendering.coverage(report.coverage, "what the calibration of this version keeps"))
            warning = drift(report.coverage)
            if warning is not None:
                errors.print(f"rails-ray: warning: {warning}", highlight=False, markup=False, soft_wrap=True)
        return {"evaluated": name, **report.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Calibrate(Stored):
    """Calibrate a version's cut-offs by coverage on held-out queries, and measure them on others.

    A server reads the calibration when it starts."""

    version: str | None = None
    """A version to calibrate, published or not; by default the current one."""
    split: str = "valid"
    """Queries that calibrate: train, valid or test."""
    measured_on: str = "test"
    """Queries that measure what it keeps."""
    background: Literal["uniform", "sphere", "fitted"] = "uniform"
    """Scores of any item, in the distribution that makes queries comparable; fitted: to the version's own scores."""
    folder: str | None = None
    """Data to calibrate on, newer ones say; by default those of the version."""
    segments: int = 3
    """Groups of queries by tau_q that are each calibrated on their own."""
    plot: Path | None = None
    """PNG file; by default calibration-VERSION.png."""

    def run(self) -> dict[str, Any]:
        load()
        from rails_ray import on_ray, plotting, rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_described

        version = read_described(Storage(self.storage), self.version).version
        with rendering.spinner(out, f"calibrate {version}"), cluster():
            report = on_ray.calibrate(
                self.storage,
                version=version,
                split=self.split,
                measured_on=self.measured_on,
                background=self.background,
                num_segments=self.segments,
                data=_data(self.folder),
            )
        title = f"{report.num_queries} queries of split {self.split} calibrate, those of {self.measured_on} measure"
        out.print(rendering.calibration(report, f"version {version}: {title}"))
        for sentence in report.left_out:
            out.print(f"left out: {sentence}", highlight=False, soft_wrap=True, markup=False)
        path = self.plot or Path(f"calibration-{version}.png")
        plotting.calibration(report, f"version {version}", path)
        out.print(f"drawn in {path}", highlight=False, soft_wrap=True, markup=False)
        return {"calibrated": version, **dataclasses.asdict(report)}


def _data(folder: str | None) -> DataConfig | None:
    return None if folder is None else DataConfig(folder=folder)


@dataclass(frozen=True, kw_only=True)
class Pipeline(OfRecipe):
    """Train, encode, evaluate, and publish the version if it is good enough beside the current one."""

    shards: int = 2
    """Parts of the corpus that are searched side by side."""
    gates: Annotated[Gates, tyro.conf.arg(name="")] = field(default_factory=Gates)
    """What the version must reach on the test queries before it is published."""

    def run(self) -> dict[str, Any]:
        load()
        from rails_ray import rendering
        from rails_ray.evaluation.report import Report
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.pipelining import pipeline

        def show(report: Report, former: Report | None) -> None:
            rows = [("new version", report, None), *([("current version", former, None)] if former else [])]
            out.print(rendering.reports(rows, f"{report.num_queries} queries of split {report.split}"))

        self.check_resume()
        with cluster(self.workers + 2):
            done = pipeline(
                self.config,
                self.storage,
                run=self.run_name,
                num_workers=self.workers,
                use_gpu=self.use_gpu,
                num_shards=self.shards,
                gates=self.gates,
                checkpoint_s=self.checkpoint_s,
                timeout_s=self.timeout_s,
                placing=self.chunks,
                stage=partial(rendering.bar, out),
                on_report=show,
            )
        _show_pieces(done.run.name, done.run.training)
        manifest = done.manifest
        out.print(f"version {manifest.version} is current: {manifest.num_items} items, {len(manifest.parts)} parts")
        say_next("rails-ray serve --allow-anonymous", self.storage)
        return {
            "run": done.run.name,
            "version": manifest.version,
            "num_items": manifest.num_items,
            "hit_rate": done.report.hit_rate,
            "former_hit_rate": None if done.former is None else done.former.hit_rate,
        }


def _show_pieces(run: str, training: dict[str, Any]) -> None:
    """What each piece of a run came to, if it has several."""
    from rails_ray import rendering

    if "pieces" in training:
        out.print(rendering.pieces(training["pieces"], f"pieces of run {run}"))
