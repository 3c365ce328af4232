"""The piece of a run that trains codebooks, after the encoder or with it; a part of `build`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rails_ray.build import quantized
from rails_ray.collectives.first import from_first
from rails_ray.collectives.mean import mean_over_workers
from rails_ray.config import RunConfig
from rails_ray.config.dual_encoder import DualEncoderConfig
from rails_ray.config.storing import PqItems, TrainedConfig
from rails_ray.data.batch import Sampler
from rails_ray.data.dataset import DataSet
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.evaluation.metrics import mean_reciprocal_rank
from rails_ray.evaluation.ranking import encode_items, query_batches, rank_all
from rails_ray.evaluation.report import Report, validate
from rails_ray.models.dual_encoder import DualEncoder
from rails_ray.quantizers.learned import LearnedQuantizer, num_dead
from rails_ray.quantizers.product import ProductQuantizer
from rails_ray.quantizers.read_back import shortened
from rails_ray.similarities import Scored
from rails_ray.similarities.states import ItemState, QueryState, concatenate, take, to
from rails_ray.storage import runs
from rails_ray.training import state
from rails_ray.training.contrast import Contrast
from rails_ray.training.loop import PRECISIONS, Progress, TrainingConfig
from rails_ray.training.objectives import Objective
from rails_ray.training.piece import Given, Prepared, Steps
from rails_ray.training.quantizing import MethodTerm, Quantizing
from rails_ray.training.step import TrainingStep
from rails_ray.training.terms import Term

ENCODER, QUANTIZER = "encoder", "quantizer"  # the pieces of a run that trains codebooks
MOST_MEASURED = 2**16  # items whose reconstruction a report tells


@dataclass(frozen=True)
class Rows:
    """The contract of `FeatureRows`: inputs by their numbers."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor) -> "Rows":
        return Rows(self.rows[rows])

    def to(self, device: torch.device | str) -> "Rows":
        return Rows(self.rows.to(device))


class OverFrozen(nn.Module):
    """Encoded queries and items in place of what encodes them, as `TrainingStep` asks for these. Nothing of it is
    trained."""

    def __init__(self, similarity: nn.Module, queries: QueryState, items: ItemState) -> None:
        super().__init__()
        self.similarity: Any = similarity
        self.requires_grad_(False)
        self.states = queries, items  # not stored with the weights

    def train(self, mode: bool = True) -> "OverFrozen":
        """It stays in evaluation mode: a dropout of the similarity is for its own training."""
        super().train(False)
        return self

    def encode_queries(self, rows: Rows, precision: torch.dtype = torch.float32) -> QueryState:
        return to(take(self.states[0], rows.rows.cpu()), rows.rows.device)

    def encode_items(self, rows: Rows, precision: torch.dtype = torch.float32) -> ItemState:
        return to(take(self.states[1], rows.rows.cpu()), rows.rows.device)

    def score(self, query: QueryState, items: ItemState) -> Scored:
        scored: Scored = self.similarity(query, items)
        return scored


class Trained(nn.Module):
    """What the piece leaves behind: codebooks, and the encoder if it was trained with them."""

    def __init__(self, quantizer: LearnedQuantizer, model: nn.Module | None) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.model = model


