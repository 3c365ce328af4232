"""Candidates by inner products, then their scores: three methods that differ in whose candidates they take.

    per_embedding   the first items of every pair of components
    average         the first items by the mean component
    combined        both

Source: RAILS, Section 3.2 and Algorithm 2 (top-k per embedding, top-k average, combined top-k).
Differs from the source: lists are widened, doubling, until every query has k distinct candidates.

Axes: B queries, X items.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.above import Above, ScanAbove
from rails_ray.retrieval import Found, FoundAbove
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.candidates import ByAverage, Candidates, PerEmbedding, union
from rails_ray.retrieval.certificate import Certificate, all_scored, rounding_slack
from rails_ray.retrieval.checks import check_items, check_search, check_search_above, check_width
from rails_ray.retrieval.rescore import candidate_scores
from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.top_k import Exclusions, TopK, select

NO_CERTIFICATE = "candidates by the average component alone: what it leaves out may have any cosine"


@dataclass(frozen=True, kw_only=True)
class Widths:
    """How many items a first stage takes.

    Args:
        num_per_embedding: by each pair of components; 0 for none.
        num_by_average: by the mean component; 0 for none.
    """

    num_per_embedding: int = 0
    num_by_average: int = 0

    def __post_init__(self) -> None:
        if self.num_per_embedding < 0 or self.num_by_average < 0 or not self.num_per_embedding + self.num_by_average:
            raise ValueError(
                "a first stage must take at least 1 item per embedding or by average, "
                f"got {self.num_per_embedding} and {self.num_by_average}"
            )

    def doubled(self) -> "Widths":
        return Widths(num_per_embedding=2 * self.num_per_embedding, num_by_average=2 * self.num_by_average)


class Approximate:
    """Search in two stages, the first of which may miss an item; the certificate says whether it can have."""

    def __init__(self, similarity: Similarity, items: ItemState, widths: Widths) -> None:
        check_items(similarity, items)
        self.similarity = similarity
        self.items = items
        self.widths = widths
        self.per_embedding = PerEmbedding(items) if widths.num_per_embedding else None
        self.by_average = ByAverage(items) if widths.num_by_average else None
        self.num_pairs = math.prod(similarity.num_components)
        self.slack = rounding_slack(self.num_pairs, items.components.shape[-1], items.components.dtype)

    @property
    def is_exact(self) -> bool:
        """With one component on each side, its cosine, and the average, is the score itself."""
        return self.num_pairs == 1

    def search(self, query: QueryState, k: int, exclude: Exclusions | None = None) -> Found:
        """The contract of `Retriever`.

        Raises:
            ValueError: also if all lists of the first stage together are shorter than k.
        """
        check_search(query, self.similarity, self.items, k)
        self._check_widths(k)
        found = self._at_least(query, k, exclude)
        top_k = select(candidate_scores(self.similarity, self.items, query, found), k, found.item_rows)
        return Found(top_k.exactly_k(), self._certificate(found), found.is_there.sum(dim=1))

    def search_above(
        self,
        query: QueryState,
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> FoundAbove:
        """The contract of `Retriever`, of the candidates at the widths given. With one component on each side a
        threshold leaves no first stage to do: the scan compares the cosines with it."""
        if self.is_exact:
            return BruteForce(self.similarity, self.items).search_above(query, threshold, cap, exclude, at_least)
        check_search_above(query, self.similarity, self.items, threshold, cap, at_least)
        best = ScanAbove(threshold, cap, at_least)
        found = self._at_least(query, at_least, exclude)
        scores = candidate_scores(self.similarity, self.items, query, found, best.floor - self.slack)
        num_scored = (scores > -torch.inf).sum(dim=1)
        item_rows, order = found.item_rows.sort(dim=1)  # as a scan takes them
        best.add(0, scores.gather(1, order))
        return FoundAbove(_of_rows(best.above(), item_rows), self._certificate(found), num_scored)

    def _at_least(self, query: QueryState, least: int, exclude: Exclusions | None) -> Candidates:
        """Candidates at the widths given, widened while a query has too few of them and there are more."""
        widths = self.widths
        found = self._candidates(query, widths, exclude)
        while max(widths.num_per_embedding, widths.num_by_average) < len(self.items) and _is_short(found, least):
            widths = widths.doubled()
            found = self._candidates(query, widths, exclude)
        return found

    def _check_widths(self, k: int) -> None:
        per_embedding, by_average = self.widths.num_per_embedding, self.widths.num_by_average
        if not per_embedding:
            check_width("num_candidates", by_average, k, ", the k of the search")
        else:
            where = f" for k {k}, with {self.num_pairs} pairs of components and {by_average} items by average"
            check_width("num_per_embedding", per_embedding, -(-(k - by_average) // self.num_pairs), where)

    def _candidates(self, query: QueryState, widths: Widths, exclude: Exclusions | None) -> Candidates:
        found = [
            search(query, width, exclude)
            for search, width in (
                (self.per_embedding, widths.num_per_embedding),
                (self.by_average, widths.num_by_average),
            )
            if search is not None
        ]
        return found[0] if len(found) == 1 else union(*found)

    def _certificate(self, found: Candidates) -> Certificate:
        if self.is_exact:
            return all_scored(len(found.item_rows), found.item_rows.device)
        if self.per_embedding is None and found.last_cosine.isposinf().any():
            return Certificate(None, NO_CERTIFICATE)
        return Certificate(found.last_cosine + self.slack)


def _of_rows(above: Above, item_rows: Int[Tensor, "B C"]) -> Above:
    """An answer whose rows are columns of `item_rows`, with the rows that stand there."""
    found = above.top_k
    rows = item_rows.gather(1, found.item_rows).masked_fill(found.scores == -torch.inf, 0)
    return Above(TopK(found.scores, rows), above.is_truncated)


def _is_short(found: Candidates, k: int) -> bool:
    return bool((found.is_there.sum(dim=1) < k).any())
