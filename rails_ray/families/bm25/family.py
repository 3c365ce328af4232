"""Config -> objects of BM25, the baseline for texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rails_ray.cutoffs.distributions import BetaDistribution
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import FORMS, QueryForm
from rails_ray.families.base import NO_INDEXES, Family
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.bm25.model import Bm25Model
from rails_ray.families.config import RunConfig
from rails_ray.modules import weight_files
from rails_ray.modules.similarities.bm25 import Bm25, TermWeights
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Prepared


@dataclass(frozen=True)
class Bm25Family(Family):
    """The contract of `Family`.

    own: this family's part of the config.
    """

    config: RunConfig
    own: Bm25Config
    item_state = TermWeights

    @property
    def form(self) -> QueryForm:
        return FORMS["text"]

    @property
    def offers(self) -> CutoffSupport:
        return CutoffSupport(
            trained_by="none",
            training_logit=None,
            distribution_of=BetaDistribution,
            has_trained_temperature=False,
            has_bounded_scores=False,
            width=None,
        )

    def pieces(self) -> list["Bm25Piece"]:
        return [Bm25Piece(self)]

    def model(self) -> Bm25Model:
        """A model that has counted no words yet."""
        return Bm25Model(k1=self.own.k1, b=self.own.b, max_terms=self.own.max_terms).eval()

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


@dataclass(frozen=True)
class Bm25Piece:
    """The contract of `Piece`: the words of all items are counted at once, and there is no step to take."""

    family: Bm25Family
    name: str = ""
    after: tuple[str, ...] = ()
    shares_gradient: bool = False
    training: None = None

    def check_workers(self, num_workers: int) -> None:
        """One worker counts, however many there are."""

    def prepare(self, given: Given) -> Prepared:
        model, read = self.family.model(), given.read
        model.fit(_texts(read))

        def report(progress: Progress) -> dict[str, Any]:
            return self.family.validation(given.storage, given.run, model, read).to_dict()

        return Prepared(module=model, report=report, steps=None)


def _texts(read: DataSet) -> Texts:
    assert isinstance(read.item_inputs, Texts)
    return read.item_inputs
