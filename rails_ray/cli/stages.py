"""The stages as commands, but for encode: train, publish, evaluate, calibrate; quickstart runs several."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rails_ray.cli.base import AllowsCode, ExcludesSeen, Stored, errors, load, out, say_next, say_seen
from rails_ray.errors import RailsRayError
from rails_ray.families.config import DataConfig, RunConfig, import_paths
from rails_ray.families.recipes import by_name, names
from rails_ray.on_ray.resources import TrainResources
from rails_ray.training.evaluation.report import Report
from rails_ray.training.evaluation.seen import labelled

DEFAULT_RECIPE = "emoji-mol"
RECIPE_HELP = (
    f"One of {', '.join(names())}. In a name, mol stands for Mixture of Logits and dot for dot product. "
    "An option with a dot changes one field of the recipe. A .kind option replaces a part of the model: "
    "`--encoder.kind transformer --help` shows the options of that kind; a wrong kind lists the right ones."
)


@dataclass(frozen=True, kw_only=True)
class Quickstart(Stored):
    """Run every stage on packaged data: train, encode, publish, serve, query over HTTP, and measure."""

    steps: int | None = None
    """Training steps of each model; fewer are faster but train worse models. If left out: the recipes' own."""
    port: int = 8000
    """HTTP port on 127.0.0.1."""
    keep: bool = False
    """Keep serving until Ctrl-C, and print a curl command to try."""

    def run(self) -> None:
        load("quickstart")
        from rails_ray.cli.quickstart import quickstart

        quickstart(self.storage, num_steps=self.steps, port=self.port, keep=self.keep, console=out)


@dataclass(frozen=True, kw_only=True)
class OfRecipe(AllowsCode, Stored, ExcludesSeen):
    """The options of a command that trains.

    Args:
        run_name: Name of the run, and of the version that a pipeline makes. Give the name of an unfinished run to
            resume it. If left out: the recipe's name and the time.
        workers: Data-parallel workers. For SOLAR: how many chunks to train at once.
        use_gpu: Give each worker a GPU. If left out: yes, if the cluster has enough GPUs when the run begins (an
            autoscaling cluster may not have them yet). SOLAR uses a GPU if the cluster has one; --chunks.num-gpus sets
            each chunk's share.
        checkpoint_s: Seconds between checkpoints, and so the most work that a crash can lose.
        timeout_s: Seconds that workers wait for one another before all restart from the last checkpoint. SOLAR's
            workers do not wait for one another.
        resume: Fail unless --run names a run that was begun. A run resumes without this flag too.
        chunks: Where SOLAR's chunks are trained.
    """

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[RECIPE]", help=RECIPE_HELP)] = DEFAULT_RECIPE
    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    workers: int = 2
    use_gpu: bool | None = None
    checkpoint_s: float = 60.0
    timeout_s: float = 600.0
    resume: bool = False
    chunks: TrainResources = field(default_factory=TrainResources)
    config: Annotated[tyro.conf.AvoidSubcommands[RunConfig], tyro.conf.arg(name="")] = field(
        default_factory=lambda: by_name(DEFAULT_RECIPE)
    )

    def chosen(self) -> RunConfig:
        """The config, with what the options choose about seen items.

        Raises:
            ValueError: if one of them contradicts --data.exclude-seen.
        """
        own, data = self.excludes_seen, self.config.data
        if own is None:
            return self.config
        if data.exclude_seen not in (None, own):
            named = "--exclude-seen" if own else "--no-exclude-seen"
            raise ValueError(f"--data.exclude-seen must agree with {named}, got {data.exclude_seen}: give one of them")
        return dataclasses.replace(self.config, data=dataclasses.replace(data, exclude_seen=own))

    def check_can_begin(self) -> None:
        """Look for mistakes before a cluster starts.

        Raises:
            ValueError: if there are no data, or `resume` is set and no such run was begun.
        """
        from rails_ray.families.data import check_has_data
        from rails_ray.storage import runs
        from rails_ray.storage.filesystem import Storage

        check_has_data(self.config)
        if self.resume and not (self.run_name and runs.is_begun(Storage(self.storage), self.run_name)):
            raise ValueError(
                f"--resume needs --run to name a run that was begun in {self.storage}, got {self.run_name!r}: leave "
                "--resume out to begin a new run"
            )


