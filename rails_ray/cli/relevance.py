"""The stage before RBE as a command: a heavy ranker scores items for queries, which makes a data set to train on."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rails_ray.cli.base import AllowsCode, Stored, load, out, say_next
from rails_ray.schema.ranker import RankerConfig


@dataclass(frozen=True, kw_only=True)
class Relevance(AllowsCode, Stored):
    """Let a heavy ranker score items for queries. What comes out is a data set whose relevance is the ranker's; any
    recipe for texts trains on it, and `text-rbe` on the scores themselves.

    Args:
        name: Name of the matrix. Give the name of an unfinished one to resume it.
        folder: Data set with tables of items and queries; it needs no relevance.
        ranker: The heavy ranker.
        num_items: Items, drawn at random. If left out: all.
        num_train: Training queries, drawn at random. If left out: all.
        num_valid: Validation queries, likewise.
        num_test: Test queries, likewise.
        seed: Seeds these draws.
        num_relevant: Best items of a query that the new data set calls relevant.
        block_queries: Queries of a block; a crash loses at most one block of each worker.
        max_holes: Share of the pairs that may fail and stay without a score.
        timeout_s: Seconds that a call of up to 256 items may take; the items of one that takes longer stay without a
            score. If left out: no limit.
        workers: Blocks that are scored at the same time.
        num_gpus: GPUs, or part of one, that each worker reserves.
    """

    name: str
    folder: str
    ranker: RankerConfig = field(default_factory=RankerConfig)
    num_items: int = 0
    num_train: int | None = None
    num_valid: int | None = None
    num_test: int | None = None
    seed: int = 0
    num_relevant: int = 10
    block_queries: int = 8
    max_holes: float = 0.05
    timeout_s: float | None = None
    workers: int = 2
    num_gpus: float = 0

    def run(self) -> dict[str, Any]:
        load("relevance")
        from rails_ray.cli import rendering
        from rails_ray.on_ray.cluster import cluster
        from rails_ray.on_ray.relevance_matrix import Sampling, fill

        num_of_split = {"train": self.num_train, "valid": self.num_valid, "test": self.num_test}
        named = {split: num for split, num in num_of_split.items() if num is not None}
        with rendering.bar(out, f"score {self.name}") as on_progress, cluster(self.workers + 1):
            matrix = fill(
                self.storage,
                self.name,
                self.folder,
                self.ranker,
                sampling=Sampling(num_items=self.num_items, num_queries=named, seed=self.seed),
                num_relevant=self.num_relevant,
                block_queries=self.block_queries,
                max_holes_fraction=self.max_holes,
                timeout_s=self.timeout_s,
                num_workers=self.workers,
                num_gpus=self.num_gpus,
                allow_code=self.allow_code,
                on_progress=on_progress,
            )
        holes = f"{matrix.num_holes} holes" if matrix.num_holes else "no hole"
        out.print(
            f"matrix {self.name}: {matrix.num_items} items x {matrix.num_queries} queries, {matrix.num_calls} calls, "
            f"{holes}, {matrix.seconds:.0f} s of the ranker: {matrix.folder}",
            highlight=False,
            soft_wrap=True,
        )
        folder = f" --ranker.folder {self.ranker.folder}" if self.ranker.folder else ""
        say_next(
            f"rails-ray train text-rbe --data.folder {matrix.folder} --ranker.path {self.ranker.path}{folder}",
            self.storage,
        )
        return {"matrix": self.name, **asdict(matrix)}
