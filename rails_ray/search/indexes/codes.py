"""Indexes of product-quantised vectors: every code scored by looking up, or those of the nearest lists.

    score(q, x) = <q, x~> = sum_m T_q[m, code_m(x)]
    |score(q, x) - <q, x>| <= |q| |x - x~|

| member      | what it looks at                                                                               |
|-------------|------------------------------------------------------------------------------------------------|
| `CodeIndex` | every code, by one compiled scan                                                               |
| `in_lists`  | the codes of the `nprobe` nearest lists, by FAISS                                              |

An item of several vectors has the codes of each of them. A search by their mean asks each with a share of the query:

    <q, mean_v x~_v> = sum_v <q / V, x~_v>

Source: Jegou et al., Product Quantization, Sections 3 and 4; MoPQ, Figure 1.

Axes: B queries, X items, d width of a vector, V vectors of an item, D = V d, M subspaces of D, L codewords, l lists,
N items of a sample.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from rails_ray.kernels.faiss_library import as_float32, faiss_library, finite, training
from rails_ray.modules.quantizers.faiss_convert import to_faiss
from rails_ray.modules.quantizers.product import ProductQuantizer, pack, turned
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.faiss_on_gpu import on_gpu
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.spec import SearchResult, SearchSpec, needed

UNIT = 2.0**-24  # relative error of one rounded operation in float32


class CodeIndex:
    """The contract of `VectorIndex`, by scoring every code.

    Args:
        codes: one codeword a byte.
        num_vectors: V; queries [B, d] ask for their mean.
        error: the largest distance of an item's mean vector to its decoded mean; 0 if decoded vectors are what is
            searched.
    """

    knows_scores = False  # by tables, not by the decoded vectors

    def __init__(
        self, quantizer: ProductQuantizer, codes: UInt8[Tensor, "X M"], num_vectors: int = 1, error: float = 0.0
    ) -> None:
        quantizer.check_codes(codes)
        self.quantizer = quantizer
        self.num_vectors = num_vectors
        self.index = LookupIndex(codes)
        self.error = error

    @property
    def is_exact(self) -> bool:
        """Return whether scores are those that are searched for."""
        return not self.error

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `VectorIndex`; every code is looked at."""
        found = self.index.search(self.quantizer.lookup_table(for_mean(queries, self.num_vectors)), spec)
        return found if self.is_exact else with_error(found, queries, spec, self.error, len(self.index.codes))

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        """The contract of `VectorIndex`; a look-up counts as a product."""
        return float(len(self.index.codes))


