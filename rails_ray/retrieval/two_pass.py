"""The exact k best in two passes: candidates say which score must be reached, a scan scores what can reach it.

    1. candidates = the first items of each pair of components; threshold = the k-th best of their scores
    2. score every item with max_p c_p >= threshold, and keep the k best

Source: RAILS, Algorithm 1.
Differs from the source: the threshold is the k-th best score, where the paper takes the least score of all candidates,
which is valid and far lower; it compares a score with cosines on one scale (score = tau * phi); and it rises while the
second pass finds better items.

Axes: B queries, X items.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.retrieval import Found, FoundAbove
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.candidates import Candidates, PerEmbedding
from rails_ray.retrieval.checks import check_search, check_search_above, check_width
from rails_ray.retrieval.rescore import candidate_scores
from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.top_k import Exclusions, select


class TwoPass:
    """Exact search that scores few items where gates are sharp.

    Args:
        num_per_embedding: candidates of each pair of components; more of them raise the threshold.
    """

    is_exact = True

    def __init__(self, similarity: Similarity, items: ItemState, num_per_embedding: int) -> None:
        check_width("num_per_embedding", num_per_embedding, 1, "")
        self.scan = BruteForce(similarity, items)
        self.candidates = PerEmbedding(items)
        self.num_per_embedding = num_per_embedding

    def search(self, query: QueryState, k: int, exclude: Exclusions | None = None) -> Found:
        """The contract of `Retriever`. An item counts as scored once, in whichever pass it was."""
        check_search(query, self.scan.similarity, self.scan.items, k)
        found = self.candidates(query, self.num_per_embedding, exclude)
        second = self.scan.search(query, k, exclude, self._kth_best(query, found, k))
        return Found(second.top_k, second.certificate, _num_scored(second, found))

    def search_above(
        self,
        query: QueryState,
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> FoundAbove:
        """The contract of `Retriever`. A threshold is what the first pass is there to find, so candidates are taken
        only where items below it may be needed."""
        check_search_above(query, self.scan.similarity, self.scan.items, threshold, cap, at_least)
        if not at_least:
            return self.scan.search_above(query, threshold, cap, exclude)
        found = self.candidates(query, self.num_per_embedding, exclude)
        floor = torch.minimum(threshold.float(), self._kth_best(query, found, at_least))
        second = self.scan.search_above(query, threshold, cap, exclude, at_least, floor)
        return FoundAbove(second.above, second.certificate, _num_scored(second, found))

    def _kth_best(self, query: QueryState, found: Candidates, k: int) -> Float[Tensor, " B"]:
        """The k-th best score of the candidates; -inf where a query has fewer than k."""
        if found.item_rows.shape[1] < k:
            return torch.full((len(query),), -torch.inf, device=query.components.device)
        scores = candidate_scores(self.scan.similarity, self.scan.items, query, found)
        return select(scores, k, found.item_rows).scores[:, -1]


def _num_scored(second: Found | FoundAbove, found: Candidates) -> Int[Tensor, " B"]:
    """A candidate that the second pass leaves out was scored all the same."""
    return torch.maximum(second.num_scored, found.is_there.sum(dim=1))
