"""BM25, the baseline for texts: its stored words, and what searches them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.forms import FORMS, QueryForm
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.bm25.model import Bm25Model
from rails_ray.families.served_family import NO_INDEXES, ServedFamily
from rails_ray.modules import weight_files
from rails_ray.modules.similarities.bm25 import Bm25, TermWeights
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.methods.bm25 import ByTerms

LEAST_SCORE = torch.finfo(torch.float32).tiny  # an item that shares no term scores 0, any other more


@dataclass(frozen=True)
class Bm25Family(ServedFamily):
    """The contract of `ServedFamily`."""

    own: Bm25Config
    item_state = TermWeights

    @property
    def form(self) -> QueryForm:
        return FORMS["text"]

    @property
    def cutoff_support(self) -> CutoffSupport:
        return CutoffSupport(trained_by="none", has_bounded_scores=False, least_score=LEAST_SCORE)

    def model(self) -> Bm25Model:
        """A model that has counted no words yet."""
        return Bm25Model(k1=self.own.k1, b=self.own.b, max_terms=self.own.max_terms, words=self.own.words).eval()

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> Bm25Model:
        [(_, data)] = weights
        stored = self.model()
        weight_files.load(stored, data)
        return stored

    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> Bm25:
        """A sum over shared terms learns nothing."""
        return Bm25()

    def searcher(self, similarity: Bm25, items: Any, indexes: Mapping[str, VectorIndex] = NO_INDEXES) -> ByTerms:
        return ByTerms(similarity, items)


FAMILY = Bm25Family