@dataclass(frozen=True, kw_only=True)
class Train(OfRecipe):
    """Train a model by a recipe and store it as a run. Options change the recipe's fields.

    Args:
        advise: At the end, train a mixture and a dot product of as many numbers for a tenth of the steps, 200 at most,
            and say which finds more. The run is stored before.
    """

    advise: bool = True

    def run(self) -> dict[str, Any]:
        load("train")
        from rails_ray import on_ray
        from rails_ray.cli import rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.storage import runs
        from rails_ray.storage.filesystem import Storage, timed_name

        name = self.run_name or timed_name(self.config.name)
        run_config = self.chosen()
        self.check_can_begin()
        store = Storage(self.storage)
        is_new = not (runs.is_begun(store, name) and runs.is_finished(store, name))
        with rendering.bar(out, f"train {name}") as on_progress, cluster(self.workers + 2):
            run = on_ray.train(
                run_config,
                self.storage,
                run=name,
                num_workers=self.workers,
                use_gpu=self.use_gpu,
                checkpoint_s=self.checkpoint_s,
                timeout_s=self.timeout_s,
                placing=self.chunks,
                allow_code=self.allow_code,
                on_progress=on_progress,
            )
            advice = self.advice(run.name, on_progress) if self.advise and is_new else None
        show_pieces(run.name, run.training)
        for line in validated(run.validation):
            out.print(f"run {run.name}: {line}, {run.training['seconds']:.0f} s of training")
        say_seen(run.validation.get("seen_items"), "valid")
        if advice is not None:
            out.print(advice, highlight=False, markup=False, soft_wrap=True)
        say_next(f"rails-ray encode --run {run.name}", self.storage, import_paths(self.config))
        return {
            "run": run.name,
            "hit_rate": run.validation["hit_rate"],
            "mrr": run.validation["mrr"],
            "seen_items": run.validation.get("seen_items"),
            "seconds": round(run.training["seconds"], 3),
            "advice": advice,
        }

    def advice(self, run: str, on_progress: Callable[[int, int, str], None]) -> str | None:
        """A sentence on what a dot product finds that stores as much as the run's mixture, or on why it is not known;
        None of a run without a mixture."""
        from rails_ray import on_ray

        allowed = [*self.allow_code, *import_paths(self.config)]
        try:
            compared = on_ray.compare(self.storage, run, allow_code=allowed, on_progress=on_progress)
        except (RailsRayError, ValueError, ArithmeticError) as error:  # the run is stored: its command must not fail
            return f"mixture or dot product: not compared, got: {error}"
        return None if compared is None else compared.sentence


@dataclass(frozen=True, kw_only=True)
class Publish(Stored):
    """Check an encoded version, write its manifest, and make it the current one."""

    version: str
    """A version that `rails-ray encode` made; `rails-ray publish v1` names it too."""

    def run(self) -> dict[str, Any]:
        with out.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.on_ray.publishing import publish
            from rails_ray.storage.filesystem import Storage
            from rails_ray.storage.indexes import read_recalls

        with rendering.bar(out, f"check {self.version}") as on_progress:
            manifest = publish(self.storage, self.version, on_file=partial(on_progress, note="files"))
        out.print(f"version {manifest.version} is current: {manifest.num_live} items, {len(manifest.parts)} parts")
        for line in rendering.low_recalls(read_recalls(Storage(self.storage), self.version, manifest.indexes)):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        say_next("rails-ray serve --allow-anonymous", self.storage)
        return {"version": manifest.version, "num_items": manifest.num_live, "num_parts": len(manifest.parts)}


@dataclass(frozen=True, kw_only=True)
class Evaluate(AllowsCode, Stored, ExcludesSeen):
    """Measure a run or a version on held-out queries; of a version also the recall, certificates and time of each
    search method, on a sample of them."""

    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """Run to evaluate. Give this or --version."""
    version: str | None = None
    """Version to evaluate, published or not. If left out: the current one."""
    split: str = "test"
    """Queries to evaluate on: train, valid or test."""
    folder: str | None = None
    """Data to evaluate on, such as newer data. If left out: the data of the run or version."""
    json: bool = False
    """Print JSON alone."""

    def run(self) -> dict[str, Any]:
        load("evaluate")
        from rails_ray import on_ray
        from rails_ray.cli import rendering
        from rails_ray.cutoffs.measuring import drift
        from rails_ray.on_ray.cluster import cluster

        with rendering.bar(errors if self.json else out, "evaluate") as on_progress, cluster():
            report = on_ray.evaluate(
                self.storage,
                run=self.run_name,
                version=self.version,
                split=self.split,
                data=data_config(self.folder, exclude_seen=self.excludes_seen),
                allow_code=self.allow_code,
                with_searches=True,
                on_progress=on_progress,
            )
        name = self.run_name or self.version or "current version"
        found = {"evaluated": name, **report.to_dict()}
        if self.json:
            print(json.dumps(found, indent=1))
            return found
        out.print(rendering.reports(lines(name, report), f"{report.num_queries} queries of split {report.split}"))
        say_seen(report.to_dict()["seen_items"], report.split)
        if report.searches:
            num = f"{report.searches[0].num_queries:,} queries of split {report.split}"
            out.print(rendering.searches(report.searches, f"methods of {name} against brute force, by {num}"))
        if report.coverage is not None:
            out.print(rendering.coverage(report.coverage, "what the calibration of this version keeps"))
            warning = drift(report.coverage)
            if warning is not None:
                errors.print(f"rails-ray: warning: {warning}", highlight=False, markup=False, soft_wrap=True)
        return found


