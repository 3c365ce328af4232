"""Config -> objects of a dual encoder: models, and what their scores offer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import nn

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.cutoffs.distributions import BetaDistribution, ExpDistribution
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.data.forms import FORMS, QueryForm, vectors_of_items
from rails_ray.data.queries import DenseRows, Visits
from rails_ray.families.base import Family, Sizes
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import DrawnNegatives, DualEncoderConfig, Encoder, HardNegatives
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.vector_items import quantized
from rails_ray.families.vector_items.items import DualEncoderItems
from rails_ray.families.vector_items.quantizer_piece import ENCODER, EarlierEncoder, QuantizerPiece, of_encoder
from rails_ray.families.vector_items.storing import PqItems
from rails_ray.modules import weight_files
from rails_ray.modules.encoders import frozen
from rails_ray.modules.encoders.components import (
    GivenItems,
    GivenQueries,
    ItemComponents,
    QueryComponents,
    start_as_copies,
    start_as_cosines,
    start_small,
)
from rails_ray.modules.encoders.frozen import FrozenText, FunctionConfig, SentenceTransformerConfig
from rails_ray.modules.encoders.histories import HistoryConfig, HistoryEncoder
from rails_ray.modules.encoders.hstu import Hstu, HstuConfig
from rails_ray.modules.encoders.sasrec import Sasrec, SasrecConfig
from rails_ray.modules.encoders.text import TextTransformer, TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTower, TwoTowerConfig
from rails_ray.modules.encoders.vectors import Vectors, VectorsConfig
from rails_ray.modules.model import Model
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.reranking.surrogate import SurrogateConfig
from rails_ray.storage.ids import ItemIds
from rails_ray.training import checkpoints
from rails_ray.training.collectives.first import from_first
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.evaluation.mixtures import measures
from rails_ray.training.evaluation.report import Report, validate, validation_mrr
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Piece, Prepared, Steps

EncoderModule = TwoTower | TextTransformer | Sasrec | Hstu | Vectors | FrozenText
FROZEN = (SentenceTransformerConfig, FunctionConfig)  # models of texts of which nothing is trained
WITH_TEMPERATURE = ("beta_nce", "exp_nce")  # losses that train tau_q


@dataclass(frozen=True)
class DualEncoderFamily(DualEncoderTraining, DualEncoderItems, Family):
    """The contract of `Family`.

    allowed: code that the config may name.
    """

    allowed: AllowedCode = OURS_ALONE

    @staticmethod
    def of(config: RunConfig) -> "DualEncoderFamily":
        """The family of a run that is known to be a dual encoder."""
        assert isinstance(config.family, DualEncoderConfig)
        return DualEncoderFamily(config, config.family)

    @property
    def form(self) -> QueryForm:
        encoder = self.own.encoder
        if isinstance(encoder, VectorsConfig):
            return vectors_of_items(encoder.item_columns, encoder.item_shape)
        return FORMS["history" if isinstance(encoder, HistoryConfig) else "text"]

    @property
    def offers(self) -> CutoffSupport:
        kind = self.own.loss.kind
        return CutoffSupport(
            trained_by=kind,
            training_logit=None if kind == "none" else self.logit(),
            distribution_of=ExpDistribution if kind == "exp_nce" else BetaDistribution,
            has_trained_temperature=kind in WITH_TEMPERATURE,
            has_bounded_scores=True,
            width=self.own.components.width,
        )

    def check_code(self, has_ranker: bool = False) -> None:
        if isinstance(self.own.encoder, FROZEN):
            frozen.check(self.own.encoder, self.allowed)

    @property
    def surrogate(self) -> SurrogateConfig:
        return self.own.surrogate

    @property
    def sizes(self) -> Sizes:
        encoder = self.own.encoder
        max_length = encoder.max_length if isinstance(encoder, TransformerConfig | HistoryConfig) else None
        return Sizes(max_length=max_length, similarity=self.own.similarity.kind)

    def completed(self, read: DataSet) -> RunConfig:
        """The config with what the data set or a frozen model decides: items, and the widths of vectors."""
        if self.own.trained_quantizer is not None:
            assert isinstance(self.own.items, PqItems)
            quantized.check_codewords(self.own.items, len(read.item_ids), "--items.num-codewords ")
        config, encoder = self.with_items(read.item_ids), self.own.encoder
        self._check_negatives(len(read.item_ids))
        if isinstance(encoder, HstuConfig) and getattr(read.queries["train"].inputs, "times", None) is None:
            assert isinstance(config.family, DualEncoderConfig)
            assert isinstance(config.family.encoder, HstuConfig)
            return config.with_family(encoder=replace(config.family.encoder, num_time_buckets=0))
        if isinstance(encoder, VectorsConfig):
            return self._of_vectors(encoder, read)
        if isinstance(encoder, FROZEN):
            if isinstance(encoder, SentenceTransformerConfig):
                place = str(Path(encoder.pretrained).expanduser().resolve())  # workers run in folders of their own
                encoder = replace(encoder, pretrained=place, sha256=encoder.sha256 or frozen.digest_of(place))
            width = encoder.width or frozen.width_of(encoder, self.allowed)
            return self._of_shapes(replace(encoder, width=width), width, (1, width))
        return config

    def _check_negatives(self, num_items: int) -> None:
        negatives = self.own.negatives
        if isinstance(negatives, HardNegatives) and negatives.num_hard >= num_items:
            raise ValueError(
                f"negatives.num_hard must be below the {num_items} items of {self.data_name}, got {negatives.num_hard}"
            )

    def remarks(self, read: DataSet) -> list[str]:
        """The contract of `Family`: more negatives than items, and histories longer than the window."""
        negatives, encoder, num_items = self.own.negatives, self.own.encoder, len(read.item_ids)
        found = []
        if isinstance(negatives, DrawnNegatives) and negatives.num_items > num_items:
            found.append(
                f"negatives.num_items should be at most the {num_items} items of {self.data_name}, got "
                f"{negatives.num_items}: some are drawn several times"
            )
        inputs = read.queries["train"].inputs
        if isinstance(encoder, HistoryConfig) and isinstance(inputs, Visits):
            num_longer = int((inputs.lengths > encoder.max_length).sum())
            if num_longer:
                found.append(
                    f"encoder.max_length {encoder.max_length} is less than the items of {num_longer} of {len(inputs)} "
                    "histories: training reads a window of each, and a query its newest items"
                )
        return found

    def _of_vectors(self, encoder: VectorsConfig, read: DataSet) -> RunConfig:
        queries, items, folder = read.queries["train"].inputs, read.item_inputs, self.data_name
        if not (isinstance(queries, DenseRows) and isinstance(items, DenseRows)):
            raise ValueError(f"queries of {folder} must be vectors for encoder.kind vectors, got features")
        width, shape = queries.width, (1, *items.values.shape[1:])[-2:]
        if encoder.query_width not in (0, width):
            raise ValueError(
                f"encoder.query_width must be the {width} of the queries of {folder}, or 0, got {encoder.query_width}"
            )
        return self._of_shapes(replace(encoder, query_width=width, item_shape=shape), width, shape)

    def _of_shapes(self, encoder: Encoder, query_width: int, item_shape: tuple[int, int]) -> RunConfig:
        """The config with vectors of these shapes.

        Raises:
            ValueError: if they cannot become the components that the config asks for.
        """
        (num_vectors, width), components = item_shape, self.own.components
        _, num_item_components = self.similarity().num_components
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

    @property
    def has_a_row_for_each_item(self) -> bool:
        return isinstance(self.own.encoder, HistoryConfig)

    def with_items(self, item_ids: ItemIds) -> RunConfig:
        """The config, with the items filled in if the model has a row for each of them."""
        encoder, folder = self.own.encoder, self.data_name
        if not isinstance(encoder, HistoryConfig):
            return self.config
        num_items = len(item_ids)
        if encoder.num_items not in (0, num_items):
            raise ValueError(
                f"encoder.num_items must be the {num_items} items of {folder}, or 0, got {encoder.num_items}"
            )
        corpus = item_ids.digest()[:16]
        if encoder.corpus not in ("", corpus):
            raise ValueError(
                f"{folder} must hold the items that the run was trained on, in their order, got others: train a new run"
            )
        return self.config.with_family(encoder=replace(encoder, num_items=num_items, corpus=corpus))

    def pieces(self) -> Sequence[Piece]:
        quantizer = self.own.trained_quantizer
        if quantizer is None:
            return [DualEncoderPiece(self)]
        if quantizer.encoder_of:
            return [EarlierEncoder(self, quantizer.encoder_of), QuantizerPiece(self)]
        return [DualEncoderPiece(self, ENCODER), QuantizerPiece(self)]

    def report(self, model: Model, encoded: Callable[[], AnyItems], read: DataSet) -> Report:
        """The report on the validation queries over encoded items, cut off by mass if the run trains tau_q."""
        distribution = self.offers.distribution() if self.offers.has_trained_temperature else None
        return validate(model, encoded, read.queries["valid"], distribution)

    def model(self) -> DualEncoder:
        """An untrained model on the CPU; its initial weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            compared_by = self.similarity()
            num_components = compared_by.num_components
            encoded_by = self.encoder(num_components)
            built = DualEncoder(
                encoded_by,
                self._query_components(encoded_by),
                self._item_components(encoded_by),
                compared_by,
            )
            _start(built)
        # A loss that does not read tau_q leaves its head without a gradient, which data-parallel training refuses.
        built.query_components.temperature.requires_grad_(self.own.loss.kind in WITH_TEMPERATURE)
        return built

    def _query_components(self, encoded_by: EncoderModule) -> QueryComponents | GivenQueries:
        if self.own.components.queries == "given":
            return GivenQueries(self.own.temperature)
        own_width = encoded_by.own_width if isinstance(encoded_by, HistoryEncoder) else 0
        return QueryComponents(
            encoded_by.query_width,
            self.similarity().num_components,
            self.own.components,
            self.own.temperature,
            own_width,
            "query" in self._gate_inputs,
        )

    def _item_components(self, encoded_by: EncoderModule) -> ItemComponents | GivenItems:
        made = GivenItems if self.own.components.items == "given" else ItemComponents
        own, num_components = self.own.components, self.similarity().num_components
        return made(encoded_by.item_width, num_components, own, "item" in self._gate_inputs)

    @property
    def _gate_inputs(self) -> Sequence[str]:
        similarity = self.own.similarity
        return similarity.gate_inputs if isinstance(similarity, MixtureOfLogitsConfig) else ()

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> DualEncoder:
        data, prefix = of_encoder(weights)
        if not prefix:
            return weight_files.loaded(self.model, data).eval()
        model = self.model()
        weight_files.load_below(model, data, prefix)
        return model.eval()

    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> MixtureOfLogits | DotProduct:
        """Without the encoder, which may be large; a dot product has no weights at all."""
        made = self.similarity().eval()
        if isinstance(made, MixtureOfLogits):
            data, prefix = of_encoder(weights)
            weight_files.load_below(made, data, f"{prefix}similarity.")
        return made

    def encoder(self, num_components: tuple[int, int]) -> EncoderModule:
        """
        Args:
            num_components: (P_Q, P_X) of the similarity.
        """
        match self.own.encoder:
            case TransformerConfig():
                return TextTransformer(self.own.encoder, num_components)
            case TwoTowerConfig():
                return TwoTower(self.own.encoder)
            case SasrecConfig():
                return Sasrec(self.own.encoder, self.own.components.width)
            case HstuConfig():
                return Hstu(self.own.encoder, self.own.components.width)
            case VectorsConfig():
                return Vectors(self.own.encoder)
            case SentenceTransformerConfig() | FunctionConfig():
                return FrozenText(self.own.encoder, self.allowed)
            case _:
                assert_never(self.own.encoder)

    def similarity(self) -> MixtureOfLogits | DotProduct:
        match self.own.similarity:
            case MixtureOfLogitsConfig():
                return MixtureOfLogits(self.own.similarity)
            case DotProductConfig():
                return DotProduct(self.own.similarity)
            case _:
                assert_never(self.own.similarity)