class MeanIndex:
    """The contract of `VectorIndex`, by an index of D numbers that is asked for the mean of V vectors.

    Args:
        rotation: what turned the vectors of the index.
    """

    knows_scores = False

    def __init__(
        self, index: FaissIndex, num_vectors: int, rotation: Float[Tensor, "d d"] | None, error: float
    ) -> None:
        self.index = index
        self.num_vectors = num_vectors
        self.rotation = rotation
        self.error = error

    @property
    def is_exact(self) -> bool:
        """Never: lists may pass over any item."""
        return False

    @property
    def on_cpu(self) -> str | None:
        """Why lists are searched on the CPU where a GPU searches; None otherwise."""
        return self.index.on_cpu

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `VectorIndex`."""
        return self.index.search(turned(for_mean(queries, self.num_vectors), self.rotation), spec, params)

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        """The contract of `VectorIndex`."""
        return self.index.num_products(num_left, num_queries, params)


def for_mean(queries: Float[Tensor, "B d"], num_vectors: int) -> Float[Tensor, "B D"]:
    """Queries whose inner product with V concatenated vectors equals the inner product of `queries` with their mean."""
    return queries if num_vectors == 1 else queries.repeat(1, num_vectors) / num_vectors


def with_error(
    found: SearchResult, queries: Float[Tensor, "B d"], spec: SearchSpec, error: float, num_items: int
) -> SearchResult:
    """`found`, whose scores are off by at most |q| error, with the highest score that a missing item can have."""
    last = found.scores.masked_fill(found.scores == -torch.inf, torch.inf)
    last = torch.cat([last, torch.full_like(found.bound, torch.inf)[:, None]], dim=1).amin(dim=1)
    if spec.threshold is not None:
        last = needed(last, spec.threshold.float(), found.is_truncated)
    highest = last + queries.norm(dim=1).float() * error * (1 + UNIT)
    is_all = found.num_found() >= spec.num_left(len(queries), num_items, queries.device)
    bound = torch.where(is_all | last.isposinf(), -torch.inf, highest)  # nothing reaches a threshold of inf
    return SearchResult(found.scores, found.item_rows, bound, found.is_truncated, found.num_scored, found.reasons)


def in_lists(
    quantizer: ProductQuantizer,
    codes: UInt8[Tensor, "X M"],
    lists: Int[Tensor, " X"],
    centroids: Float[Tensor, "l d"],
    num_vectors: int = 1,
    error: float = 0.0,
) -> MeanIndex:
    """The index of codes in lists, FAISS's IndexIVFPQ of the vectors themselves (not of residuals), so that a code
    means the same in each list.

    Args:
        lists: the list of each item, by the centroids of means.

    Raises:
        ValueError: if an item is in no list.
        UnsupportedError: without FAISS.
    """
    faiss, nlist = faiss_library(), len(centroids)
    least, largest = (int(end) for end in lists.aminmax()) if len(lists) else (0, 0)
    if not 0 <= least <= largest < nlist:
        raise ValueError(
            f"lists must be at least 0 and below the {nlist} centroids, got {least if least < 0 else largest}"
        )
    coarse = faiss.IndexFlatIP(quantizer.width)
    coarse.add(as_float32(turned(centroids.repeat(1, num_vectors), quantizer.rotation)))
    flat = to_faiss(replace(quantizer, rotation=None))
    index = faiss.IndexIVFPQ(
        coarse, quantizer.width, nlist, quantizer.num_subspaces, flat.pq.nbits, faiss.METRIC_INNER_PRODUCT
    )
    coarse.this.disown()
    index.own_fields = True
    index.by_residual = False
    index.pq = flat.pq
    index.is_trained = True
    _fill(faiss, index, (pack(codes) if flat.pq.nbits == 4 else codes).numpy(force=True), lists.numpy(force=True))
    longer = math.sqrt(num_vectors)  # FAISS is asked for the mean of V vectors by a query of length |q| / sqrt(V)
    own = FaissIndex(index, error * longer)
    return MeanIndex(on_gpu(own) if codes.is_cuda else own, num_vectors, quantizer.rotation, error)


def _fill(faiss: Any, index: Any, codes: np.ndarray, lists: np.ndarray) -> None:
    """Put codes in their lists, item rows ascending."""
    rows = np.argsort(lists, kind="stable").astype(np.int64)
    edges = np.searchsorted(lists[rows], np.arange(index.nlist + 1))
    ordered = np.ascontiguousarray(codes[rows])
    for number, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if end > start:
            own, stored = rows[start:end], ordered[start:end]
            index.invlists.add_entries(number, end - start, faiss.swig_ptr(own), faiss.swig_ptr(stored))
    index.ntotal = len(lists)


def fit_lists(sample: Float[Tensor, "N d"], nlist: int, seed: int) -> Float[Tensor, "l d"]:
    """Centroids of length 1, by k-means of a sample. The same sample and seed give the same ones.

    Raises:
        ValueError: if there are more lists than vectors, or one is not finite.
        UnsupportedError: without FAISS.
    """
    faiss, points = faiss_library(), finite(sample, "sample")
    check_nlist(nlist, len(points))
    means = faiss.Kmeans(sample.shape[1], nlist, spherical=True, seed=seed, min_points_per_centroid=1)
    with training(f"centroids of {nlist} lists", points):
        means.train(points)
    return torch.from_numpy(means.centroids.copy())


def check_nlist(nlist: int, num_points: int) -> None:
    """
    Raises:
        ValueError: if there are more lists than vectors.
    """
    if nlist > num_points:
        raise ValueError(f"nlist must be at most the {num_points} items of the sample, got {nlist}: take fewer lists")


def lists_of(vectors: Float[Tensor, "X d"], centroids: Float[Tensor, "l d"]) -> Int[Tensor, " X"]:
    """The list of each vector, by the largest inner product."""
    return (vectors @ centroids.T).argmax(dim=1).int()
