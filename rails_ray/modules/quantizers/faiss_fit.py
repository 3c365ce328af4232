"""Quantizers that FAISS makes by name: what a user would take today, at equal bytes.

    num_bytes = sa_code_size()

Bytes are those that an item takes, not its nominal bits: the one bit per number of RaBitQ takes 24 bytes at 128
numbers, with the factors that it stores beside it.

Axes: X items, B queries, d numbers of a vector.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from rails_ray.kernels.faiss_library import as_float32, check_short, faiss_library, finite, training

NAMES_BY_BYTES = {
    8: ("PQ8", "OPQ8,PQ8", "PQ16x4fs", "RQ8x8", "LSQ8x8", "PRQ4x2x8", "PCAR16,SQ4"),
    16: ("OPQ16,PQ16", "PQ32x4fs", "LSQ16x8", "PCAR32,SQ4", "PCAR64,RaBitQ"),
    24: ("RaBitQ",),
    52: ("RaBitQ2",),
    64: ("SQ4",),
}  # names by the bytes that a vector of 128 numbers then takes
LEAST_VECTORS = 256  # that codebooks of a byte need; transforms need one for each number, or write beyond their memory


@dataclass(frozen=True)
class FaissQuantizer:
    """Encodes, decodes and searches as a `ProductQuantizer` does, but its codes need not be a product's.

    index: of FAISS, trained and empty, by inner product.
    """

    index: Any

    @property
    def num_bytes(self) -> int:
        """Bytes of an item's code."""
        size: int = self.index.sa_code_size()
        return size

    def encode(self, vectors: Float[Tensor, "X d"]) -> UInt8[Tensor, "X _"]:
        """The codes of vectors.

        Raises:
            ValueError: if vectors are not finite.
        """
        codes: Tensor = torch.from_numpy(self.index.sa_encode(finite(vectors, "vectors")))
        return codes

    def decode(self, codes: UInt8[Tensor, "X _"]) -> Float[Tensor, "X d"]:
        """The vectors that codes stand for; an estimate of an inner product may use the query too."""
        vectors: Tensor = torch.from_numpy(self.index.sa_decode(np.ascontiguousarray(codes.numpy())))
        return vectors

    def search(
        self, queries: Float[Tensor, "B d"], vectors: Float[Tensor, "X d"], k: int
    ) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        """Scores and rows of the k best items by the index's own estimate of an inner product."""
        filled = faiss_library().clone_index(self.index)
        filled.add(as_float32(vectors))
        scores, rows = filled.search(as_float32(queries), k)
        return torch.from_numpy(scores), torch.from_numpy(rows)


def fit_by_faiss(name: str, vectors: Float[Tensor, "N d"]) -> FaissQuantizer:
    """A quantizer that FAISS trains.

    Args:
        name: as FAISS's index_factory takes it; NAMES_BY_BYTES has some.

    Raises:
        ValueError: if vectors are not finite, too few or too long, or FAISS knows no such index for their width.
        UnsupportedError: without FAISS.
    """
    faiss, values = faiss_library(), finite(vectors, "vectors")
    num_vectors, width = values.shape
    try:
        index = faiss.index_factory(width, name, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(
            f"name must be an index of FAISS for inner products of {width} numbers, got {name!r}"
        ) from error
    least = max(LEAST_VECTORS, width)
    if num_vectors < least:
        raise ValueError(
            f"vectors must number at least {least}, one for each codeword of a byte and for each of their numbers, got "
            f"{num_vectors}"
        )
    check_short(values)
    with training(repr(name), values):
        index.train(values)
    return FaissQuantizer(index)
