"""Dual encoders: their models, what becomes of their items, and what their scores offer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import torch
from torch import nn

from rails_ray.cutoffs.distributions import BetaDistribution, ExpDistribution
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.forms import FORMS, QueryForm, several_vectors, vectors_of_items
from rails_ray.data.vectors import check_directions, zero_rows
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import WITH_TEMPERATURE, DualEncoderConfig
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.items import ByModel, ItemEncoder
from rails_ray.families.served_family import ServedFamily
from rails_ray.families.vector_items.items import VectorItems
from rails_ray.families.vector_items.trained_codes import of_encoder
from rails_ray.modules import weight_files
from rails_ray.modules.encoders import Encoder
from rails_ray.modules.encoders.components import (
    GatedQueries,
    GivenItems,
    GivenQueries,
    ItemComponents,
    QueryComponents,
    start_as_copies,
    start_as_cosines,
    start_small,
)
from rails_ray.modules.encoders.frozen import FrozenTextConfig
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.encoders.vectors import VectorRows, VectorsConfig
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.losses.exp_nce import exp_logit
from rails_ray.modules.losses.sampled_softmax import ScaledLogit
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.reranking.surrogate import SurrogateConfig
from rails_ray.storage.ids import ItemIds


@dataclass(frozen=True)
class DualEncoderFamily(VectorItems, ServedFamily):
    """The contract of `ServedFamily`."""

    own: DualEncoderConfig

    @property
    def form(self) -> QueryForm:
        encoder = self.own.encoder
        if isinstance(encoder, VectorsConfig):
            return vectors_of_items(encoder.item_columns, encoder.item_shape)
        if isinstance(encoder, NamedVectorsConfig):
            return several_vectors(
                (encoder.query_columns, encoder.item_columns), (encoder.query_widths, encoder.item_widths)
            )
        return FORMS[encoder.form]

    @property
    def cutoff_support(self) -> CutoffSupport:
        kind = self.own.loss.kind
        return CutoffSupport(
            trained_by=kind,
            training_logit=None if kind == "none" else self.logit(),
            distribution_of=ExpDistribution if kind == "exp_nce" else BetaDistribution,
            has_trained_temperature=kind in WITH_TEMPERATURE,
            has_bounded_scores=True,
            width=self.own.component_width,
            has_cosines=self.own.components.lengths == "one",
        )

    def check_code(self, has_ranker: bool = False) -> None:
        self.own.encoder.check_code(self.allowed)

    @property
    def finds_zeros_last(self) -> bool:
        return self.own.encoder.is_frozen and self.config.data.zero_vectors == "keep"

    def encoded_by(self, model: Model) -> ItemEncoder:
        return ByModel(model, self.check_directions if isinstance(self.own.encoder, FrozenTextConfig) else None)

    def check_directions(self, item_ids: Sequence[Any], features: VectorRows, what: str = "a part's items") -> None:
        """Check what a frozen model of texts gives of items.

        Args:
            what: names the items.

        Raises:
            ValueError: if an item's vector is all zeros, unless such items are kept.
        """
        zeros = zero_rows(features.tensor.numpy())
        if len(zeros) and self.config.data.zero_vectors == "refuse":
            check_directions(what, len(zeros), len(features), item_ids[int(zeros[0])])

    @property
    def surrogate(self) -> SurrogateConfig:
        return self.own.surrogate

    @property
    def has_a_row_for_each_item(self) -> bool:
        return self.own.encoder.form == "history"

    def with_items(self, item_ids: ItemIds) -> RunConfig:
        """The config, with the items filled in if the model has a row for each of them."""
        encoder = self.own.encoder.with_items(len(item_ids), item_ids.digest, self.data_name)
        return self.config.with_family(encoder=encoder)

    def logit(self) -> ScoreLogit:
        """The logit of a score that the loss compares; score / tau if the loss has none of its own."""
        match self.own.loss.kind:
            case "beta_nce":
                return beta_logit
            case "exp_nce":
                return exp_logit
            case "sampled_softmax" | "pointwise" | "maximum_likelihood":
                return ScaledLogit(self.own.similarity.temperature)
            case "none":
                raise AssertionError("a run without a loss has no logit")
            case _:
                assert_never(self.own.loss.kind)

    def model(self) -> DualEncoder:
        """An untrained model on the CPU; its initial weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            compared_by = self.similarity()
            num_components = compared_by.num_components
            encoded_by = self.own.encoder.make(num_components, self.own.component_width, self.allowed)
            built = DualEncoder(
                encoded_by,
                self._query_components(encoded_by),
                self._item_components(encoded_by),
                compared_by,
                finds_zeros_last=self.finds_zeros_last,
            )
            _start(built, self.own.encoder.is_frozen)
        # A loss that does not read tau_q leaves its head without a gradient, which data-parallel training refuses.
        built.query_components.temperature.requires_grad_(self.own.loss.kind in WITH_TEMPERATURE)
        return built

    def _query_components(self, encoded_by: Encoder[Any]) -> QueryComponents | GatedQueries | GivenQueries:
        if isinstance(self.own.encoder, NamedVectorsConfig):
            return GatedQueries(
                self.own.encoder.query_widths,
                self.own.num_components,
                self.own.components,
                self.own.temperature,
                "query" in self._gate_inputs,
            )
        if self.own.components.queries == "given":
            return GivenQueries(self.own.temperature, self._given_shortest)
        return QueryComponents(
            encoded_by.query_width,
            self.similarity().num_components,
            replace(self.own.components, width=self.own.component_width),
            self.own.temperature,
            self.own.encoder.user_width(self.own.component_width),
            "query" in self._gate_inputs,
        )

    def _item_components(self, encoded_by: Encoder[Any]) -> ItemComponents | GivenItems:
        own, encoder = self.own.components, self.own.encoder
        how = (encoded_by.item_width, self.own.num_components, own, "item" in self._gate_inputs)
        if own.items == "projected":
            return ItemComponents(*how)
        widths = encoder.item_widths if isinstance(encoder, NamedVectorsConfig) else ()
        return GivenItems(*how, widths, self._given_shortest)

    @property
    def _given_shortest(self) -> float:
        """Vectors of one's own have a direction however short they are."""
        return 0.0 if self.own.encoder.is_frozen else self.own.components.shortest

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

    def similarity(self) -> MixtureOfLogits | DotProduct:
        match self.own.similarity:
            case MixtureOfLogitsConfig():
                num_query, num_item = self.own.num_components
                return MixtureOfLogits(
                    replace(self.own.similarity, num_query_components=num_query, num_item_components=num_item)
                )
            case DotProductConfig():
                return DotProduct(self.own.similarity)
            case _:
                assert_never(self.own.similarity)


