"""Items whose components are codes, ready to be searched.

Axes: B queries, d width of a component.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from rails_ray.kernels import lookup_scan
from rails_ray.kernels.faiss_library import has_faiss
from rails_ray.kernels.lookup_scan import LEAST_BESIDE
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.quantizers.product import ProductQuantizer, turned, unpack
from rails_ray.modules.quantizers.read_back import ReadBack, excess, of_component
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity
from rails_ray.modules.similarities.explain import Explained
from rails_ray.modules.similarities.states import ItemState, QuantizedItems, QueryState, Searched
from rails_ray.schema.search_params import DEFAULT_PARAMS, SearchParams
from rails_ray.search.candidates import AVERAGE, TOGETHER, FirstStage, component_name
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.codes import CodeIndex, in_lists
from rails_ray.search.indexes.fast_codes import FastCodeIndex
from rails_ray.search.masks import Mask
from rails_ray.search.methods import ExactSearch, Retriever
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.started import Started, Starts


class ByQuantized:
    """Items whose components are codes, beside the vectors or in their place.

    Without vectors, every method searches the decoded components, as exactly as it would search vectors. With vectors,
    `lookup` and `ivf_lookup` choose candidates by codes, which are scored by their vectors.

    Args:
        indexes: indexes of the vectors beside the codes, by name.

    Raises:
        ValueError: if the similarity cannot score such items, or codes do not fit the quantizer.
    """

    def __init__(
        self,
        similarity: QuantizedSimilarity,
        items: QuantizedItems,
        indexes: Mapping[str, VectorIndex] | None = None,
    ) -> None:
        kept: Searched
        self.similarity = similarity
        self.items = items
        quantizer, num_components = similarity.quantizer, items.num_components
        codes = unpack(items.codes, quantizer.num_subspaces) if quantizer.is_packed else items.codes
        self.rotation, off = quantizer.rotation, items.residuals
        if items.components is not None:
            self.rotation, kept = None, ItemState(items.components, items.gate, items.average)
        else:
            quantizer = replace(quantizer, rotation=None)  # queries are turned in its place
            kept = ReadBack(quantizer, codes, items.gate, num_components, similarity.longest)
            off = excess(quantizer, codes, num_components, similarity.longest)
        error = _largest(off.mean(dim=1))
        by_code: dict[str, VectorIndex] = {AVERAGE: code_index(quantizer, codes, num_components, error)}
        if items.components is None:
            by_code[TOGETHER] = CodeIndex(quantizer, codes)
        if items.components is None and num_components > 1:
            for number in range(num_components):
                own, place = of_component(quantizer, num_components, number)
                of_codes = codes[:, place].contiguous()
                by_code[component_name(number)] = code_index(own, of_codes, 1, _largest(off[:, number]))
        self.by_components = ByComponents(similarity.similarity, kept, by_code if items.components is None else indexes)
        longest = self.by_components.first_stage.longest
        self.by_codes = {"lookup": FirstStage(kept, by_code, longest=longest)}
        if items.lists is not None and similarity.centroids is not None:
            centroids = turned(similarity.centroids, self.rotation)  # as the queries that reach it are
            lists = in_lists(quantizer, codes, items.lists, centroids, num_components, error)
            self.by_codes["ivf_lookup"] = FirstStage(kept, {**by_code, AVERAGE: lists}, longest=longest)
        for num in (1, LEAST_BESIDE):  # or the first queries would wait for loops to be compiled
            tables = torch.zeros(num, quantizer.num_subspaces, quantizer.num_codewords, device=codes.device)
            lookup_scan.scores(tables, codes[:1])

    @property
    def methods(self) -> tuple[str, ...]:
        """The contract of `Searcher`."""
        return *self.by_components.methods, *self.by_codes

    @property
    def exact(self) -> Retriever[QueryState]:
        """As of `ByComponents`."""
        return self.by_components.exact

    @property
    def first_stages(self) -> list[FirstStage]:
        """As of `ByComponents`."""
        return [*self.by_components.first_stages, *self.by_codes.values()]

    def __len__(self) -> int:
        return len(self.by_components)

    def retriever(self, method: str, params: SearchParams = DEFAULT_PARAMS) -> Retriever[QueryState]:
        """The contract of `Searcher`."""
        if method not in self.by_codes:
            return Turned(self.by_components.retriever(method, params), self.rotation)
        own, lists = self.by_components, CandidateLists(num_by_average=params.num_scored)
        found = Approximate(own.scorer, own.items, lists, self.by_codes[method], params)
        return Turned(found, self.rotation)

    def search(
        self, query: QueryState, spec: SearchSpec, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> SearchResult:
        """The contract of `Searcher`."""
        return self.retriever(method, params).search(query, spec)

    def gathers(
        self, num_left: int, num_queries: int, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> bool:
        """The contract of `Searcher`."""
        own = self.by_components
        if method not in self.by_codes or own.is_on_gpu:
            return own.gathers(num_left, num_queries, method, params)
        by_code = replace(own.gathering, first_stage=self.by_codes[method])
        return by_code.is_faster(num_left, num_queries, "average", params)

    def some(self, rows: Int[Tensor, " N"]) -> "TurnedScan":
        """The contract of `Searcher`."""
        return TurnedScan(self.by_components.some(rows), self.rotation)

    def log_sum_exp(self, query: QueryState, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """The contract of `Searcher`."""
        return self.by_components.log_sum_exp(turned_query(query, self.rotation), logit, mask)

    def explain(self, query: QueryState, item_rows: Sequence[int]) -> Explained:
        """The contract of `Searcher`."""
        return self.by_components.explain(turned_query(query, self.rotation), item_rows)


def code_index(
    quantizer: ProductQuantizer, codes: UInt8[Tensor, "X M"], num_vectors: int, error: float
) -> CodeIndex | FastCodeIndex:
    """Finds candidates by codes: by FAISS's fast scan of at most 16 codewords, on a CPU with FAISS, or all by ours."""
    if has_faiss() and FastCodeIndex.suits(quantizer, codes):
        return FastCodeIndex(quantizer, codes, num_vectors, error)
    return CodeIndex(quantizer, codes, num_vectors, error)


