"""Copies of FAISS's indexes on a GPU, for those kinds that FAISS has there.

| index                      | on a GPU                                                                            |
|----------------------------|-------------------------------------------------------------------------------------|
| flat, fp32                 | FAISS's                                                                             |
| flat, fp16                 | scanned by torch in float32, as FAISS would round queries to fp16 too               |
| flat, sq8                  | none                                                                                |
| ivf, fp32, fp16 and sq8    | FAISS's                                                                             |
| codes in lists             | FAISS's, unless it refuses them: GpuIndexIVFPQ takes codes of residuals, ours are   |
|                            | of the vectors themselves                                                           |
| hnsw                       | none: CAGRA in its place needs a FAISS that was built with cuVS                     |

What has none is searched on the CPU, which is logged once and shown as `indexes_on_cpu` by `GET /v1/index`.
"""

import logging
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import torch

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.flat import ROWS_OF_BLOCK, FlatIndex
from rails_ray.search.indexes.probing import Floats, Rows
from rails_ray.search.spec import SearchSpec
from rails_ray.search.uploads import upload

GPU_WORKSPACE = 2**28  # bytes, for all copies of a process together; FAISS takes 1.5 GB for each by default


def on_gpu(index: FaissIndex) -> FaissIndex:
    """`index` with a copy on the first GPU, which answers up to 2,048 items a query unless many are hidden; or with the
    reason why it has none, which is logged."""
    found = copy(index)
    reason = None
    if not faiss_library().get_num_gpus():
        reason = "as FAISS sees no GPU: install faiss-gpu"
    elif not index.kind.runs_on_gpu:
        reason = "as FAISS has no such index on a GPU"
    else:
        try:
            found.clone = _copied(index.index)
        except RuntimeError as error:  # of what its kernels do not have, or of memory
            reason = f"as it cannot be copied to the GPU: {error}"
    if reason is not None:
        found.on_cpu = f"an index {index.kind.name} is searched on the CPU, {reason}"
        _warn(found.on_cpu)
    return found


def _copied(index: Any) -> Any:
    faiss = faiss_library()
    if isinstance(index, faiss.IndexScalarQuantizer):
        return HalfCopy(index, "cuda")
    return faiss.index_cpu_to_gpu(_gpu_resources(), 0, index)


class HalfCopy:
    """The vectors of a flat index of fp16 on a device. Scores are those of the index on the CPU, but for the order in
    which float32 adds up."""

    def __init__(self, index: Any, device: str) -> None:
        starts = range(0, index.ntotal, ROWS_OF_BLOCK)
        parts = [index.reconstruct_n(row, min(ROWS_OF_BLOCK, index.ntotal - row)) for row in starts]
        vectors = np.concatenate([np.empty((0, index.d), np.float32), *parts]).astype(np.float16)  # as they were stored
        self.device = device
        self.scan = FlatIndex(torch.from_numpy(vectors).to(device))

    def search(self, queries: Floats, n: int, params: Any = None) -> tuple[Floats, Rows]:
        """Scores and rows of the n best items of each query, as FAISS gives them."""
        found = self.scan.search(upload(torch.from_numpy(queries), self.device), SearchSpec(n))
        rows = found.item_rows.masked_fill(found.scores == -torch.inf, -1)
        return found.scores.numpy(force=True), rows.numpy(force=True)


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