def _start(built: DualEncoder, is_frozen: bool) -> None:
    """Let frozen vectors and given components be compared as they are before any training, as far as components are
    wide enough and no layer lies between."""
    query, item = built.query_components, built.item_components
    if isinstance(query, GivenQueries):
        return
    if isinstance(query, GatedQueries):
        built.similarity.start_at(built.encoder.config.begins_open)
        for gate in filter(None, (query.gate, item.gate)):
            start_small(gate)
        return
    if isinstance(item, GivenItems):
        if query.hidden is None:
            start_as_copies(query.project, query.num_projected)
        return
    if is_frozen:
        start_as_cosines(query.project)
    _align(query.project, item.project)
    if isinstance(built.similarity, MixtureOfLogits) and query.gate is not None and item.gate is not None:
        built.similarity.start_as_a_dot_product()
        start_small(query.gate)
        start_small(item.gate)


def _align(query: nn.Linear, item: nn.Linear) -> None:
    """Let query and item components begin as the same linear maps, as far as both sides have them.

    With towers that begin equal too, an item begins near the queries whose words it shares, and training improves on
    that instead of finding it (figures: docs/log/training.md).
    """
    if query.in_features == item.in_features:
        shared = min(query.out_features, item.out_features)
        with torch.no_grad():
            item.weight[:shared] = query.weight[:shared]
            item.bias[:shared] = query.bias[:shared]


FAMILY = DualEncoderFamily