def _largest(off: Float[Tensor, " X"]) -> float:
    return float(off.max()) if len(off) else 0.0


@dataclass(frozen=True)
class Turned:
    """The contract of `Retriever`, over items in the space that a rotation turns to."""

    retriever: Retriever[QueryState]
    rotation: Float[Tensor, "d d"] | None

    @property
    def is_exact(self) -> bool:
        """As the retriever is."""
        return self.retriever.is_exact

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`."""
        return self.retriever.search(turned_query(query, self.rotation), spec)

    def begin(self, query: QueryState, spec: SearchSpec) -> list[Started] | None:
        """The contract of `Starts`."""
        scan = self.retriever
        return scan.begin(turned_query(query, self.rotation), spec) if isinstance(scan, Starts) else None


@dataclass(frozen=True)
class TurnedScan:
    """The contract of `ExactSearch`."""

    scan: ExactSearch[QueryState]
    rotation: Float[Tensor, "d d"] | None
    is_exact = True

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`."""
        return self.scan.search(turned_query(query, self.rotation), spec)

    def begin(self, query: QueryState, spec: SearchSpec) -> list[Started] | None:
        """The contract of `Starts`."""
        scan = self.scan
        return scan.begin(turned_query(query, self.rotation), spec) if isinstance(scan, Starts) else None

    def log_sum_exp(self, query: QueryState, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """The contract of `ExactSearch`."""
        return self.scan.log_sum_exp(turned_query(query, self.rotation), logit, mask)


def turned_query(query: QueryState, rotation: Float[Tensor, "d d"] | None) -> QueryState:
    """A query whose inner products with R x are those of `query` with x."""
    return query if rotation is None else replace(query, components=query.components @ rotation.T)
