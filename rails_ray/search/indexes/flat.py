"""All vectors, scanned in blocks: exact inner-product search.

Plain torch rather than `faiss.IndexFlatIP`, which it equals: faiss excludes the same items for all queries of a call,
and the mathematics must also run where only torch is installed. FAISS's own is for vectors in fewer bits
(`search.indexes.faiss_index`).

Axes: B queries, X items, d width of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.scan import scan
from rails_ray.search.spec import SearchResult, SearchSpec

Storage = Literal["fp32", "fp16", "sq8"]
BLOCK_SCORES = 2**23  # scores of a block, 32 MB: wide lines, in which selection costs least per score


@dataclass(frozen=True, kw_only=True)
class FlatConfig:
    """Every vector, scanned.

    Args:
        storage: what a vector is kept as: fp32; fp16; sq8, a byte a number, which divides the range of the numbers that
            a sample of vectors has in that place into 255 parts.
    """

    kind: Literal["flat"] = "flat"
    storage: Storage = "fp32"


def untrained(config: FlatConfig, width: int) -> Any:
    """FAISS's index. Only sq8 storage needs training."""
    faiss = faiss_library()
    if config.storage == "fp32":
        return faiss.IndexFlatIP(width)
    return faiss.IndexScalarQuantizer(width, scalar_quantizer(config.storage), faiss.METRIC_INNER_PRODUCT)


def scalar_quantizer(storage: Storage) -> Any:
    """FAISS's name of a storage other than fp32."""
    faiss = faiss_library()
    return {"fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}[storage]


class FlatIndex:
    """Exact inner-product search over `vectors` [X, d], which may be of a narrower dtype than queries."""

    is_exact = True
    error = 0.0

    def __init__(self, vectors: Float[Tensor, "X d"]) -> None:
        self.vectors = vectors

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `VectorIndex`; every vector is looked at."""
        spec.check_queries(len(queries))
        return scan(self._blocks(queries), spec, len(queries), len(self.vectors), queries.device)

    def _blocks(self, queries: Float[Tensor, "B d"]) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
        """(First item row, scores) of each block; the scores last until the next one is asked for."""
        num_items = len(self.vectors)
        size = max(min(BLOCK_SCORES // max(len(queries), 1), num_items), 1)
        memory = queries.new_empty(len(queries) * size)  # for all blocks: asking for it anew takes as long as a product
        for first in range(0, num_items, size):
            vectors = self.vectors[first : first + size].to(queries.dtype)
            scores = memory[: len(queries) * len(vectors)].view(len(queries), len(vectors))
            yield first, torch.mm(queries, vectors.T, out=scores)
