"""A corpus, or a shard of one, that is ready to be searched: its similarity, its items and every index that a method
reads, made once, so that a request makes none.

| member         | its items                     | its methods                                                       |
|----------------|-------------------------------|-------------------------------------------------------------------|
| `ByComponents` | vectors, one per component    | `brute_force` `two_pass` `per_embedding` `average` `combined`,    |
|                |                               | `gated` of a mixture, `ann` of a dot product, `surrogate` if      |
|                |                               | items have one                                                    |
| `quantized`    | components as codes, beside   | the same, `lookup`, and `ivf_lookup` if items are in lists        |
|                | the vectors or in their place |                                                                   |
| `ByCodes`      | codes, read by looking up     | `brute_force` `inverted`                                          |

Axes: B queries, X items.
"""

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.lookup_scan import LEAST_BESIDE
from rails_ray.kernels.uploads import upload
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities import Similarity
from rails_ray.modules.similarities.explain import Explained, explain_look_ups, explain_mixture
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import Codes, QueryState, Searched, Tables, take
from rails_ray.schema.search_params import DEFAULT_PARAMS, SearchParams
from rails_ray.search.candidates import (
    AVERAGE,
    BY_SURROGATE,
    SURROGATE,
    FirstStage,
    VectorOf,
    longest_component,
    vectors_of,
)
from rails_ray.search.gathering import GATHERED_OF_POSTINGS, Gathering
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.flat import FlatIndex
from rails_ray.search.indexes.inverted import NUM_PROBES, InvertedIndex
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.masks import Mask
from rails_ray.search.methods import ExactSearch, Query, Retriever
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.by_index import ByIndex
from rails_ray.search.methods.gated import Gated
from rails_ray.search.methods.look_up import FullLookUp, Inverted
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.methods.two_pass import AverageFirst, TwoPass
from rails_ray.search.selected import Selected
from rails_ray.search.spec import SearchResult, SearchSpec


