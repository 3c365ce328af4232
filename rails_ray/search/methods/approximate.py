"""Candidates by inner products, then their scores: methods that differ in whose candidates they take.

    per_embedding   the first items of every pair of components
    average         the first items by the mean component
    combined        both
    surrogate       the first items by vectors that were fitted to scores
    ann             the first items by the only component, of a dot product, if its index rounds (`by_index`)

Source: RAILS, Section 3.2 and Algorithm 2 (top-k per embedding, top-k average, combined top-k).
Differs from the source: lists are widened, doubling, until every query has k distinct candidates.

Axes: B queries, X items.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import QueryState, Searched
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.candidates import Candidates, FirstStage, chosen, longest_component, union
from rails_ray.search.certificates import rounding_slack
from rails_ray.search.checks import OF_K, check_items, check_query, check_width
from rails_ray.search.masks import Mask
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.rescore import candidate_scores
from rails_ray.search.scan import Scan
from rails_ray.search.spec import SearchResult, SearchSpec


@dataclass(frozen=True, kw_only=True)
class CandidateLists:
    """How many items the lists of a first stage hold.

    Args:
        num_per_embedding: length of each pair of components' list; 0 for no such lists.
        num_by_average: length of the list by the mean component; 0 for no such list.
    """

    num_per_embedding: int = 0
    num_by_average: int = 0

    def __post_init__(self) -> None:
        if self.num_per_embedding < 0 or self.num_by_average < 0 or not self.num_per_embedding + self.num_by_average:
            raise ValueError(
                "a first stage must take at least 1 item per embedding or by average, "
                f"got {self.num_per_embedding} and {self.num_by_average}"
            )

    @property
    def longest(self) -> int:
        return max(self.num_per_embedding, self.num_by_average)

    def doubled(self) -> "CandidateLists":
        return CandidateLists(num_per_embedding=2 * self.num_per_embedding, num_by_average=2 * self.num_by_average)

    def of_at_least(self, num: int) -> "CandidateLists":
        return CandidateLists(
            num_per_embedding=self.num_per_embedding and max(self.num_per_embedding, num),
            num_by_average=self.num_by_average and max(self.num_by_average, num),
        )


class Approximate:
    """Search in two stages. The first may miss an item; the bound says whether it can have.

    Args:
        first_stage: the indexes of the items, if they are made already.
        params: how much of its indexes a search looks at.
    """

    def __init__(
        self,
        similarity: Scorer,
        items: Searched,
        lists: CandidateLists,
        first_stage: FirstStage | None = None,
        params: SearchParams | None = None,
    ) -> None:
        check_items(similarity, items)
        if first_stage is None:
            first_stage = FirstStage(items, longest=1.0 if similarity.has_bounded_vectors else longest_component(items))
        self.similarity = similarity
        self.items = items
        self.lists = lists
        self.params = params
        self.per_embedding = first_stage.per_embedding if lists.num_per_embedding else None
        self.by_average = first_stage.by_average if lists.num_by_average else None
        self.num_pairs = math.prod(similarity.num_components)
        self.slack = rounding_slack(self.num_pairs, items.width, items.dtype) * first_stage.longest

    @property
    def is_exact(self) -> bool:
        """Return whether both sides have one component, whose cosine, and the average's, is the score itself, and no
        index that is asked can pass over an item."""
        stages = [stage for stage in (self.per_embedding, self.by_average) if stage is not None]
        return self.num_pairs == 1 and all(stage.is_exact for stage in stages)

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`. The k best come from at least k candidates; for a threshold the lists keep their
        given widths. With one component on each side a threshold needs no first stage: the scan compares the cosines
        with it.

        Raises:
            ValueError: also if all lists of the first stage together are shorter than k.
        """
        check_query(query, self.similarity, self.items)
        spec.check_queries(len(query))
        if self.is_exact and spec.threshold is not None:
            return BruteForce(self.similarity, self.items).search(query, spec)
        num_left = spec.num_left(len(query), len(self.items), query.components.device)
        if spec.threshold is None and len(query):
            self._check_lists(min(spec.k, len(self.items)))
        reaches = None  # a threshold that the lists were not asked for
        if self.num_pairs == 1 and self.by_average is not None and spec.threshold is not None:
            # One item more than wanted, so that the scan sees whether there are more.
            found = self.by_average.spec(query, replace(self._rounded(query, spec), k=spec.k + 1), self.params)
        else:
            found = self._at_least(query, num_left.clamp(max=spec.least), spec)
            reaches = spec.threshold
        running = Scan(replace(spec, mask=None))
        floor = None if running.floor is None else running.floor - self._slack(query)
        scores = candidate_scores(self.similarity, self.items, query, found, floor)
        num_scored = (scores > -torch.inf).sum(dim=1)
        item_rows, order = found.item_rows.sort(dim=1)  # as a scan takes them
        running.add(0, scores.gather(1, order))
        is_all = found.is_there.sum(dim=1) == num_left
        bound = self._bound(query, found, reaches).masked_fill(is_all, -torch.inf)
        reasons = [None if every else own for every, own in zip(is_all.tolist(), found.reasons, strict=True)]
        return running.found(num_scored, num_left, bound=bound, reasons=reasons, item_rows=item_rows)

    def _slack(self, query: QueryState) -> Float[Tensor, " B"]:
        """How far two ways to compute a score of a query may be apart."""
        return self.slack * _lengths(query.components)

    def _rounded(self, query: QueryState, spec: SearchSpec) -> SearchSpec:
        """Allow for an index whose scores may be off by the rounding of what it stores."""
        assert spec.threshold is not None
        assert self.by_average is not None
        error = self.by_average.error * _lengths(query.components) + self._slack(query)
        return replace(spec, threshold=spec.threshold - error)

    def _at_least(self, query: QueryState, least: Int[Tensor, " B"], spec: SearchSpec) -> Candidates:
        """Candidates from lists of the given widths, which are doubled for a query that has too few candidates while
        there are more. If they are too few then, indexes look further."""
        lists, mask = self.lists, spec.mask
        found = self._candidates(query, lists, mask)
        while lists.longest < len(self.items) and ((found.is_there.sum(dim=1) < least) & ~found.is_exhausted).any():
            lists = lists.doubled()
            has_enough = found.is_there.sum(dim=1) >= least
            found = chosen(has_enough | found.is_exhausted, found, self._candidates(query, lists, mask))
        has_enough = found.is_there.sum(dim=1) >= least
        if not has_enough.all() and (self.params is None or self.params.nprobe is None):
            further = self._candidates(query, lists.of_at_least(spec.least), mask, spec.least)
            found = chosen(has_enough, found, further)
        return found

    def _check_lists(self, k: int) -> None:
        per_embedding, by_average = self.lists.num_per_embedding, self.lists.num_by_average
        if not per_embedding:
            check_width("num_candidates", by_average, k, OF_K)
        else:
            where = f" for k {k}, with {self.num_pairs} pairs of components and {by_average} items by average"
            check_width("num_per_embedding", per_embedding, -(-(k - by_average) // self.num_pairs), where)

    def _candidates(self, query: QueryState, lists: CandidateLists, mask: Mask | None, at_least: int = 0) -> Candidates:
        found = [
            search(query, width, mask, self.params, at_least)
            for search, width in (
                (self.per_embedding, lists.num_per_embedding),
                (self.by_average, lists.num_by_average),
            )
            if search is not None
        ]
        return found[0] if len(found) == 1 else union(*found)

    def _bound(
        self, query: QueryState, found: Candidates, threshold: Float[Tensor, " B"] | None
    ) -> Float[Tensor, " B"]:
        """Return a score that no item outside the candidates exceeds; -inf if none of them belongs in the answer.

        Args:
            threshold: one that the lists were not asked for. They hold all items that reach it if their last does not.
        """
        if self.is_exact:
            return torch.full_like(found.last_cosine, -torch.inf)
        bound = found.last_cosine + self._slack(query)
        is_answer = found.is_best
        if threshold is not None:
            is_answer = is_answer & (bound < threshold)
        return bound.masked_fill(is_answer, -torch.inf)


def _lengths(components: Float[Tensor, "B P_Q d"]) -> Float[Tensor, " B"]:
    """Return the length of each query's longest component."""
    lengths: Tensor = components.float().norm(dim=2).amax(dim=1)
    return lengths
