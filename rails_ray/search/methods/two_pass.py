"""The exact k best in two passes: candidates say which score must be reached, a scan scores what can reach it.

    1. candidates = the first items of each pair of components; threshold = the k-th best of their scores
    2. score every item with max_p c_p >= threshold, and keep the k best

Source: RAILS, Algorithm 1.
Differs from the source: the threshold is the k-th best score, where the paper takes the least score of all candidates,
which is valid and far lower; it compares a score with cosines on one scale (score = tau * phi); and it rises while the
second pass finds better items.

Brute force is a second pass whose floor is -inf. `AverageFirst` gives it one, of few items that cost little.

Axes: B queries, X items.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels.top_k import select
from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import QueryState, Searched
from rails_ray.search.candidates import ByAverage, Candidates, FirstStage
from rails_ray.search.checks import check_query, check_width
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.rescore import candidate_scores
from rails_ray.search.spec import SearchResult, SearchSpec

FIRST_PER_K = 2  # items by average for each that is wanted
ITEMS_PER_FIRST = 250  # items of the corpus for each of them, so that they take little of a scan's time
LEAST_ITEMS = 10_000  # of fewer, a scan takes no longer than finding a floor


class TwoPass:
    """Exact search that scores few items where gates are sharp.

    Args:
        num_per_embedding: candidates of each pair of components; more of them raise the threshold.
        first_stage: the indexes of the items, if they are made already.
    """

    is_exact = True

    def __init__(
        self, similarity: Scorer, items: Searched, num_per_embedding: int, first_stage: FirstStage | None = None
    ) -> None:
        check_width("num_per_embedding", num_per_embedding, 1, "")
        self.scan = BruteForce(similarity, items)
        self.candidates = (first_stage or FirstStage(items)).per_embedding
        self.num_per_embedding = num_per_embedding

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`. An item counts as scored once, even if both passes score it.

        The first pass only finds a threshold. If one is given, candidates are taken only if items below it may be
        needed.
        """
        check_query(query, self.scan.similarity, self.scan.items)
        spec.check_queries(len(query))
        if not spec.least:
            return self.scan.search(query, spec)
        found = self.candidates(query, self.num_per_embedding, spec.mask)
        floor = kth_best(self.scan, query, found, spec.least)
        if spec.threshold is not None:
            floor = torch.minimum(spec.threshold.float(), floor)
        second = self.scan.search(query, spec, floor)
        # A candidate that the second pass leaves out was scored all the same.
        return replace(second, num_scored=torch.maximum(second.num_scored, found.is_there.sum(dim=1)))


class AverageFirst:
    """Brute force that knows from the start which score must be reached: the k-th best of a few items by average. They
    take a fraction of the scan, so that little is lost where gates are flat and no item can be passed over.

    Args:
        by_average: gives these items.
    """

    is_exact = True

    def __init__(self, scan: BruteForce, by_average: ByAverage) -> None:
        self.scan = scan
        self.by_average = by_average

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`; `num_scored` as in `TwoPass`. A threshold is a floor itself."""
        num = FIRST_PER_K * spec.k
        if spec.threshold is not None or len(self.scan.items) < max(LEAST_ITEMS, ITEMS_PER_FIRST * num):
            return self.scan.search(query, spec)
        check_query(query, self.scan.similarity, self.scan.items)
        found = self.by_average(query, num, spec.mask)
        second = self.scan.search(query, spec, kth_best(self.scan, query, found, spec.k))
        return replace(second, num_scored=torch.maximum(second.num_scored, found.is_there.sum(dim=1)))


def kth_best(scan: BruteForce, query: QueryState, found: Candidates, k: int) -> Float[Tensor, " B"]:
    """The k-th best score of the candidates; -inf where a query has fewer than k."""
    if found.item_rows.shape[1] < k:
        return torch.full((len(query),), -torch.inf, device=query.components.device)
    scores = candidate_scores(scan.similarity, scan.items, query, found)
    return select(scores, k, found.item_rows).scores[:, -1]
