"""Choose a cut-off on validation queries."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rails_ray.cli.base import AllowsCode, ExcludesSeen, Stored, out, say_next
from rails_ray.cli.stages import data_config
from rails_ray.schema.requests import CutoffKind


@dataclass(frozen=True, kw_only=True)
class Tune(AllowsCode, Stored, ExcludesSeen):
    """Try every kind of cut-off at many values on validation queries, and pick the one with the highest F-beta. No
    cluster is needed, and nothing is stored.

    Args:
        cutoff: Kinds of cut-off to try. If left out, or without a kind: all that the version can have.
        run_name: Run to tune, which has no calibration. Give this or --version.
        version: Version to tune, published or not. If left out: the current one.
        split: Queries that choose: valid or train. Test queries are for `rails-ray evaluate`.
        beta: How many times as much recall counts as precision.
        folder: Data to tune on, such as newer data. If left out: the data of the run or version.
        to: JSON file to write all that was tried to. If left out: none is written.
    """

    cutoff: Annotated[tuple[CutoffKind, ...], tyro.conf.arg(metavar="[KIND ..]")] = ()
    run_name: Annotated[str | None, tyro.conf.arg(name="run")] = None
    version: str | None = None
    split: str = "valid"
    beta: float = 1.0
    folder: str | None = None
    to: Path | None = None

    def run(self) -> dict[str, Any]:
        with out.status("loading torch"):
            from rails_ray import counting
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
