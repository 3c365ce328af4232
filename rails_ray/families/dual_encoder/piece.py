"""The training of all weights of a dual encoder."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rails_ray.data.encoding import encode_items
from rails_ray.families.dual_encoder.negatives import DrawnNegatives
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.modules.encoders.frozen import FrozenTextConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.training import checkpoints
from rails_ray.training.collectives.first import from_first
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.evaluation.mixtures import measures
from rails_ray.training.evaluation.report import validation_mrr
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Prepared, Steps

if TYPE_CHECKING:
    from rails_ray.families.dual_encoder.train import DualEncoderTraining


@dataclass(frozen=True)
class DualEncoderPiece:
    """The contract of `Piece`: the whole model, on workers that share its gradient."""

    family: "DualEncoderTraining"
    name: str = ""
    after: tuple[str, ...] = ()

    @property
    def shares_gradient(self) -> bool:
        return self.training is not None

    @property
    def training(self) -> TrainingConfig | None:
        """None if the run has no loss: there is no step to take."""
        return None if self.family.own.loss.kind == "none" else self.family.config.training

    def check_workers(self, num_workers: int) -> None:
        """Batches of pairs may be cut into unequal slices; batches with uniform negatives may not."""
        batch_size = self.family.config.training.batch_size
        if self.shares_gradient and isinstance(self.family.own.negatives, DrawnNegatives) and batch_size % num_workers:
            raise ValueError(f"training.batch_size must be a multiple of the {num_workers} workers, got {batch_size}")

    def prepare(self, given: Given) -> Prepared:
        family, read = self.family, given.read
        model = with_kept_texts(family.model(), given.storage)
        if given.checkpoint is None:
            family.learn_tokens(model, read, is_first=given.is_first, from_first=from_first)
        else:
            checkpoints.load_model(model, given.checkpoint)
        item_features, held_out = model.item_features(read.item_inputs), read.queries["valid"]
        if isinstance(family.own.encoder, FrozenTextConfig):
            family.check_directions(read.item_ids, item_features, "items")

        def report(progress: Progress) -> dict[str, Any]:
            return family.report(model, partial(encode_items, model, item_features), read).to_dict()

        if self.training is None:
            return Prepared(module=model, report=report, steps=None)
        mining = family.mining(model, read, is_first=given.is_first)
        sampler = family.sampler(model, read, given.rank, given.num_workers, mining)
        step = family.training_step(model, mean_over_workers)
        step.mining = mining  # its finds are part of a checkpoint
        return Prepared(
            module=model,
            report=report,
            steps=Steps(
                step=step,
                batch_of=sampler.batch,
                seed=[family.config.seed, given.rank],
                validate=lambda: from_first(validation_mrr(model, item_features, held_out) if given.is_first else 0.0),
                measure=lambda: measures(model, item_features, held_out) if given.is_first else {},
            ),
        )
