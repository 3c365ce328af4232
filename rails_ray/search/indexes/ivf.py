"""FAISS's inverted file: each vector is in one of nlist lists, and a search scans the nprobe lists nearest to a query.

    list(x)  = argmax_l <x, c_l>
    lists(q) = the nprobe lists l with the largest <q, c_l>

Source: Jegou et al., Product Quantization, Section 4 (the inverted file, there of codes).
Differs from the source: centroids c_l have length 1 (spherical k-means), FAISS's choice for inner products. With
nprobe = nlist every item is looked at. Where nprobe is not named, it doubles for a query that finds fewer items than it
must.

Axes: B queries, X items, N items of a sample, d width of a vector, n places of a list of results.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.flat import Storage, scalar_quantizer
from rails_ray.search.indexes.grown_lists import SCAN
from rails_ray.search.indexes.probing import Floats, Only, PreparedQueries, Rows

LISTS_PER_ROOT = 4  # nlist is 4 to 16 sqrt(X): FAISS's wiki, "Guidelines to choose an index"
OF_LIST = 3.0  # products of a scan in the time of a vector in a list (jobs.benches.filters)
POINTS_PER_LIST = 39  # of the sample, for k-means: `min_points_per_centroid` in FAISS's ClusteringParameters


@dataclass(frozen=True, kw_only=True)
class IvfConfig:
    """Vectors in lists, by the nearest of nlist centroids.

    Args:
        nlist: lists; 0 for 4 sqrt(items), but no more than leave k-means 39 items of the sample a list.
        storage: what a vector is kept as. What is rounded is its difference from the centroid.
    """

    kind: Literal["ivf"] = "ivf"
    nlist: int = 0
    storage: Storage = "fp32"

    def __post_init__(self) -> None:
        if self.nlist < 0:
            raise ValueError(f"nlist must be at least 0, got {self.nlist}")

    def check(self, num_items: int, num_points: int) -> None:
        """The contract of `KindConfig`."""
        num_lists(self.nlist, num_items, num_points)

    def untrained(self, width: int, num_items: int, num_points: int, seed: int) -> Any:
        """The contract of `KindConfig`: k-means with `seed` is to train it."""
        nlist = num_lists(self.nlist, num_items, num_points)
        faiss = faiss_library()
        centroids, metric = faiss.IndexFlatIP(width), faiss.METRIC_INNER_PRODUCT
        if self.storage == "fp32":
            index = faiss.IndexIVFFlat(centroids, width, nlist, metric)
        else:
            # By residual: sq8 found 0.967 of the ten best among 100,000 x 64 clustered vectors of length 1, else 0.953.
            by_residual = True
            quantizer = scalar_quantizer(self.storage)
            index = faiss.IndexIVFScalarQuantizer(centroids, width, nlist, quantizer, metric, by_residual)
        index.cp.seed = seed
        index.cp.min_points_per_centroid = 1  # FAISS warns below 39, which a given nlist may be
        return index

    @staticmethod
    def opened(index: Any) -> "IvfSearch | None":
        """The contract of `KindConfig`."""
        faiss = faiss_library()
        kinds = faiss.IndexIVFFlat | faiss.IndexIVFScalarQuantizer | faiss.IndexIVFPQ
        return IvfSearch(index) if isinstance(index, kinds) else None


def num_lists(nlist: int, num_items: int, num_points: int) -> int:
    """How many lists `num_items` items are put in, with centroids fitted to a sample of `num_points` items.

    Raises:
        ValueError: if nlist lists are more than the sample has items.
    """
    if nlist > num_points:
        raise ValueError(f"nlist must be at most the {num_points} items of the sample, got {nlist}: take fewer lists")
    return nlist or max(min(int(LISTS_PER_ROOT * math.sqrt(num_items)), num_points // POINTS_PER_LIST), 1)


class IvfSearch:
    """The contract of `KindSearch`."""

    name, growth, runs_on_gpu = "ivf", SCAN, True

    def __init__(self, index: Any) -> None:
        self.index = index
        index.parallel_mode = 3  # threads share the queries, in search_preassigned as otherwise in search alone
        lists = index.invlists
        self.sizes = np.array([lists.list_size(number) for number in range(index.nlist)], np.int64)

    def num_products(self, num_left: int, params: SearchParams) -> float:
        """The contract of `KindSearch`: with all centroids, and with a share of the vectors, hidden ones too."""
        nlist, num_items = len(self.sizes), int(self.sizes.sum())
        return nlist + OF_LIST * num_items * min(self._num_probes(params), nlist) / nlist

    def _num_probes(self, params: SearchParams) -> int:
        return params.nprobe or max(round(math.sqrt(self.index.nlist)), 1)  # pgvector's README: "a good place to start"

    def ask(self, queries: Floats, params: SearchParams) -> PreparedQueries:
        """
        Raises:
            ValueError: if there are fewer lists than nprobe.
        """
        nlist, nprobe = self.index.nlist, self._num_probes(params)
        if nprobe > nlist:
            raise ValueError(f"nprobe must be at most the {nlist} lists of the index, got {nprobe}")
        return self._ask(queries, nprobe, params.nprobe is not None)

    def _ask(self, queries: Floats, nprobe: int, is_named: bool) -> PreparedQueries:
        faiss, index, nlist = faiss_library(), self.index, self.index.nlist
        parameters = faiss.SearchParametersIVF(nprobe=nprobe)
        nearness, lists = index.quantizer.search(queries, nprobe)

        def best(lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
            """Return what index.search gives, without choosing the lists again."""
            scores, rows = np.empty((len(lines), n), np.float32), np.empty((len(lines), n), np.int64)
            arrays = queries[lines], lists[lines], nearness[lines]
            query_pointer, chosen, near = (faiss.swig_ptr(array) for array in arrays)
            out = faiss.swig_ptr(scores), faiss.swig_ptr(rows)
            own = parameters if only is None else faiss.SearchParametersIVF(nprobe=nprobe, sel=only.selector)
            index.search_preassigned_c(len(lines), query_pointer, n, chosen, near, *out, False, own)
            return scores, rows

        num_scored = np.where(lists < 0, 0, self.sizes[lists]).sum(axis=1)  # no list is near a query that is NaN
        more = None if is_named or nprobe == nlist else partial(self._ask, queries, min(2 * nprobe, nlist), False)
        return PreparedQueries(queries, best, parameters, num_scored, nprobe == nlist, wider=more)