class OfPairs(Protocol):
    """What the piece asks of its family."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def own(self) -> DualEncoderConfig: ...

    def model(self) -> DualEncoder: ...

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> DualEncoder: ...

    def sampler(self, trained: DualEncoder, read: DataSet, rank: int = 0, num_workers: int = 1) -> Sampler: ...

    def objective(self, trained: Any) -> Objective: ...

    def contrast(self) -> Contrast: ...

    def terms(self, mean_over_workers: Callable[[Tensor], Tensor]) -> list[Term]: ...

    @property
    def offers(self) -> Any: ...


@dataclass(frozen=True)
class QuantizerPiece:
    """The contract of `Piece`: codebooks over an encoder that another piece has trained."""

    family: OfPairs
    name: str = QUANTIZER
    after: tuple[str, ...] = (ENCODER,)
    shares_gradient: bool = True

    @property
    def items(self) -> PqItems:
        """How items are stored."""
        assert isinstance(self.family.own.items, PqItems)
        return self.family.own.items

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
        family, read, how = self.family, given.read, self.how
        encoder = runs.read_piece(given.storage, given.run, ENCODER)
        model = family.trained_model(runs.weights(given.storage, encoder))
        item_features, held_out = model.item_features(read.item_inputs), read.queries["valid"]
        items = _items(encode_items(model, item_features))
        start = quantized.quantizer_of(self.items, _some(items.components), family.config.seed)
        learned = how.method.begin(start)
        is_joint = how.when == "jointly"
        trained: Any = model if is_joint else self._frozen(model, read, items)
        workers = given.rank, given.num_workers
        sampler = family.sampler(model, read, *workers) if is_joint else self._pairs(read, *workers)
        quantizing = Quantizing(
            how.method,
            learned,
            revive_every=how.revive_every,
            mean_over_workers=mean_over_workers,
            from_first=from_first,
        )
        step = TrainingStep(
            trained,
            family.objective(model),
            family.contrast(),
            terms=[*(family.terms(mean_over_workers) if is_joint else []), self._term()],
            quantizing=quantizing,
            precision=PRECISIONS[how.training.precision],
        )

        def now() -> ItemState:
            """All items, as their codes of now stand for them."""
            found = _items(encode_items(model, item_features)) if is_joint else items
            return read_back(learned.frozen(), found)

        def report(progress: Progress) -> dict[str, Any]:
            offers = family.offers
            distribution = offers.distribution() if offers.has_trained_temperature else None
            told: Report = validate(model, now, held_out, distribution)
            found = _items(encode_items(model, item_features)) if is_joint else items
            return (
                told.to_dict()
                | measured(learned.frozen(), _some(found.components))
                | {"num_revived": int(quantizing.num_revived)}
            )

        def mrr() -> float:
            return mean_reciprocal_rank(rank_all(model, now(), held_out, 1).best_rank)

        return Prepared(
            module=Trained(learned, model if is_joint else None),
            report=report,
            steps=Steps(
                step=step,
                batch_of=sampler.batch,
                seed=[family.config.seed, given.rank],
                validate=lambda: from_first(mrr() if given.is_first else 0.0),
            ),
        )

    def _frozen(self, model: DualEncoder, read: DataSet, items: ItemState) -> OverFrozen:
        queries: list[Any] = [query for _, query in query_batches(model, read.queries["train"].inputs)]
        return OverFrozen(model.similarity, concatenate(queries), items)

    def _pairs(self, read: DataSet, rank: int, num_workers: int) -> InBatchSampler:
        queries = read.queries["train"]
        return InBatchSampler(
            queries,
            Rows(torch.arange(len(queries))),
            Rows(torch.arange(len(read.item_ids))),
            batch_size=self.training.batch_size,
            seed=self.family.config.seed,
            rank=rank,
            num_workers=num_workers,
        )

    def _term(self) -> MethodTerm:
        return MethodTerm(self.how.method, self.family.own.similarity.temperature)


def read_back(quantizer: ProductQuantizer, items: ItemState) -> ItemState:
    """Items as their codes stand for them."""
    back = quantizer.decode(quantizer.encode(items.components.flatten(start_dim=1)))
    components = shortened(back.unflatten(1, (items.num_components, -1)))
    return ItemState(components, items.gate, components.mean(dim=1))


def measured(quantizer: ProductQuantizer, components: Tensor) -> dict[str, Any]:
    """What a report says of codebooks: the mean of |x - x~|^2, and codewords that no item has."""
    flat = components.flatten(start_dim=1)
    codes = quantizer.encode(flat)
    loss = (flat - quantizer.decode(codes)).square().sum(dim=1).mean()
    return {"reconstruction_loss": float(loss), "num_dead_codewords": num_dead(codes, quantizer.num_codewords)}


def trained_quantizer(own: DualEncoderConfig, weights: bytes, num_components: int, width: int) -> ProductQuantizer:
    """The quantizer that the piece of a run has left behind.

    Args:
        num_components: P_X.
        width: d of a component.

    Raises:
        ValueError: if the weights do not fit.
    """
    items, how = own.items, own.trained_quantizer
    assert isinstance(items, PqItems)
    assert how is not None
    part = torch.zeros(num_components * items.num_subspaces, items.num_codewords, width // items.num_subspaces)
    rotation = torch.eye(width) if how.start.kind == "opq" else None
    learned = how.method.begin(ProductQuantizer.of(part, rotation))
    state.load_below(learned, weights, "quantizer.")
    return learned.frozen()


def _items(encoded: Any) -> ItemState:
    assert isinstance(encoded, ItemState)
    return replace(encoded, components=encoded.components.float())


def _some(components: Tensor) -> Tensor:
    """At most MOST_MEASURED items, from all over the corpus."""
    return components[:: -(-len(components) // MOST_MEASURED)]
