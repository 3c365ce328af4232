"""Choose a cut-off, or the default search, on validation queries."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rails_ray import counting
from rails_ray.cli.base import AllowsCode, ExcludesSeen, Stored, out, say_next
from rails_ray.cli.stages import data_config
from rails_ray.schema.requests import CutoffKind


@dataclass(frozen=True, kw_only=True)
class Tune(AllowsCode, Stored, ExcludesSeen):
    """Try every kind of cut-off at many values on validation queries, and pick the one with the highest F-beta; nothing
    is stored. With --target-recall: measure the search methods of a version and a few parameters of each, and store the
    fastest that reaches the recall as the version's default search, which requests without a method get. No cluster is
    needed. Restart a running server to use it, unless it follows.

    Args:
        target_recall: Recall against brute force that the default search must reach, by the lower end of its 95%
            interval. If left out: cut-offs are tuned.
        k: With --target-recall: items of a list, 10 if left out.
        dry_run: With --target-recall: store nothing.
        cutoff: Kinds of cut-off to try. If left out, or without a kind: all that the version can have.
        run_name: Run to tune, which has no calibration. Give this or --version.
        version: Version to tune, published or not. If left out: the current one.
        split: Queries that choose: valid or train. Test queries are for `rails-ray evaluate`. With --target-recall, a
            sample of the items' vectors chooses if the version's data have none.
        beta: How many times as much recall counts as precision.
        folder: Data to tune on, such as newer data. If left out: the data of the run or version.
        to: JSON file to write all that was tried to. If left out: none is written.
    """

    target_recall: float | None = None
    k: int | None = None
    dry_run: bool = False
    cutoff: Annotated[tuple[CutoffKind, ...], tyro.conf.arg(metavar="[KIND ..]")] = ()
    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    version: str | None = None
    split: str = "valid"
    beta: float = 1.0
    folder: str | None = None
    to: Path | None = None

    def run(self) -> dict[str, Any]:
        if self.target_recall is not None:
            return self._tune_search(self.target_recall)
        if self.k is not None or self.dry_run:
            given = "--dry-run" if self.k is None else f"--k {self.k}"
            raise ValueError(f"--k and --dry-run must be given with --target-recall, got {given} alone")
        with out.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.cli.tuning import tune_cutoffs
            from rails_ray.storage.filesystem import Storage

        with rendering.bar(out, "tune") as on_progress, counting.shown(on_progress):
            found = tune_cutoffs(
                Storage(self.storage),
                run=self.run_name,
                version=self.version,
                split=self.split,
                kinds=self.cutoff,
                beta=self.beta,
                data=data_config(self.folder, exclude_seen=self.excludes_seen),
                allow_code=self.allow_code,
            )
        out.print(rendering.tuning(found))
        for sentence in found.left_out:
            out.print(f"left out: {sentence}", highlight=False, soft_wrap=True, markup=False)
        [(kind, value)] = found.cutoff.items()
        request = json.dumps({"cutoff": found.cutoff})
        out.print(f"in a request, beside its queries: {request}", highlight=False, soft_wrap=True, markup=False)
        if self.to is not None:
            self.to.write_text(json.dumps(dataclasses.asdict(found), indent=1))
            out.print(f"all that was tried is in {self.to}", highlight=False, soft_wrap=True, markup=False)
        if self.run_name is None:
            say_next(f"rails-ray serve --allow-anonymous --cutoff {kind} {value}", self.storage)
        return {"tuned": found.tuned, "split": found.split, "beta": found.beta, "cutoff": found.cutoff}

    def _tune_search(self, target_recall: float) -> dict[str, Any]:
        for option, given in (("--cutoff", self.cutoff), ("--run", self.run_name), ("--beta", self.beta != 1.0)):
            if given:
                raise ValueError(f"{option} must be left out beside --target-recall, which chooses a version's search")
        with out.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.cli.tuning_searches import described, tune_search
            from rails_ray.storage.filesystem import Storage

        with rendering.bar(out, "tune") as on_progress, counting.shown(on_progress):
            found = tune_search(
                Storage(self.storage),
                target_recall=target_recall,
                k=10 if self.k is None else self.k,
                version=self.version,
                split=self.split,
                data=data_config(self.folder, exclude_seen=self.excludes_seen),
                allow_code=self.allow_code,
                dry_run=self.dry_run,
            )
        out.print(rendering.searches(found.measured, f"{found.tuned}: {found.queries} choose", found.choice.best))
        reason = [] if found.why_items is None else [f"its data have no queries that choose: {found.why_items}"]
        left_out = [f"left out: {sentence}" for sentence in found.left_out]
        for line in [*reason, *left_out, *found.remarks]:
            out.print(line, highlight=False, soft_wrap=True, markup=False)
        if self.to is not None:
            self.to.write_text(json.dumps(dataclasses.asdict(found), indent=1))
            out.print(f"all that was tried is in {self.to}", highlight=False, soft_wrap=True, markup=False)
        if found.chosen is not None:
            done = "would be" if self.dry_run else "is now"
            line = f"the default search of version {found.tuned} {done} {described(found.chosen)}"
            out.print(line, highlight=False, soft_wrap=True, markup=False)
            if not self.dry_run:
                serve = "serve --allow-anonymous" if found.is_published else "publish"
                say_next(f"rails-ray {serve} --version {found.tuned}", self.storage)
        return {
            "tuned": found.tuned,
            "queries": found.queries,
            "target_recall": target_recall,
            "search": None if found.chosen is None else dataclasses.asdict(found.chosen),
            "is_stored": found.chosen is not None and not self.dry_run,
        }