@dataclass(frozen=True, kw_only=True)
class Calibrate(AllowsCode, Stored, ExcludesSeen):
    """Calibrate a version's cut-offs on one split of queries (coverage, and the temperatures behind mass and nucleus)
    and measure them on another. A server that follows uses them soon; restart any other."""

    version: str | None = None
    """Version to calibrate, published or not. If left out: the current one."""
    filter: str | None = None
    """Calibrate over the items that this filter passes, in JSON, such as '{"price": {"$lt": 20}}', for searches under
    the same filter. Queries whose relevant items it hides are left out."""
    split: str = "valid"
    """Queries to calibrate on: train, valid or test."""
    measured_on: str = "test"
    """Queries to measure the calibration on: train, valid or test, but not --split."""
    background: Literal["uniform", "sphere", "fitted"] = "uniform"
    """Distribution assumed for the score of any item; fitted: to the version's own scores."""
    folder: str | None = None
    """Data to calibrate on, such as newer data. If left out: the version's data."""
    segments: int = 3
    """Groups of queries, by tau_q, to calibrate separately."""
    plot: Path | None = None
    """PNG file to draw. If left out: calibration-VERSION.png."""

    def run(self) -> dict[str, Any]:
        load("calibrate")
        from rails_ray import on_ray
        from rails_ray.cli import plotting, rendering
        from rails_ray.cli.query import read_filter
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_described

        filter = read_filter(self.filter)
        version = read_described(Storage(self.storage), self.version).version
        with rendering.bar(out, f"calibrate {version}") as on_progress, cluster():
            report = on_ray.calibrate(
                self.storage,
                version=version,
                split=self.split,
                measured_on=self.measured_on,
                background=self.background,
                num_segments=self.segments,
                data=data_config(self.folder, exclude_seen=self.excludes_seen),
                filter=filter,
                allow_code=self.allow_code,
                on_progress=on_progress,
            )
        title = f"{report.num_queries} queries of split {self.split} calibrate, split {self.measured_on} measures"
        out.print(rendering.calibration(report, f"version {version}: {title}"))
        if report.shares:
            title = "what mass and nucleus keep of the relevant, beside the share that they name"
            out.print(rendering.shares(report.shares, report.factors, title))
        for sentence in report.left_out:
            out.print(f"left out: {sentence}", highlight=False, soft_wrap=True, markup=False)
        path = self.plot or Path(f"calibration-{version}.png")
        plotting.calibration(report, f"version {version}", path)
        out.print(f"drawn in {path}", highlight=False, soft_wrap=True, markup=False)
        return {"calibrated": version, "filter": filter, **dataclasses.asdict(report)}


def show_pieces(run: str, training: dict[str, Any]) -> None:
    """Print the measures of each piece of a run that has several."""
    from rails_ray.cli import rendering

    if "pieces" in training:
        out.print(rendering.pieces(training["pieces"], f"pieces of run {run}"))


def validated(validation: Mapping[str, Any]) -> list[str]:
    """A clause on the validation of a run, or two if there are figures with seen items excluded and allowed."""
    if not validation["hit_rate"]:
        return ["no queries to measure it with"]
    return [
        f"validation hit rate@1 {own['hit_rate']['1']:.4f}, hit rate@10 {own['hit_rate']['10']:.4f}, MRR "
        f"{own['mrr']:.4f}{'' if label is None else f', {label}'}"
        for label, own in labelled(validation)
    ]


def lines(name: str, report: Report) -> list[tuple[str, Report, float | None]]:
    """The lines of a report in a table."""
    return [(own_name, own, None) for own_name, own in report.by_name(name)]


def data_config(
    folder: str | None,
    items: str | None = None,
    exclude_seen: bool | None = None,
    zero_vectors: Literal["refuse", "keep"] = "refuse",
    attributes: tuple[str, ...] = (),
) -> DataConfig | None:
    """The data that options name; None if they name none."""
    found = DataConfig(
        folder=folder, items=items, exclude_seen=exclude_seen, zero_vectors=zero_vectors, attributes=attributes
    )
    return None if found == DataConfig() else found
