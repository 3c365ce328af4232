"""Training of a dual encoder: its batches, its loss and what is added to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.data.batch import PairSampler, Sampler, WindowSampler, relevance_of
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.drawing import Drawing, EveryItem, Mixture, Popularity, Uniform
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import DenseRows, Visits
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import WITH_TEMPERATURE, DualEncoderConfig, Encoder
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.negatives import (
    CrossDeviceNegatives,
    DrawnNegatives,
    HardNegatives,
    InBatchNegatives,
    MixedNegatives,
    PopularityNegatives,
    UniformNegatives,
)
from rails_ray.families.dual_encoder.piece import DualEncoderPiece
from rails_ray.families.dual_encoder.serve import DualEncoderFamily
from rails_ray.families.training_family import Sizes, TrainingFamily
from rails_ray.families.vector_items import quantized
from rails_ray.families.vector_items.quantizer_piece import EarlierEncoder, QuantizerPiece
from rails_ray.families.vector_items.storing import FullItems, PqItems
from rails_ray.families.vector_items.trained_codes import ENCODER
from rails_ray.modules.encoders.components import Made
from rails_ray.modules.encoders.config import InputFacts
from rails_ray.modules.encoders.histories import HistoryConfig
from rails_ray.modules.losses.config import ContrastiveConfig, MaximumLikelihoodConfig, NoneConfig, PointwiseConfig
from rails_ray.modules.losses.glas import CoOccurrence
from rails_ray.modules.model import Model
from rails_ray.modules.schedule import PRECISIONS
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.reranking.surrogate import SurrogateConfig
from rails_ray.training.collectives.first import from_first
from rails_ray.training.contrast import Contrast, Gathered, Streamed, WithinBatch
from rails_ray.training.evaluation.report import Report, validate
from rails_ray.training.mining import Mining, hardest
from rails_ray.training.objectives import Contrastive, MaximumLikelihood, Objective, Pointwise
from rails_ray.training.piece import Piece
from rails_ray.training.step import TrainingStep
from rails_ray.training.terms import Glas, MutualInformation, Term


@dataclass(frozen=True)
class DualEncoderTraining(DualEncoderFamily, TrainingFamily):
    """The contract of `TrainingFamily`."""

    @property
    def sizes(self) -> Sizes:
        return Sizes(max_length=self.own.encoder.reads_at_most, similarity=self.own.similarity.kind)

    @property
    def weighs(self) -> bool:
        return True

    def completed(self, read: DataSet) -> RunConfig:
        """The config with what the data set or a frozen model decides: items, and the widths of vectors."""
        if self.own.trained_quantizer is not None:
            assert isinstance(self.own.items, PqItems)
            quantized.check_codewords(self.own.items, len(read.item_ids), "--items.num-codewords ")
        config = self.with_items(read.item_ids)
        self._check_negatives(len(read.item_ids))
        assert isinstance(config.family, DualEncoderConfig)
        facts = replace(facts_of(read), is_compared=self.own.loss.kind == "none")
        encoder = config.family.encoder.for_inputs(facts, self.data_name, self.allowed)
        if encoder.shapes is None:
            return config.with_family(encoder=encoder)
        return self._of_shapes(encoder, *encoder.shapes)

    def _check_negatives(self, num_items: int) -> None:
        negatives = self.own.negatives
        if isinstance(negatives, HardNegatives) and negatives.num_hard >= num_items:
            raise ValueError(
                f"negatives.num_hard must be below the {num_items} items of {self.data_name}, got {negatives.num_hard}"
            )

    def remarks(self, read: DataSet) -> list[str]:
        """Remark on a mixture over texts, more negatives than items, and histories longer than the window."""
        negatives, encoder, num_items = self.own.negatives, self.own.encoder, len(read.item_ids)
        found = list[str]()
        if not self.trains:
            return found
        if isinstance(negatives, UniformNegatives) and negatives.num_items > num_items:
            found.append(
                f"negatives.num_items is {negatives.num_items} and {self.data_name} has {num_items} items, so that "
                "each is a negative once"
            )
        elif isinstance(negatives, DrawnNegatives) and negatives.num_items > num_items:
            found.append(
                f"negatives.num_items should be at most the {num_items} items of {self.data_name}, got "
                f"{negatives.num_items}: lower --negatives.num-items"
            )
        inputs = read.queries["train"].inputs
        data, is_mixture = self.config.data, self.own.similarity.kind == "mixture_of_logits"
        if is_mixture and isinstance(inputs, Texts) and not encoder.is_frozen and (data.folder or data.items):
            found.append(
                "a mixture over texts found 2 to 11% less than a dot product on TLDR and SciFact, as its gate learnt "
                "the pairs of training: train a dot product too, such as text-dot"
            )
        longest = encoder.reads_at_most
        if longest is not None and isinstance(inputs, Visits):
            num_longer = int((inputs.lengths > longest).sum())
            if num_longer:
                found.append(
                    f"{num_longer} of {len(inputs)} histories have more than the {longest} items of "
                    "encoder.max_length: training reads a window of each, and a query its newest items"
                )
        return found

    def _of_shapes(self, encoder: Encoder, query_width: int, item_shape: tuple[int, int]) -> RunConfig:
        """The config with vectors of these shapes.

        Raises:
            ValueError: if they cannot become the components that the config asks for.
        """
        (num_vectors, width), components = item_shape, self.own.components
        _, num_item_components = self.own.num_components
        if components.items == "projected" and num_vectors > 1:
            raise ValueError(
                f"components.items must be given for items of {num_vectors} vectors, got projected: an item's vectors "
                "are its components"
            )
        if components.items == "given" and num_vectors != num_item_components:
            raise ValueError(
                f"similarity.num_item_components must be the number of an item's vectors, {num_vectors}, got "
                f"{num_item_components}"
            )
        if components.queries == "given" and query_width != width:
            raise ValueError(f"vectors of items must be as wide as the {query_width} of queries, got {width}")
        if components.items == "given":
            components = replace(components, width=width)
        return self.config.with_family(encoder=encoder, components=components)

    def as_dot_product(self) -> RunConfig | None:
        own = self.own
        has_mixture = own.similarity.kind != "dot_product" and self.similarity().num_components != (1, 1)
        encoder, components = own.encoder, own.components
        is_given = components.items == "given"
        if not has_mixture or (is_given and encoder.is_frozen) or own.trained_quantizer is not None:
            return None
        made: Made = components.items
        if isinstance(encoder, HistoryConfig):
            encoder = replace(encoder, num_users=0)  # the user is a component of its own
            if own.loss.kind in WITH_TEMPERATURE or own.numbers_of_item % encoder.num_heads:
                made = "projected"
        return self.config.with_family(
            encoder=encoder,
            components=replace(components, queries=made, items=made),
            similarity=DotProductConfig(temperature=own.similarity.temperature),
            items=FullItems(),
            surrogate=SurrogateConfig(),
        ).with_width(own.numbers_of_item)

    def pieces(self) -> Sequence[Piece]:
        quantizer = self.own.trained_quantizer
        if quantizer is None:
            return [DualEncoderPiece(self)]
        if quantizer.encoder_of:
            return [EarlierEncoder(self, quantizer.encoder_of), QuantizerPiece(self)]
        return [DualEncoderPiece(self, ENCODER), QuantizerPiece(self)]

    def report(self, model: Model, encoded: Callable[[], AnyItems], read: DataSet) -> Report:
        """The report on the validation queries over encoded items, cut off by mass if the run trains tau_q."""
        distribution = self.cutoff_support.distribution() if self.cutoff_support.has_trained_temperature else None
        return validate(model, encoded, read.queries["valid"], distribution)

    def training_step(self, trained: DualEncoder, mean_over_workers: Callable[[Tensor], Tensor]) -> TrainingStep:
        """Make the step that trains `trained` by the losses of the run.

        Raises:
            ValueError: as `DualEncoder.compile_blocks`.
        """
        if self.own.compile_blocks:
            trained.compile_blocks()
        return TrainingStep(
            trained,
            self.objective(trained),
            self.contrast(),
            terms=self.terms(mean_over_workers),
            has_gates_of_others=self.own.terms.mutual_information_of == "all",
            encode_size=self.own.encode_size,
            precision=PRECISIONS[self.config.training.precision],
        )

    def terms(self, mean_over_workers: Callable[[Tensor], Tensor]) -> list[Term]:
        """Make the terms that are added to the loss of the queries."""
        weights = self.own.terms
        added = list[Term]()
        if weights.mutual_information_weight:
            added.append(MutualInformation(weights.mutual_information_weight, mean_over_workers))
        if weights.glas_weight:
            added.append(Glas(weights.glas_weight))
        return added

    def contrast(self) -> Contrast:
        """Which items a query is compared with."""
        match self.own.negatives:
            case DrawnNegatives() | InBatchNegatives():
                return WithinBatch()
            case CrossDeviceNegatives(block_size=0):
                return Gathered()
            case CrossDeviceNegatives(block_size=block_size):
                return Streamed(block_size)
            case _:
                assert_never(self.own.negatives)

    def objective(self, trained: DualEncoder) -> Objective:
        """Make the objective of a batch's scores; its own initial weights depend on the seed alone."""
        match self.own.loss:
            case ContrastiveConfig(pointwise_weight=weight):
                return Contrastive(self.logit(), weight)
            case PointwiseConfig():
                return Pointwise(self.logit())
            case MaximumLikelihoodConfig():
                num_query_components, _ = trained.similarity.num_components
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.config.seed)
                    return MaximumLikelihood(num_query_components * self.own.component_width)
            case NoneConfig():
                raise AssertionError("a run without a loss takes no step")
            case _:
                assert_never(self.own.loss)

    def learn_tokens(
        self,
        built: DualEncoder,
        read: DataSet,
        *,
        is_first: bool = True,
        from_first: Callable[[Tensor], Tensor] = lambda tokens: tokens,
    ) -> None:
        """Let a model whose encoder has tokens learn them from all texts that training sees, before it trains.

        Args:
            is_first: whether this is the run's first worker; the others take its tokens.
            from_first: gives the first worker's tensor to every worker.
        """
        if not self.own.encoder.has_tokens:
            return
        if is_first:
            queries = read.queries["train"].inputs
            assert isinstance(read.item_inputs, Texts)
            assert isinstance(queries, Texts)
            built.encoder.learn(read.item_inputs.and_then(queries))
        built.encoder.set_extra_state(from_first(built.encoder.get_extra_state()))

    def sampler(
        self,
        trained: DualEncoder,
        read: DataSet,
        rank: int = 0,
        num_workers: int = 1,
        mining: Mining | None = None,
    ) -> Sampler:
        """The training batches of a worker.

        Args:
            mining: finds the hard negatives, if the run has some.
        """
        queries, negatives = read.queries["train"], self.own.negatives
        shared: dict[str, Any] = {
            "batch_size": self.config.training.batch_size,
            "seed": self.config.seed,
            "rank": rank,
            "num_workers": num_workers,
        }
        if isinstance(negatives, DrawnNegatives):
            shared["num_items"] = negatives.num_items
        if isinstance(self.own.encoder, HistoryConfig):
            assert isinstance(queries.inputs, Visits)
            assert isinstance(negatives, DrawnNegatives)
            return WindowSampler(
                queries.inputs,
                queries.relevant.rows,
                queries.relevant.weights,
                num_corpus_items=len(read.item_ids),
                max_length=self.own.encoder.max_length,
                shared_by=negatives.shared_by,
                drawing=self.drawing(read),
                **shared,
            )
        features = trained.query_features(queries.inputs), trained.item_features(read.item_inputs)
        if isinstance(negatives, InBatchNegatives | MixedNegatives):
            return InBatchSampler(queries, *features, is_corrected=negatives.is_corrected, **shared)
        if isinstance(negatives, CrossDeviceNegatives):
            return InBatchSampler(queries, *features, **shared)
        co_occurrence = None
        if self.own.terms.glas_weight:
            co_occurrence = CoOccurrence(relevance_of(queries.relevant), len(read.item_ids))
        hard_rows = None if mining is None else mining.at_batch
        drawing = self.drawing(read)
        return PairSampler(
            queries, *features, drawing=drawing, hard_rows=hard_rows, co_occurrence=co_occurrence, **shared
        )

    def drawing(self, read: DataSet) -> Drawing:
        """How negatives are drawn."""
        negatives, counts = self.own.negatives, training_counts(read)
        match negatives:
            case PopularityNegatives():
                return Popularity(counts, negatives.power, is_corrected=negatives.is_corrected)
            case MixedNegatives():
                return Mixture(Popularity(counts, 1.0, is_corrected=negatives.is_corrected))
            case UniformNegatives(num_items=wanted) if wanted >= len(read.item_ids):
                return EveryItem(len(read.item_ids))
            case _:
                return Uniform(len(read.item_ids))

    def mining(self, trained: DualEncoder, read: DataSet, *, is_first: bool = True) -> Mining | None:
        """Make the search for hard negatives; None if the run has none."""
        negatives, queries = self.own.negatives, read.queries["train"]
        if not isinstance(negatives, HardNegatives):
            return None
        features = trained.query_features(queries.inputs), trained.item_features(read.item_inputs)
        find = partial(hardest, trained, queries, *features, negatives.num_hard)
        shape = (len(queries), negatives.num_hard)
        every = negatives.mine_every * self.config.training.num_batches
        return Mining(find, shape, every, from_first=from_first, is_first=is_first)


def training_counts(read: DataSet) -> NDArray[np.int64]:
    """How many training queries each item answers [X]. In histories every position but the first is one's answer."""
    train = read.queries["train"]
    counts = np.bincount(train.relevant.rows, minlength=len(read.item_ids))
    if isinstance(train.inputs, Visits):
        is_first = np.zeros(len(train.inputs.rows) + 1, dtype=bool)
        is_first[train.inputs.starts] = True
        counts = counts + np.bincount(train.inputs.rows[~is_first[:-1]], minlength=len(read.item_ids))
    return counts


def facts_of(read: DataSet) -> InputFacts:
    """Facts of a data set that an encoder is completed from."""
    queries, items = read.queries["train"].inputs, read.item_inputs
    has_times = getattr(queries, "times", None) is not None
    if not (isinstance(queries, DenseRows) and isinstance(items, DenseRows)):
        return InputFacts(has_times=has_times)
    if queries.widths:
        return InputFacts(query_widths=queries.widths, item_widths=items.widths)
    num_vectors, width = (1, *items.values.shape[1:])[-2:]
    return InputFacts(query_width=queries.width, item_shape=(num_vectors, width), has_times=has_times)


FAMILY = DualEncoderTraining
