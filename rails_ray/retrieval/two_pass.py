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

from rails_ray.retrieval import Found
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.candidates import PerEmbedding
from rails_ray.retrieval.checks import check_search, check_width
from rails_ray.retrieval.rescore import rescore
from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.top_k import Exclusions


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
        similarity, items = self.scan.similarity, self.scan.items
        check_search(query, similarity, items, k)
        found = self.candidates(query, self.num_per_embedding, exclude)
        threshold = torch.full((len(query),), -torch.inf, device=query.components.device)
        if found.item_rows.shape[1] >= k:
            best = rescore(similarity, items, query, found.item_rows, found.is_there, k)
            threshold = best.scores[:, -1]  # -inf where a query has fewer than k candidates
        second = self.scan.search(query, k, exclude, threshold)
        # A candidate that the second pass leaves out was scored all the same.
        num_scored = torch.maximum(second.num_scored, found.is_there.sum(dim=1))
        return Found(second.top_k, second.certificate, num_scored)
