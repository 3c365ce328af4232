"""Items searched by their terms: the exact sum over the postings of a query's terms.

Axes: B queries, X items.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.errors import UnsupportedError
from rails_ray.kernels.uploads import upload
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities.bm25 import Bm25, TermCounts, TermPostings, TermWeights, shares, sums_of
from rails_ray.modules.similarities.explain import Explained
from rails_ray.modules.similarities.states import take, to
from rails_ray.schema.search_params import DEFAULT_PARAMS, SearchParams
from rails_ray.search.gathering import GATHERED_OF_POSTINGS
from rails_ray.search.gpu_scan import Unread, unread_scan
from rails_ray.search.masks import Mask
from rails_ray.search.scan import scan
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.started import Started, finished


class ByTerms:
    """Items with weighted terms. The contract of `Searcher`, and of `Retriever` for its one method."""

    methods = ("brute_force",)
    is_exact = True

    def __init__(self, similarity: Bm25, items: TermWeights) -> None:
        self.similarity = similarity
        self.items = items
        self.postings = TermPostings.of(items)

    def __len__(self) -> int:
        return len(self.items)

    def retriever(self, method: str, params: SearchParams = DEFAULT_PARAMS) -> "ByTerms":
        """The contract of `Searcher`."""
        if method not in self.methods:
            raise ValueError(
                f"method must be one of {', '.join(self.methods)} for items that have terms, got {method!r}"
            )
        return self

    def search(
        self, query: TermCounts, spec: SearchSpec, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> SearchResult:
        """The contract of `Searcher`. An item that shares no term with a query scores 0, and is found after those
        that do."""
        self.retriever(method, params)
        begun = self.begin(query, spec)
        if begun is not None:
            return finished([begun])[0]
        spec.check_queries(len(query))
        return scan([(0, sums_of(query, self.postings, len(self)))], spec, len(query), len(self))

    def begin(self, query: TermCounts, spec: SearchSpec) -> list[Started] | None:
        """The contract of `Starts`."""
        return None if self.postings.weights.is_cpu else [self.start(query, spec)]

    def start(self, query: TermCounts, spec: SearchSpec) -> Started:
        """Start a search, of which a GPU's host must know nothing without a threshold."""
        spec.check_queries(len(query))
        device = self.postings.weights.device
        num_scored = torch.full((len(query),), len(self), device=device)
        num_left = spec.num_left(len(query), len(self), device)
        scores = sums_of(query, self.postings, len(self))
        unread = unread_scan([(0, scores)], spec, num_scored, num_left)
        return _StartedSums(spec, unread, unread.longest.expand(0 if spec.threshold is None else 1))

    def gathers(
        self, num_left: int, num_queries: int, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> bool:
        """The contract of `Searcher`. A GPU hides the others, as it is waited for where postings are made."""
        return self.postings.weights.is_cpu and num_left <= GATHERED_OF_POSTINGS * len(self)

    def some(self, rows: Int[Tensor, " N"]) -> "ByTerms":
        """The contract of `Searcher`."""
        return ByTerms(self.similarity, take(self.items, upload(rows, self.items.weights.device)))

    def log_sum_exp(self, query: TermCounts, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """Raises:
        UnsupportedError: always, as no softmax over items trains BM25.
        """
        raise UnsupportedError("a softmax over items needs a model that was trained by one, got BM25")

    def explain(self, query: TermCounts, item_rows: Sequence[int]) -> Explained:
        """The contract of `Searcher`: what each term of the query adds, with P_Q = 1 and P_X = T."""
        items = take(self.items, list(item_rows))
        of_terms = shares(to(query, items.weights.device), items).unsqueeze(2)  # [B, X, 1, T]
        num_terms = of_terms.shape[3]
        scores = of_terms.sum(dim=(2, 3)).float()
        return Explained(scores, (of_terms * num_terms).float(), torch.full_like(of_terms, 1 / num_terms).float())


class _StartedSums(NamedTuple):
    """The contract of `Started`."""

    spec: SearchSpec
    unread: Unread
    flags: Int[Tensor, " F"]

    def finish(self, flags: Sequence[int]) -> SearchResult:
        return self.unread.found if self.spec.threshold is None else self.unread.read(self.spec, flags[0])
