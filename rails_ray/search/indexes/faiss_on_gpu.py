"""Copies of FAISS's indexes on a GPU, for those kinds that FAISS has there.

| index                      | on a GPU                                                                            |
|----------------------------|-------------------------------------------------------------------------------------|
| flat, fp32                 | FAISS's                                                                             |
| flat, fp16                 | scanned by torch in float32, as FAISS would round queries to fp16 too               |
| flat, sq8                  | none                                                                                |
| ivf, fp32, fp16 and sq8    | FAISS's                                                                             |
| codes in lists             | FAISS's, unless it refuses them: GpuIndexIVFPQ takes codes of residuals, ours are   |
|                            | of the vectors themselves                                                           |
| hnsw                       | CAGRA, a graph of FAISS's own there, if FAISS was built with cuVS, as PyPI's        |
|                            | faiss-gpu was not, and no vectors are equal; else none                              |

What has none is searched on the CPU, which is logged once and shown as `indexes_on_cpu` by `GET /v1/index`.
"""

import logging
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import torch

from rails_ray.kernels.faiss_library import faiss_library, has_cagra
from rails_ray.kernels.uploads import upload
from rails_ray.search.indexes.equal_vectors import OfDistinct
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.flat import ROWS_OF_BLOCK, FlatIndex
from rails_ray.search.indexes.probing import Floats, Rows
from rails_ray.search.spec import SearchSpec

OF_WARP = 32  # a beam of CAGRA is a multiple
GPU_WORKSPACE = 2**28  # bytes, for all copies of a process together; FAISS takes 1.5 GB for each by default


def on_gpu(index: FaissIndex) -> FaissIndex:
    """`index` with a copy on the first GPU, which answers up to 2,048 items a query unless many are hidden; or with the
    reason why it has none, which is logged."""
    found = copy(index)
    reason = None
    if not faiss_library().get_num_gpus():
        reason = "as FAISS sees no GPU: install faiss-gpu"
    elif has_cagra() and isinstance(index.kind, OfDistinct):
        reason = "as some of its vectors are equal"
    elif not index.kind.runs_on_gpu:
        reason = "as FAISS has no such index on a GPU"
    else:
        try:
            found.clone = _copied(index)
        except RuntimeError as error:  # of what its kernels do not have, or of memory
            reason = f"as it cannot be copied to the GPU: {error}"
    if reason is not None:
        found.on_cpu = f"an index {index.kind.name} is searched on the CPU, {reason}"
        _warn(found.on_cpu)
    return found


def _copied(index: FaissIndex) -> Any:
    faiss = faiss_library()
    if isinstance(index.index, faiss.IndexScalarQuantizer):
        return HalfCopy(index.index, "cuda")
    if isinstance(index.index, faiss.IndexHNSW):
        return CagraCopy(_vectors(index.index) if index.vectors is None else index.vectors.numpy())
    return faiss.index_cpu_to_gpu(_gpu_resources(), 0, index.index)


class HalfCopy:
    """The vectors of a flat index of fp16 on a device. Scores are those of the index on the CPU, but for the order in
    which float32 adds up."""

    def __init__(self, index: Any, device: str) -> None:
        vectors = torch.from_numpy(_vectors(index).astype(np.float16))  # as they were stored
        self.device = device
        self.scan = FlatIndex(vectors.to(device))

    def search(self, queries: Floats, n: int, params: Any = None) -> tuple[Floats, Rows]:
        """Scores and rows of the n best items of each query, as FAISS gives them."""
        found = self.scan.search(upload(torch.from_numpy(queries), self.device), SearchSpec(n))
        rows = found.item_rows.masked_fill(found.scores == -torch.inf, -1)
        return found.scores.numpy(force=True), rows.numpy(force=True)


class CagraCopy:
    """A graph on the GPU that takes the place of hnsw. It is built anew of the vectors, and finds other candidates.

    It is asked for rows alone: scores are of the vectors in the host's memory (float32, beside those of an index that
    keeps 16 or 8 bits), as those of the index on the CPU are, but for the order in which float32 adds up. A row that is
    none, or that comes twice, is left out; the list is then short, and `FaissIndex` asks the index on the CPU. So it
    does where FAISS raises an error, which is logged once.
    """

    def __init__(self, vectors: Floats) -> None:
        faiss = faiss_library()
        self.vectors = vectors  # which the graph may read as long as it lives
        self.graph = faiss.GpuIndexCagra(
            _gpu_resources(), vectors.shape[1], faiss.METRIC_INNER_PRODUCT, faiss.GpuIndexCagraConfig()
        )
        self.graph.train(vectors)

    def search(self, queries: Floats, n: int, params: Any) -> tuple[Floats, Rows]:
        """Scores and rows of the n best items of each query that a beam of `params.efSearch` finds."""
        num = min(n, len(self.vectors))
        wanted = faiss_library().SearchParametersCagra()
        wanted.itopk_size = -(-max(params.efSearch, num) // OF_WARP) * OF_WARP
        try:
            rows: Rows = np.sort(self.graph.search(queries, num, params=wanted)[1], axis=1)
        except RuntimeError as error:  # of a beam that it refuses, or of memory
            _warn(f"an index hnsw is searched on the CPU, as its graph on the GPU cannot be searched: {error}")
            rows = np.full((len(queries), num), -1)
        is_none = (rows < 0) | (rows >= len(self.vectors)) | (np.diff(rows, axis=1, prepend=-1) == 0)
        rows = np.where(is_none, 0, rows)
        scores = np.stack([self.vectors[own] @ query for own, query in zip(rows, queries, strict=True)])
        scores, rows = np.where(is_none, np.float32(-np.inf), scores), np.where(is_none, -1, rows)
        order = np.argsort(-scores, axis=1, kind="stable")  # equal ones by row
        padding = ((0, 0), (0, n - num))
        return (
            np.pad(np.take_along_axis(scores, order, axis=1), padding, constant_values=-np.inf),
            np.pad(np.take_along_axis(rows, order, axis=1), padding, constant_values=-1),
        )


def _vectors(index: Any) -> Floats:
    """The vectors of an index as they are stored, in float32."""
    starts = range(0, index.ntotal, ROWS_OF_BLOCK)
    parts = [index.reconstruct_n(row, min(ROWS_OF_BLOCK, index.ntotal - row)) for row in starts]
    return np.concatenate([np.empty((0, index.d), np.float32), *parts])


@cache
def _warn(sentence: str) -> None:
    """Log a sentence once in a process, however many shards and versions have it."""
    logging.getLogger(__name__).warning(sentence)


@cache
def _gpu_resources() -> Any:
    """Streams and memory that FAISS works with on the GPU."""
    resources = faiss_library().StandardGpuResources()
    resources.setTempMemory(GPU_WORKSPACE)
    return resources
