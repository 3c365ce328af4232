"""FAISS's navigable graph: each item is linked to near ones, and a search walks from link to link towards a query.

A search keeps a beam of the ef_search best items that it has met, and ends when none of them has a better neighbour.

Source: Malkov and Yashunin, Efficient and robust approximate nearest neighbor search using Hierarchical Navigable Small
World graphs, Algorithms 1 to 5.
Differs from the source: near means a large inner product, of two items too. That finds what it should where vectors
have length 1 or a mean near 0. Of 50,000 vectors with a mean of 2.7 times their spread it found 0.2 of the ten best.

Axes: B queries, X items, d width of a vector, n places of a list of results.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rails_ray.kernels.faiss_library import faiss_library, has_cagra
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.flat import Storage, scalar_quantizer
from rails_ray.search.indexes.grown_lists import WALK
from rails_ray.search.indexes.probing import Floats, Only, PreparedQueries, Rows

EF_SEARCH = 64  # recall of the ten best: 1.00 of 1,000,000 x 64 clustered vectors of length 1, with the default config
LARGEST_BEAM = 4096  # with a mask: about 11 ms a query among 1,000,000 x 64
OF_BEAM = 150.0  # products of a scan in the time of an item of a beam, whose links are followed (jobs.benches.filters)
WIDER = 4  # times as many, for a query that finds too little so


@dataclass(frozen=True, kw_only=True)
class HnswConfig:
    """A graph with M links an item, and 2 M on its lowest level.

    Args:
        M: links; 32 is FAISS's default.
        ef_construction: items in the beam that finds the links of an added item.
        storage: what a vector is kept as; links take 8 M bytes an item beside it.
    """

    kind: Literal["hnsw"] = "hnsw"
    M: int = 32
    ef_construction: int = 80
    storage: Storage = "fp32"

    def __post_init__(self) -> None:
        for name, number, least, most in (("M", self.M, 2, 256), ("ef_construction", self.ef_construction, 1, 4096)):
            if not least <= number <= most:
                raise ValueError(f"{name} must be at least {least} and at most {most}, got {number}")

    def check(self, num_items: int, num_points: int) -> None:
        """The contract of `KindConfig`: any sample will do."""

    def untrained(self, width: int, num_items: int, num_points: int, seed: int) -> Any:
        """The contract of `KindConfig`. Only sq8 storage needs training."""
        faiss = faiss_library()
        metric = faiss.METRIC_INNER_PRODUCT
        if self.storage == "fp32":
            index = faiss.IndexHNSWFlat(width, self.M, metric)
        else:
            index = faiss.IndexHNSWSQ(width, scalar_quantizer(self.storage), self.M, metric)
        index.hnsw.efConstruction = self.ef_construction
        return index

    @staticmethod
    def opened(index: Any) -> "HnswSearch | None":
        """The contract of `KindConfig`."""
        return HnswSearch(index) if isinstance(index, faiss_library().IndexHNSW) else None


class HnswSearch:
    """The contract of `KindSearch`. FAISS has it on the CPU alone, and CAGRA for a GPU if it was built with cuVS."""

    name, growth = "hnsw", WALK

    def __init__(self, index: Any) -> None:
        self.index = index
        self.runs_on_gpu = has_cagra()

    def num_products(self, num_left: int, params: SearchParams) -> float:
        """The contract of `KindSearch`: the fewer items are left, the wider the beam that meets as many of them."""
        ef_search = _beam(params)
        return OF_BEAM * max(_widened(ef_search, self.index.ntotal, num_left, LARGEST_BEAM), ef_search)

    def ask(self, queries: Floats, params: SearchParams) -> PreparedQueries:
        """FAISS counts the items that it scores for all threads together, so that only those it returns are known."""
        ef_search = _beam(params)
        return self._ask(queries, ef_search, LARGEST_BEAM, params.ef_search is not None)

    def _ask(self, queries: Floats, ef_search: int, largest: int, is_named: bool) -> PreparedQueries:
        """
        Args:
            largest: most items of a beam that a mask widens.
            is_named: whether the request names the beam, so that no query that finds too little is asked again.
        """
        faiss, index = faiss_library(), self.index
        further = WIDER * largest

        def best(lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
            beam = max(ef_search, n)
            parameters = faiss.SearchParametersHNSW(efSearch=beam)
            if only is not None:  # with room for as many items that may be found as without a mask
                parameters.efSearch = max(_widened(beam, index.ntotal, only.num_rows, largest), beam)
                parameters.sel = only.selector
            found: tuple[Floats, Rows] = index.search(queries[lines], n, params=parameters)
            return found

        more = None
        if not is_named and largest < index.ntotal:
            more = partial(self._ask, queries, ef_search, further, False)
            if index.ntotal <= OF_BEAM * further:
                more = partial(self._scanning, queries)
        for_copy = faiss.SearchParametersHNSW(efSearch=ef_search) if self.runs_on_gpu else None
        return PreparedQueries(queries, best, for_copy, None, False, wider=more)

    def _scanning(self, queries: Floats) -> PreparedQueries:
        """Look at every vector, where that takes less time than a wider beam."""
        faiss, stored = faiss_library(), self.index.storage

        def best(lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
            parameters = None if only is None else faiss.SearchParameters(sel=only.selector)
            found: tuple[Floats, Rows] = stored.search(queries[lines], n, params=parameters)
            return found

        return PreparedQueries(queries, best, None, None, True)


def _beam(params: SearchParams) -> int:
    return max(params.ef_search or EF_SEARCH, params.num_candidates or 0)


def _widened(beam: int, num_items: int, num_left: int, largest: int) -> int:
    """A beam with room for as many items that may be found as `beam` has if all may, up to the largest."""
    return min(beam * num_items // max(num_left, 1), largest)
