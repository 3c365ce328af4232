"""The pieces of a run that trains codebooks: an encoder, then codebooks for its items.

Codebooks are first fitted to the items. Then they are trained over encoded queries and items, or together with
the encoder. Queries are compared with the items of the other pairs of a batch, of one worker or of all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.data.batch import FeatureRows
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.families.config import FamilyConfig, RunConfig, from_json
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.vector_items import quantized
from rails_ray.families.vector_items.over_frozen import FrozenRows, OverFrozen
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.families.vector_items.trained_codes import (
    ENCODER,
    QUANTIZER,
    read_back,
    zeros_of,
)
from rails_ray.modules.losses.sampled_softmax import ScaledLogit
from rails_ray.modules.model import PairModel
from rails_ray.modules.quantizers.learned import LearnedQuantizer
from rails_ray.modules.quantizers.measured import measured
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.modules.schedule import PRECISIONS, TrainingConfig
from rails_ray.modules.similarities.states import ItemState, concatenate, to
from rails_ray.storage import runs
from rails_ray.training.collectives.first import from_first
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.contrast import Contrast
from rails_ray.training.evaluation.metrics import mean_reciprocal_rank
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.evaluation.report import Report
from rails_ray.training.loop import Progress
from rails_ray.training.objectives import Contrastive, Objective
from rails_ray.training.piece import Given, Prepared, Steps
from rails_ray.training.quantizing import MethodTerm, Quantizing
from rails_ray.training.step import TrainingStep
from rails_ray.training.terms import Term

ENCODES = ("encoder", "components", "temperature", "similarity")  # fields that decide what a model encodes
MOST_MEASURED = 2**16  # most items that a report measures the loss on


@runtime_checkable
class OfPairs(Protocol):
    """Members of a family that the pieces use."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def own(self) -> DualEncoderConfig: ...

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> DualEncoder: ...

    def report(self, model: Any, encoded: Callable[[], ItemState], read: DataSet) -> Report: ...

    def objective(self, trained: Any) -> Objective: ...

    def contrast(self) -> Contrast: ...

    def terms(self, mean_over_workers: Callable[[Tensor], Tensor]) -> list[Term]: ...


class Trained(nn.Module):
    """Modules that are stored: codebooks, and the encoder if it was trained with them."""

    def __init__(self, quantizer: LearnedQuantizer, model: nn.Module | None) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.model = model


@dataclass(frozen=True)
class EarlierEncoder:
    """The contract of `Piece`: the encoder of another run, as it is."""

    family: OfPairs
    encoder_of: str
    name: str = ENCODER
    after: tuple[str, ...] = ()
    shares_gradient: bool = False
    training: TrainingConfig | None = None

    def check_workers(self, num_workers: int) -> None:
        """It takes no step."""

    def prepare(self, given: Given) -> Prepared:
        earlier = runs.read(given.storage, self.encoder_of)
        self._check(from_json(earlier.config).family)
        model = with_kept_texts(self.family.trained_model(runs.weights(given.storage, earlier)), given.storage)
        features = model.item_features(given.read.item_inputs)

        def report(progress: Progress) -> dict[str, Any]:
            return self.family.report(model, partial(_encoded, model, features), given.read).to_dict()

        return Prepared(module=model, report=report, steps=None)

    def _check(self, earlier: FamilyConfig) -> None:
        """
        Raises:
            ValueError: if the earlier run encodes in another way than this one.
        """
        if not isinstance(earlier, DualEncoderConfig):
            raise ValueError(
                f"encoder_of must name a run of a {self.family.own.kind}, got {self.encoder_of!r} of a {earlier.kind}"
            )
        for name in ENCODES:
            had, own = getattr(earlier, name), getattr(self.family.own, name)
            if had != own:
                raise ValueError(
                    f"encoder_of must name a run whose {name} is {own}, got {self.encoder_of!r} with {had}"
                )


