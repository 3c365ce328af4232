"""The method `ann` of a dot product: the list of an index of the only component.

An index of float32 knows the scores themselves, so that its list is the answer. One that rounds gives candidates, SPARE
of them for each item that is wanted, whose scores are then computed.

Axes: B queries.
"""

from dataclasses import replace

from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import QueryState, Searched
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.candidates import FirstStage
from rails_ray.search.checks import OF_K, check_items, check_query, check_width
from rails_ray.search.methods import Retriever
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.spec import SearchResult, SearchSpec

SPARE = 4  # candidates of an index that rounds, for each item of the k best


class ByIndex:
    """
    Args:
        first_stage: the indexes of the items.
        params: how much of its index a search looks at.
    """

    def __init__(self, similarity: Scorer, items: Searched, first_stage: FirstStage, params: SearchParams) -> None:
        check_items(similarity, items)
        self.similarity = similarity
        self.items = items
        self.first_stage = first_stage
        self.params = params
        self.index = first_stage.by_average.index

    @property
    def is_exact(self) -> bool:
        """Return whether the index can pass over no item."""
        return self.index.is_exact if self.index.knows_scores else self._rescored(1).is_exact

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`."""
        if not self.index.knows_scores:
            return self._rescored(spec.k).search(query, spec)
        check_query(query, self.similarity, self.items)
        if spec.threshold is None and self.params.num_candidates is not None and len(query):
            check_width("num_candidates", self.params.num_candidates, min(spec.k, len(self.items)), OF_K)
        if spec.threshold is None and self.params.nprobe is None:  # where a list is short, look further
            spec = replace(spec, at_least=spec.k)
        return self.index.search(query.components[:, 0], spec, self.params)

    def _rescored(self, k: int) -> Retriever[QueryState]:
        num = SPARE * k if self.params.num_candidates is None else self.params.num_candidates
        lists = CandidateLists(num_by_average=num)
        return Approximate(self.similarity, self.items, lists, self.first_stage, self.params)
