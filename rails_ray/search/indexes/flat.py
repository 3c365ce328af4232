"""All vectors, scanned in blocks: exact inner-product search.

Plain torch rather than `faiss.IndexFlatIP`, which it equals: faiss excludes the same items for all queries of a call,
and the mathematics must also run where only torch is installed. FAISS's own is for vectors in fewer bits
(`search.indexes.faiss_index`).

Axes: B queries, X items, d width of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.kernels.products import inner_products
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.grown_lists import SCAN
from rails_ray.search.indexes.probing import Floats, Only, PreparedQueries, Rows
from rails_ray.search.scan import scan
from rails_ray.search.spec import SearchResult, SearchSpec

Storage = Literal["fp32", "fp16", "sq8"]
ROWS_OF_BLOCK = 2**16  # of a scan of rounded vectors: 16 MB of them with 64 numbers
READ = 1.5  # products in the time of reading a vector, in order (jobs.benches.filters)
BLOCK_SCORES = 2**23  # scores of a block, 32 MB: wide lines, in which selection costs least per score
GPU_BLOCK_SCORES = 2**26  # 256 MB


@dataclass(frozen=True, kw_only=True)
class FlatConfig:
    """Every vector, scanned.

    Args:
        storage: what a vector is kept as: fp32; fp16; sq8, a byte a number, which divides the range of the numbers that
            a sample of vectors has in that place into 255 parts.
    """

    kind: Literal["flat"] = "flat"
    storage: Storage = "fp32"

    def check(self, num_items: int, num_points: int) -> None:
        """The contract of `KindConfig`: any sample will do."""

    def untrained(self, width: int, num_items: int, num_points: int, seed: int) -> Any:
        """The contract of `KindConfig`. Only sq8 storage needs training."""
        faiss = faiss_library()
        if self.storage == "fp32":
            return faiss.IndexFlatIP(width)
        return faiss.IndexScalarQuantizer(width, scalar_quantizer(self.storage), faiss.METRIC_INNER_PRODUCT)

    @staticmethod
    def opened(index: Any) -> "FlatSearch | None":
        """The contract of `KindConfig`."""
        faiss = faiss_library()
        return FlatSearch(index) if isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer) else None


def scalar_quantizer(storage: Storage) -> Any:
    """FAISS's name of a storage other than fp32."""
    faiss = faiss_library()
    return {"fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}[storage]


class FlatIndex:
    """Exact inner-product search over `vectors` [X, d], which may be of a narrower dtype than queries."""

    is_exact = knows_scores = True
    error = 0.0

    def __init__(self, vectors: Float[Tensor, "X d"]) -> None:
        self.vectors = vectors

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `VectorIndex`; every vector is looked at."""
        spec.check_queries(len(queries))
        return scan(self._blocks(queries), spec, len(queries), len(self.vectors), queries.device)

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        """The contract of `VectorIndex`; the queries share what is read."""
        return len(self.vectors) * (1 + READ / num_queries)

    def _blocks(self, queries: Float[Tensor, "B d"]) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
        """(First item row, scores) of each block; the scores last until the next one is asked for."""
        num_items = len(self.vectors)
        most = BLOCK_SCORES if queries.is_cpu else GPU_BLOCK_SCORES
        size = max(min(most // max(len(queries), 1), num_items), 1)
        if not queries.is_cpu and self.vectors.dtype != queries.dtype:
            # A block is widened, in memory that is the GPU's too.
            size = max(min(size, most // self.vectors.shape[1]), 1)
        memory = queries.new_empty(len(queries) * size)  # for all blocks: asking for it anew takes as long as a product
        for first in range(0, num_items, size):
            vectors = self.vectors[first : first + size].to(queries.dtype)
            scores = memory[: len(queries) * len(vectors)].view(len(queries), len(vectors))
            yield first, inner_products(queries, vectors, out=scores)


class FlatSearch:
    """The contract of `KindSearch`. Vectors of fp16 are searched on a GPU by `faiss_on_gpu.HalfCopy`."""

    name, growth = "flat", SCAN

    def __init__(self, index: Any) -> None:
        self.index = index
        faiss = faiss_library()
        is_half = isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == scalar_quantizer("fp16")
        self.runs_on_gpu = isinstance(index, faiss.IndexFlat) or is_half

    def num_products(self, num_left: int, params: SearchParams) -> float:
        """The contract of `KindSearch`; to ask of each vector if it is hidden costs FAISS what it saves."""
        return float(self.index.ntotal)

    def ask(self, queries: Floats, params: SearchParams) -> PreparedQueries:
        """All items are looked at."""
        faiss, index = faiss_library(), self.index

        def best(lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
            parameters = None if only is None else faiss.SearchParameters(sel=only.selector)
            found: tuple[Floats, Rows] = index.search(queries[lines], n, params=parameters)
            return found

        def scanned(lines: Rows, spec: SearchSpec) -> SearchResult:
            own = torch.from_numpy(queries[lines])
            if isinstance(index, faiss.IndexFlat):
                vectors = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(-1, index.d)
                return FlatIndex(torch.from_numpy(vectors)).search(own, spec)
            starts = range(0, index.ntotal, ROWS_OF_BLOCK)
            stored = ((row, index.reconstruct_n(row, min(ROWS_OF_BLOCK, index.ntotal - row))) for row in starts)
            blocks = ((row, own @ torch.from_numpy(vectors).T) for row, vectors in stored)
            return scan(blocks, spec, len(lines), index.ntotal)

        return PreparedQueries(queries, best, None, np.full(len(queries), index.ntotal, np.int64), True, scanned)
