"""Fit and build an index of FAISS: fitted once, to a sample, then built for each shard. Both give FAISS's own bytes.

Axes: X items, N items of a sample, d width of a vector.
"""

import io
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.kernels.faiss_library import faiss_library, finite, one_thread, training
from rails_ray.search.indexes.equal_vectors import DistinctVectors, with_copies
from rails_ray.search.indexes.faiss_index import UNIT, IndexConfig, check_width, unreadable


class Built(NamedTuple):
    """A shard's index.

    data: what `faiss.deserialize_index` opens, and, after a graph of which some items have equal vectors, the linked
        node of each item, in 8 bytes; see `equal_vectors`.
    error: how far a score of a query of length 1 may be from that of the vector that was given; 0 for fp32.
    """

    data: bytes
    error: float


def check(config: IndexConfig, num_items: int, num_points: int) -> None:
    """Check before any work that an index can be fitted.

    Args:
        num_items, num_points: as many items as an index is to hold, and as its sample will have.

    Raises:
        ValueError: if it is to have more lists than the sample has items.
        UnsupportedError: without FAISS.
    """
    faiss_library()
    config.check(num_items, num_points)


def fit(config: IndexConfig, sample: Float[Tensor, "N d"], num_items: int, seed: int) -> bytes:
    """FAISS's index, trained and still empty. The same sample and seed give the same bytes.

    Args:
        num_items: items that an index built from it will hold, about.
        seed: of k-means; read by ivf alone.

    Raises:
        ValueError: if the sample is empty, not finite, or smaller than nlist.
        UnsupportedError: without FAISS.
    """
    faiss = faiss_library()
    if not len(sample):
        raise ValueError("sample must hold at least 1 item, got 0")
    points = finite(sample, "sample")
    index = config.untrained(points.shape[1], num_items, len(points), seed)
    with training(f"an index {config.kind}", points):
        index.train(points)
    return _written(faiss, index)


def build(fitted: bytes, blocks: Iterable[Float[Tensor, "_ d"]]) -> Built:
    """The index of a shard, whose rows are the places of the vectors in `blocks`. The same blocks give the same bytes;
    hnsw links depend on how the vectors are cut into blocks. Of equal vectors, hnsw links one.

    Raises:
        ValueError: if vectors are not as wide as the sample was, or cannot be stored, or if items were added before.
        DamagedError: if FAISS cannot read what was fitted.
        UnsupportedError: without FAISS.
    """
    faiss = faiss_library()
    try:
        index = faiss.deserialize_index(np.frombuffer(fitted, np.uint8))
    except (RuntimeError, MemoryError) as damage:
        raise unreadable(len(fitted)) from damage
    if index.ntotal:
        raise ValueError(f"fitted must be an index without items, got {index.ntotal}")
    distinct = DistinctVectors() if isinstance(index, faiss.IndexHNSW) else None
    codec = index if distinct is None else faiss.downcast_index(index.storage)
    is_rounded = isinstance(codec, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer)
    distance = longest = 0.0
    if isinstance(index, faiss.IndexIVF):
        longest = _longest(index.quantizer.reconstruct_n(0, index.nlist))
    for block in blocks:
        check_width(block, index.d, "vectors")
        vectors = finite(block, "vectors")
        if distinct is not None and len(vectors):
            vectors = vectors[distinct.new(codec.sa_encode(vectors + 0.0))]  # which makes -0 into 0
        with one_thread():  # which orders the links of hnsw
            index.add(vectors)
            if is_rounded and len(vectors):
                stored = codec.sa_decode(codec.sa_encode(vectors))
                distance = float(np.maximum(distance, _longest(vectors - stored)))  # NaN, if it is
                longest = max(longest, _longest(vectors), _longest(stored))
    if not np.isfinite(distance):
        raise ValueError("vectors must fit the storage of the index, got one that is read back as infinite")
    # Four sums of d products of float32: of a query with a vector, what is stored of it, and twice with a centroid.
    error = distance + 4 * (index.d + 8) * UNIT * longest if is_rounded else 0.0
    node_of = None if distinct is None else distinct.node_of
    end = b"" if node_of is None else with_copies(index, node_of)
    return Built(_written(faiss, index) + end, error)


def _written(faiss: Any, index: Any) -> bytes:
    """Return what `faiss.serialize_index` gives, without its second and third copy."""
    memory = io.BytesIO()
    faiss.write_index(index, faiss.PyCallbackIOWriter(memory.write))
    return memory.getvalue()


def _longest(vectors: NDArray[np.float32]) -> float:
    """The largest length."""
    return float(np.linalg.norm(vectors.astype(np.float64), axis=1).max(initial=0.0))
