"""Training of a heavy ranker as a command: a cross-encoder for texts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rails_ray.commands.base import load, out
from rails_ray.relevance.rankers.cross_encoder import CrossEncoderConfig
from rails_ray.training.loop import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TrainRanker:
    """Train a cross-encoder, a heavy ranker that reads a query and an item together.

    Args:
        folder: Data set of texts: items, queries and relevance.
        to: Folder to write the ranker to. Give it to `rails-ray relevance` and `rails-ray serve` as --ranker.folder.
        num_negatives: Items that each training pair is compared with.
        seed: Seeds initial weights and batches.
        device: Where it trains: cpu or cuda.
        sizes: Sizes of the transformer.
        training: Its training.
    """

    folder: str
    to: Path
    num_negatives: int = 7
    seed: int = 0
    device: str = "cpu"
    sizes: CrossEncoderConfig = field(default_factory=CrossEncoderConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(num_steps=4000, batch_size=32))

    def run(self) -> dict[str, Any]:
        load()
        from rails_ray import rendering
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
        out.print(f"ranker in {self.to}: {progress.seconds:.0f} s of training", highlight=False, soft_wrap=True)
        path = "rails_ray.relevance.rankers.cross_encoder:CrossEncoderRanker"
        out.print(
            f"next: rails-ray relevance --name NAME --folder {self.folder} --ranker.path {path} "
            f"--ranker.folder {self.to.absolute()}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return {"ranker": str(self.to), "seconds": round(progress.seconds, 3), "loss": progress.losses[-1]}
