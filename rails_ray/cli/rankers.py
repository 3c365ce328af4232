"""Training of a heavy ranker as a command: a cross-encoder for texts, or boosted trees for features."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rails_ray.cli.base import out
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.reranking.rankers.boosted import TreesConfig
from rails_ray.reranking.rankers.cross_encoder import CrossEncoderConfig

PATHS = {"cross_encoder": "cross_encoder:CrossEncoderRanker", "boosted": "boosted:BoostedRanker"}
OPTIONS = {"cross_encoder": ("device", "sizes", "training"), "boosted": ("trees",)}  # that one kind alone has


@dataclass(frozen=True, kw_only=True)
class TrainRanker:
    """Train a heavy ranker: a cross-encoder, which reads a query and an item together, or boosted trees, which read
    numbers of both.

    Args:
        folder: Data set of texts: items, queries and relevance. For boosted trees also the tables query_features
            (query_id and columns of numbers) and item_features (item_id and columns of numbers).
        to: Folder to write the ranker to. Give it to `rails-ray relevance` and `rails-ray serve` as --ranker.folder.
        kind: cross_encoder or boosted.
        num_negatives: Items that each training pair is compared with.
        seed: Seeds initial weights and batches.
        device: Where a cross-encoder trains: cpu or cuda.
        sizes: Sizes of its transformer.
        training: Its training.
        trees: What boosted trees are made with.
    """

    folder: str
    to: Path
    kind: Literal["cross_encoder", "boosted"] = "cross_encoder"
    num_negatives: int = 7
    seed: int = 0
    device: str = "cpu"
    sizes: CrossEncoderConfig = field(default_factory=CrossEncoderConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(num_steps=4000, batch_size=32))
    trees: TreesConfig = field(default_factory=TreesConfig)

    def run(self) -> dict[str, Any]:
        self._check_options()
        started = time.monotonic()
        report = self._boosted() if self.kind == "boosted" else self._cross_encoder()
        seconds = time.monotonic() - started
        out.print(f"ranker in {self.to}: {seconds:.0f} s of training", highlight=False, soft_wrap=True)
        out.print(
            f"next: rails-ray relevance --name NAME --folder {self.folder} --ranker.path "
            f"rails_ray.reranking.rankers.{PATHS[self.kind]} --ranker.folder {self.to.absolute()}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return {"ranker": str(self.to), "seconds": round(seconds, 3), **report}

    def _check_options(self) -> None:
        """Raises:
        ValueError: for an option of another kind.
        """
        usual = TrainRanker(folder=self.folder, to=self.to)
        for kind, names in OPTIONS.items():
            for name in names:
                if kind != self.kind and getattr(self, name) != getattr(usual, name):
                    raise ValueError(f"--{name} must be given with --kind {kind}, got {self.kind}")

    def _cross_encoder(self) -> dict[str, Any]:
        from rails_ray.cli import rendering
        from rails_ray.data.forms import FORMS
        from rails_ray.data.sources import Sources
        from rails_ray.training.rankers import train_cross_encoder

        read = FORMS["text"].read(Sources(self.folder), ["train"])
        with rendering.bar(out, f"train {self.to.name}") as on_progress:
            progress = train_cross_encoder(
                read,
                self.to,
                self.sizes,
                self.training,
                num_negatives=self.num_negatives,
                seed=self.seed,
                device=self.device,
                report=lambda done, loss: on_progress(done, self.training.num_steps, f"loss {loss:.3f}"),
            )
        return {"loss": progress.losses[-1]}

    def _boosted(self) -> dict[str, Any]:
        from rails_ray.cli import rendering
        from rails_ray.data.sources import Sources
        from rails_ray.training import ranker_features
        from rails_ray.training.rankers import train_boosted

        features, positives = ranker_features.read(Sources(self.folder))
        with rendering.bar(out, f"train {self.to.name}") as on_progress:
            train_boosted(
                features,
                positives,
                self.to,
                self.trees,
                num_negatives=self.num_negatives,
                seed=self.seed,
                report=lambda done, loss: on_progress(done, self.trees.num_rounds, "trees"),
            )
        return {"num_pairs": len(positives)}