@runtime_checkable
class Searcher(Protocol, Generic[Query]):
    """Items and the methods that search them."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""

    def __len__(self) -> int:
        """X."""

    def retriever(self, method: str, params: SearchParams = DEFAULT_PARAMS) -> Retriever[Query]:
        """A method, ready to search.

        Raises:
            ValueError: if the method is not one of `methods`, a width is above what there is, or the items lack what
                the method needs.
        """

    def search(
        self, query: Query, spec: SearchSpec, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> SearchResult:
        """Search for each query, by a method.

        Raises:
            ValueError: if `retriever` refuses the method, or the method the query.
        """

    def gathers(
        self, num_left: int, num_queries: int, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> bool:
        """Return whether a search of some items takes less time by `some` than by a method that hides the others.

        Args:
            num_left: how many they are.
        """

    def some(self, rows: Int[Tensor, " N"]) -> ExactSearch[Query]:
        """The exact search of some items, as if there were no others.

        Args:
            rows: ascending, one at least, in the host's memory.
        """

    def log_sum_exp(self, query: Query, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """Log of the sum of exp(logit) over all items that are not hidden, in float64."""

    def explain(self, query: Query, item_rows: Sequence[int]) -> Explained:
        """The parts of the scores of these items."""


METHODS = ("brute_force", "two_pass", "per_embedding", "average", "combined")  # of items with components
# Share of the items up to which a GPU scores those that a filter leaves, in place of hiding the others. Neither was
# measured. By a list of rows, the kernel takes that share of its time, and 8 bytes a row are sent: half of Books take
# one query 0.2 ms of the kernel's 0.39, and 2.7 MB. States that are copied first are scored in float32.
LISTED_ON_GPU = 0.5
GATHERED_ON_GPU = 0.05


class ByComponents:
    """Items with components, under any similarity of components.

    Args:
        indexes: indexes that were built before, by name (`search.candidates`).
        surrogate: gives the vector of a query that stands for its scores, if the items have theirs.

    Raises:
        ValueError: if the similarity cannot score such items.
    """

    def __init__(
        self,
        similarity: Similarity,
        items: Searched,
        indexes: Mapping[str, VectorIndex] | None = None,
        surrogate: VectorOf | None = None,
    ) -> None:
        self.similarity = similarity
        self.items = items
        self.scorer = similarity.prepared()
        self.brute_force = BruteForce(self.scorer, items)
        longest = 1.0 if self.scorer.has_bounded_vectors else longest_component(items)
        self.first_stage = FirstStage(items, indexes, longest=longest)
        self.exact: Retriever[QueryState] = self.brute_force
        self.is_on_gpu = items.taken(slice(0, 1)).components.is_cuda
        if self.is_on_gpu:
            self.exact = GpuScan.of(self.brute_force)
        elif self.first_stage.has_average and self.scorer.num_components != (1, 1):
            self.exact = AverageFirst(self.brute_force, self.first_stage.by_average)
        self.by_surrogate: FirstStage | None = None
        if surrogate is not None:
            built = (indexes or {}).get(SURROGATE) or FlatIndex(vectors_of(items, SURROGATE))
            self.by_surrogate = FirstStage(items, {AVERAGE: built}, surrogate, BY_SURROGATE, longest=longest)
        self.gathering = Gathering(len(items), self.scorer.num_components, self.first_stage, self.by_surrogate)

    @property
    def methods(self) -> tuple[str, ...]:
        """The contract of `Searcher`; `gated` needs a mixture, `ann` a dot product, `surrogate` its vectors."""
        own = "ann" if self.scorer.num_components == (1, 1) else "gated"
        return (*METHODS, own) if self.by_surrogate is None else (*METHODS, own, "surrogate")

    @property
    def first_stages(self) -> list[FirstStage]:
        """All that its methods take candidates from."""
        return [self.first_stage] if self.by_surrogate is None else [self.first_stage, self.by_surrogate]

    def __len__(self) -> int:
        return len(self.items)

    def retriever(self, method: str, params: SearchParams = DEFAULT_PARAMS) -> Retriever[QueryState]:
        """The contract of `Searcher`."""
        match method:
            case "brute_force":
                return self.exact
            case "two_pass":
                return TwoPass(self.scorer, self.items, params.num_per_embedding, self.first_stage)
            case "per_embedding":
                lists = CandidateLists(num_per_embedding=params.num_per_embedding)
            case "average":
                lists = CandidateLists(num_by_average=params.num_scored)
            case "ann" if method in self.methods:
                return ByIndex(self.scorer, self.items, self.first_stage, params)
            case "gated" if method in self.methods:
                return self._gated(params)
            case "surrogate" if self.by_surrogate is not None:
                lists = CandidateLists(num_by_average=params.num_scored)
                return Approximate(self.scorer, self.items, lists, self.by_surrogate, params)
            case "combined":
                lists = CandidateLists(num_per_embedding=params.num_per_embedding, num_by_average=params.num_scored)
            case _:
                raise _unknown(method, self.methods, "items that have components")
        return Approximate(self.scorer, self.items, lists, self.first_stage, params)

    def _gated(self, params: SearchParams) -> Gated:
        """Its first items are those of `surrogate` or, if there is none, of `average`."""
        stage = self.by_surrogate or self.first_stage
        first = stage.by_average if stage.has_average else None
        rounds = params.num_scored, params.num_rounds
        together = self.first_stage.together
        assert together is not None  # codes come with an index of them
        return Gated(self.scorer, self.items, together, first, *rounds, params)

    def search(
        self, query: QueryState, spec: SearchSpec, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> SearchResult:
        """The contract of `Searcher`."""
        return self.retriever(method, params).search(query, spec)

    def gathers(
        self, num_left: int, num_queries: int, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> bool:
        """The contract of `Searcher`."""
        if isinstance(self.exact, GpuScan):
            return num_left <= (LISTED_ON_GPU if self.exact.reads_by_row else GATHERED_ON_GPU) * len(self)
        return self.gathering.is_faster(num_left, num_queries, method, params)

    def some(self, rows: Int[Tensor, " N"]) -> ExactSearch[QueryState]:
        """The contract of `Searcher`."""
        if isinstance(self.exact, GpuScan):
            return self.exact.of_rows(rows)
        return BruteForce(self.scorer, Selected(self.items, rows))

    def log_sum_exp(self, query: QueryState, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """The contract of `Searcher`."""
        return self.brute_force.log_sum_exp(query, logit, mask)

    def explain(self, query: QueryState, item_rows: Sequence[int]) -> Explained:
        """The contract of `Searcher`; all cosines and gates."""
        return explain_mixture(self.similarity, query, self.items.taken(list(item_rows)))


class ByCodes:
    """Items with codes. Making it compiles the loops that a search runs.

    Raises:
        ValueError: if a code is no bucket.
    """

    methods = ("brute_force", "inverted")

    def __init__(self, similarity: LookUp, items: Codes) -> None:
        self.similarity = similarity
        self.items = items
        self.brute_force = FullLookUp(items, LookupIndex(items.codes))
        self.inverted = InvertedIndex(items.codes, similarity.num_buckets)
        for num in (1, LEAST_BESIDE):  # or the first queries would wait for loops to be compiled
            nothing = torch.zeros(num, items.codes.shape[1], similarity.num_buckets, device=items.codes.device)
            query = Tables(nothing, torch.ones(num, device=nothing.device))
            for method in self.methods:
                self.search(query, SearchSpec(1), method, SearchParams(num_candidates=1, num_probes=1))

    def __len__(self) -> int:
        return len(self.items)

    def retriever(self, method: str, params: SearchParams = DEFAULT_PARAMS) -> Retriever[Tables]:
        """The contract of `Searcher`."""
        match method:
            case "brute_force":
                return self.brute_force
            case "inverted":
                num_probes = min(NUM_PROBES, self.similarity.num_buckets)
                num_probes = num_probes if params.num_probes is None else params.num_probes
                return Inverted(self.items, self.inverted, num_probes, params.num_scored)
            case _:
                raise _unknown(method, self.methods, "items that are found by their codes")

    def search(
        self, query: Tables, spec: SearchSpec, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> SearchResult:
        """The contract of `Searcher`."""
        return self.retriever(method, params).search(query, spec)

    def gathers(
        self, num_left: int, num_queries: int, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> bool:
        """The contract of `Searcher`."""
        return num_left <= GATHERED_OF_POSTINGS * len(self)

    def some(self, rows: Int[Tensor, " N"]) -> FullLookUp:
        """The contract of `Searcher`."""
        index = self.brute_force.index.of_rows(upload(rows, self.items.codes.device))
        return FullLookUp(Codes(index.codes), index)

    def log_sum_exp(self, query: Tables, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """The contract of `Searcher`."""
        return self.brute_force.log_sum_exp(query, logit, mask)

    def explain(self, query: Tables, item_rows: Sequence[int]) -> Explained:
        """The contract of `Searcher`; what each chunk says, with P_Q = 1 and P_X = K."""
        return explain_look_ups(self.similarity, query, take(self.items, list(item_rows)))


def _unknown(method: str, methods: Sequence[str], items: str) -> ValueError:
    return ValueError(f"method must be one of {', '.join(methods)} for {items}, got {method!r}")
