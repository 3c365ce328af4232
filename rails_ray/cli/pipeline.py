"""`pipeline`: the stages from a recipe to a current version, if it is good enough, as one command."""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import tyro

from rails_ray.cli.base import load, out, say_next, say_seen
from rails_ray.cli.stages import OfRecipe, lines, show_pieces
from rails_ray.families.config import import_paths
from rails_ray.training.evaluation.gates import Gates
from rails_ray.training.evaluation.report import Report


@dataclass(frozen=True, kw_only=True)
class Pipeline(OfRecipe):
    """Train, encode, evaluate, and publish the version if it is good enough compared with the current one."""

    shards: int = 2
    """Parts of the corpus that are searched in parallel."""
    gates: Annotated[Gates, tyro.conf.arg(name="")] = field(default_factory=Gates)
    """Gates that the version must pass on the test queries to be published."""

    def run(self) -> dict[str, Any]:
        load("pipeline")
        from rails_ray.cli import rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.pipelining import pipeline

        def show(report: Report, former: Report | None) -> None:
            rows = [*lines("new version", report), *(lines("current version", former) if former else [])]
            out.print(rendering.reports(rows, f"{report.num_queries} queries of split {report.split}"))
            say_seen(report.to_dict()["seen_items"], report.split)

        run_config = self.chosen()
        self.check_can_begin()
        with cluster(self.workers + 2):
            done = pipeline(
                run_config,
                self.storage,
                run=self.run_name,
                num_workers=self.workers,
                use_gpu=self.use_gpu,
                num_shards=self.shards,
                gates=self.gates,
                checkpoint_s=self.checkpoint_s,
                timeout_s=self.timeout_s,
                placing=self.chunks,
                allow_code=self.allow_code,
                stage=partial(rendering.bar, out),
                on_report=show,
            )
        show_pieces(done.run.name, done.run.training)
        if self.gates.max_churn is not None:
            compared = "no other version was current, which passes" if done.churn is None else f"{done.churn:.4f}"
            out.print(f"churn@{self.gates.k}: {compared}", highlight=False)
        manifest = done.manifest
        out.print(f"version {manifest.version} is current: {manifest.num_live} items, {len(manifest.parts)} parts")
        say_next("rails-ray serve --allow-anonymous", self.storage, import_paths(self.config))
        return {
            "run": done.run.name,
            "version": manifest.version,
            "num_items": manifest.num_live,
            "hit_rate": done.report.hit_rate,
            "seen_items": done.report.to_dict()["seen_items"],
            "former_hit_rate": None if done.former is None else done.former.hit_rate,
            "churn": done.churn,
        }
