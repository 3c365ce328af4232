"""RBE: what its items become, and what searches them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.data.forms import FORMS, QueryForm
from rails_ray.families.items import ItemEncoder
from rails_ray.families.rbe.config import NoFeatures, RbeConfig
from rails_ray.families.rbe.model import Rbe, RbeSizes
from rails_ray.families.served_family import ServedFamily
from rails_ray.families.vector_items.items import VectorItems
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.frozen import FrozenText
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.reranking.rankers import Candidate, candidates_of
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage.filesystem import Storage


@dataclass(frozen=True)
class RbeFamily(VectorItems, ServedFamily):
    """The contract of `ServedFamily`. Items are vectors, stored and indexed as those of a dual encoder."""

    own: RbeConfig

    @property
    def form(self) -> QueryForm:
        return FORMS["scored_text"]

    @property
    def cutoff_support(self) -> CutoffSupport:
        return CutoffSupport(trained_by=self.own.loss.kind, has_bounded_scores=False, width=self.own.width)

    @property
    def ranker(self) -> RankerConfig:
        return self.own.ranker

    def check_code(self, has_ranker: bool = False) -> None:
        if not isinstance(self.own.features, NoFeatures):
            self.own.features.check_code(self.allowed)
        super().check_code(has_ranker)

    def supports(self, model: Model) -> Sequence[Candidate]:
        assert isinstance(model, Rbe)
        return model.supports

    def similarity(self) -> DotProduct:
        return DotProduct(DotProductConfig(temperature=1.0), has_bounded_vectors=False)

    def model(self) -> Rbe:
        """A model that has learned nothing, of the sizes that `completed` fills in."""
        own = self.own
        reads = None if isinstance(own.features, NoFeatures) else FrozenText(own.features, self.allowed)
        sizes = RbeSizes(
            num_items=own.num_items,
            num_supports=own.num_supports,
            num_queries=own.num_support_queries,
            num_features=0 if reads is None else reads.query_width,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return Rbe(own.embedding, sizes, own.ranker, reads=reads, ridge=own.ridge, allowed=self.allowed)

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> Rbe:
        [(_, data)] = weights
        model: Rbe = weight_files.loaded(self.model, data).eval()
        if self.own.is_on_sphere:
            model.lay_on_sphere()
        return model

    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> DotProduct:
        """A dot product has no weights."""
        return self.similarity().eval()

    def encoded_by(self, model: Model) -> ItemEncoder:
        return ByRelevance(model)

    def run_items(self, storage: Storage, run: str, model: Model, data: DataSet) -> AnyItems:
        return self.encoded_by(model)(data.item_ids, data.item_inputs)


@dataclass(frozen=True)
class ByRelevance:
    """The contract of `ItemEncoder`: items that training knew come from its matrix, others are scored."""

    model: Model

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        return encode_items(self.model, self.model.item_features(candidates_of(list(item_ids), list(inputs))))


FAMILY = RbeFamily