@dataclass(frozen=True)
class DualEncoderPiece:
    """The contract of `Piece`: the whole model, on workers that share its gradient."""

    family: DualEncoderFamily
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


def _start(built: DualEncoder) -> None:
    """Let frozen vectors be compared as they are, as far as components are wide enough, before any training."""
    query, item = built.query_components, built.item_components
    if isinstance(query, GivenQueries):
        return
    if isinstance(item, GivenItems):
        start_as_copies(query.project, query.num_query_components)
        return
    if isinstance(built.encoder, Vectors | FrozenText):
        start_as_cosines(query.project)
    _align(query.project, item.project)
    if isinstance(built.similarity, MixtureOfLogits) and query.gate is not None and item.gate is not None:
        built.similarity.start_as_a_dot_product()
        start_small(query.gate)
        start_small(item.gate)


def _align(query: nn.Linear, item: nn.Linear) -> None:
    """Let query and item components begin as the same linear maps, as far as both sides have them.

    With towers that begin equal too, an item begins near the queries whose words it shares, and training improves on
    that instead of finding it (figures: jobs/benches/LOG.md).
    """
    if query.in_features == item.in_features:
        shared = min(query.out_features, item.out_features)
        with torch.no_grad():
            item.weight[:shared] = query.weight[:shared]
            item.bias[:shared] = query.bias[:shared]
