"""Choice between gathering the items that a filter leaves, to score them exactly, and a method that hides the others.

Both are counted in products, the time of a query's inner product with a vector in the cache:

    gathered = left (P + P_X GATHER / B)
    scanned  = X    (P + P_X READ / B)
    listed   = what `VectorIndex.num_products` says, and candidates (P + P_X GATHER)

A score of a mixture takes about as long as the P products in it, its gates included. The queries of a batch share what
is read, so that gathering pays for more items the more queries there are; a query's candidates are read for it alone.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X.
"""

from dataclasses import dataclass

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.candidates import FirstStage
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.flat import READ

# Most of the items that a mixture gathers: where its gates are sharp, a scan of all scores few of them (`two_pass`).
MOST_OF_MIXTURE = 0.75
GATHERED_OF_POSTINGS = 0.01  # share of the items up to which they are gathered, as postings of them must be made first
GATHER = 5.0  # products in the time of reading a vector at any row (jobs.benches.filters)


@dataclass(frozen=True)
class Gathering:
    """Chooses between the two for items with components.

    Args:
        first_stage: the lists of all methods but `surrogate`.
        by_surrogate: the list of `surrogate`, if there is one.
    """

    num_items: int
    num_components: tuple[int, int]
    first_stage: FirstStage
    by_surrogate: FirstStage | None = None

    def is_faster(self, num_left: int, num_queries: int, method: str, params: SearchParams) -> bool:
        """Return whether a search of the items that are left takes less time if they are gathered.

        Args:
            num_queries: B.
            method: method that would hide the others.
        """
        num_queries = max(num_queries, 1)
        if self.num_components != (1, 1) and num_left > MOST_OF_MIXTURE * self.num_items:
            return False
        gathered = num_left * self._score(GATHER / num_queries)
        return gathered <= self._products(num_left, num_queries, method, params)

    def _products(self, num_left: int, num_queries: int, method: str, params: SearchParams) -> float:
        """Products that a query takes by a method that hides the other items."""

        def by(index: VectorIndex, times: int = 1) -> float:
            return times * index.num_products(num_left, times * num_queries, params)

        (of_query, of_item), stage = self.num_components, self.first_stage
        match method:
            case "ann":
                return by(stage.by_average.index)
            case "average":
                return by(stage.by_average.index) + self._rescored(params.num_scored)
            case "surrogate" if self.by_surrogate is not None:
                return by(self.by_surrogate.by_average.index) + self._rescored(params.num_scored)
            case "gated" if stage.together is not None:
                return params.num_rounds * of_item * by(stage.together) + self._rescored(params.num_scored)
            case "per_embedding":
                listed = sum(by(index, of_query) for index in stage.per_embedding.indexes)
                return listed + self._rescored(of_query * of_item * params.num_per_embedding)
            case "combined":
                return sum(self._products(num_left, num_queries, own, params) for own in ("per_embedding", "average"))
            case _:
                return self.num_items * self._score(READ / num_queries)

    def _rescored(self, num_candidates: int) -> float:
        return min(num_candidates, self.num_items) * self._score(GATHER)

    def _score(self, read: float) -> float:
        """Products that a score takes, if each component of its item takes `read` of them to read."""
        of_query, of_item = self.num_components
        return of_query * of_item + of_item * read