@dataclass(frozen=True)
class QuantizerPiece:
    """The contract of `Piece`: codebooks for the items of an encoder that an earlier piece has left."""

    family: OfPairs
    name: str = QUANTIZER
    after: tuple[str, ...] = (ENCODER,)
    shares_gradient: bool = True

    @property
    def how(self) -> TrainedConfig:
        """How codebooks are trained."""
        assert self.family.own.trained_quantizer is not None
        return self.family.own.trained_quantizer

    @property
    def training(self) -> TrainingConfig:
        return self.how.training

    def check_workers(self, num_workers: int) -> None:
        """Batches of pairs may be cut into unequal slices."""

    def prepare(self, given: Given) -> Prepared:
        family, how, is_joint = self.family, self.how, self.how.when == "jointly"
        encoder = runs.read_piece(given.storage, given.run, ENCODER)
        model = with_kept_texts(family.trained_model(runs.weights(given.storage, encoder)), given.storage)
        features = model.item_features(given.read.item_inputs)
        begun_with = _encoded(model, features)
        quantizing = Quantizing(
            how.method,
            how.method.begin(self.start(begun_with, given)),
            revive_every=how.revive_every,
            mean_over_workers=mean_over_workers,
            from_first=from_first,
        )
        trained: PairModel = model
        if not is_joint:
            queries: list[Any] = [query for _, query in query_batches(model, given.read.queries["train"].inputs)]
            trained = OverFrozen(model.similarity, concatenate(queries), begun_with)
        step = TrainingStep(
            trained,
            self._objective(model),
            family.contrast(),
            terms=[*(family.terms(mean_over_workers) if is_joint else []), MethodTerm(how.method, self._tau)],
            quantizing=quantizing,
            encode_size=family.own.encode_size if is_joint else 0,
            precision=PRECISIONS[how.training.precision],
        )
        found = DecodedItems(model, features, quantizing, None if is_joint else begun_with)

        def mrr() -> float:
            return mean_reciprocal_rank(rank_all(model, found.read_back(), given.read.queries["valid"], 1).best_rank)

        return Prepared(
            module=Trained(quantizing.learned, model if is_joint else None),
            report=lambda progress: family.report(model, found.read_back, given.read).to_dict() | found.measured(),
            steps=Steps(
                step=step,
                batch_of=self._sampler(model, given).batch,
                seed=[family.config.seed, given.rank],
                rates={"model.": how.encoder_rate},
                validate=lambda: from_first(mrr() if given.is_first else 0.0),
            ),
        )

    def start(self, items: ItemState, given: Given) -> ProductQuantizer:
        """Codebooks fitted by the first worker; zeros of the right sizes if a checkpoint replaces them."""
        config = self.family.own.items
        assert isinstance(config, PqItems)
        if given.checkpoint is not None:
            return zeros_of(config, items.num_components, items.width)
        seed = self.family.config.seed
        start = from_first(quantized.quantizer_of(config, _some(items), seed) if given.is_first else None)
        assert start is not None
        return start

    @property
    def _tau(self) -> float:
        return self.family.own.similarity.temperature

    def _objective(self, model: DualEncoder) -> Objective:
        """The run's own; without one, the softmax of Equation 2."""
        if self.family.own.loss.kind == "none":
            return Contrastive(ScaledLogit(self._tau), 0.0)
        return self.family.objective(model)

    def _sampler(self, model: DualEncoder, given: Given) -> InBatchSampler:
        queries, inputs = given.read.queries["train"], given.read.item_inputs
        features: tuple[FeatureRows, FeatureRows]
        features = model.query_features(queries.inputs), model.item_features(inputs)
        if self.how.when == "after":
            features = FrozenRows(torch.arange(len(queries))), FrozenRows(torch.arange(len(given.read.item_ids)))
        return InBatchSampler(
            queries,
            *features,
            batch_size=self.training.batch_size,
            seed=self.family.config.seed,
            rank=given.rank,
            num_workers=given.num_workers,
        )


@dataclass(frozen=True)
class DecodedItems:
    """Items with their codes of now, wherever training has put model and codebooks.

    frozen: the items as they stay; None if the model is trained.
    """

    model: DualEncoder
    features: FeatureRows
    quantizing: Quantizing
    frozen: ItemState | None

    @property
    def quantizer(self) -> ProductQuantizer:
        """The quantizer of now."""
        return self.quantizing.learned.frozen()

    def items(self) -> ItemState:
        """Items before they are codes."""
        device = self.quantizing.learned.codebooks.device
        self.model.to(device)
        return _encoded(self.model, self.features) if self.frozen is None else to(self.frozen, device)

    def read_back(self) -> ItemState:
        """The items, decoded by the codebooks of now, on the device where training put them."""
        return read_back(self.quantizer, self.items())

    def measured(self) -> dict[str, Any]:
        """Return what a report says of codebooks: the mean of |x - x~|^2, codewords that no item has, and how many were
        put elsewhere since training began."""
        of_items = measured(self.quantizer, _some(self.items()).flatten(start_dim=1))
        return of_items | {"num_revived": int(self.quantizing.num_revived)}


def _encoded(model: DualEncoder, features: FeatureRows) -> ItemState:
    items = encode_items(model, features)
    assert isinstance(items, ItemState)
    return replace(items, components=items.components.float())


def _some(items: ItemState) -> Float[Tensor, "N P_X d"]:
    """Components of at most MOST_MEASURED items, from all over the corpus."""
    return items.components[:: -(-len(items) // MOST_MEASURED)]
