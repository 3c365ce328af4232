"""Optimized product quantization: a rotation that lets the parts of a vector be rounded apart, then k-means in each.

    min over R, codebooks of  sum_x |R x - codeword(R x)|^2,    R R^T = 1

in turns: codebooks for the rotation, then the rotation for the codebooks, which is orthogonal Procrustes.

Source: Ge et al., Optimized Product Quantization (OPQ-NP), as FAISS's OPQMatrix has it.
Differs from the source: fewer vectors than they are wide count several times, until they are as many. FAISS would write
beyond its memory, as it puts d x d products where it has room for N x d numbers. Without R the error is twice as large
(docs/log/codes.md).

Axes: N vectors of a sample, D numbers of a vector, V vectors that an item's D numbers are, d = D / V, M subspaces,
L codewords.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels.faiss_library import check_short, faiss_library, finite, training
from rails_ray.modules.quantizers.pq import check_sample, fit_pq
from rails_ray.modules.quantizers.product import ProductQuantizer, check_sizes

NUM_POINTS = 2**16  # most vectors that the rotation is fitted to; FAISS has the same limit
MOST_BITS = 8


@dataclass(frozen=True, kw_only=True)
class OpqConfig:
    """A rotation, then codebooks by k-means.

    Args:
        num_rounds: times that the rotation is fitted.
    """

    kind: Literal["opq"] = "opq"
    num_rounds: int = 50

    def __post_init__(self) -> None:
        if self.num_rounds < 1:
            raise ValueError(f"num_rounds must be at least 1, got {self.num_rounds}")


def fit_opq(
    sample: Float[Tensor, "N D"],
    num_subspaces: int,
    num_codewords: int,
    *,
    seed: int,
    num_vectors: int = 1,
    num_rounds: int = OpqConfig.num_rounds,
) -> ProductQuantizer:
    """A quantizer for vectors like these. The same sample and seed give the same one.

    Args:
        num_subspaces: of all D numbers.
        num_vectors: V; they share the rotation and not the codebooks.

    Raises:
        ValueError: as `fit_pq`, or if V does not divide the subspaces.
        UnsupportedError: without FAISS.
    """
    check_sizes(sample.shape[1], num_subspaces, num_codewords)
    check_sample(len(sample), num_codewords)
    if num_subspaces % num_vectors:
        raise ValueError(
            f"num_subspaces must be a multiple of the {num_vectors} vectors of an item, got {num_subspaces}"
        )
    values = finite(sample, "sample")
    check_short(values)
    points = torch.from_numpy(values).view(len(sample) * num_vectors, -1)
    rotation = fit_rotation(points, num_subspaces // num_vectors, num_codewords, seed=seed, num_rounds=num_rounds)
    return fit_pq(sample, num_subspaces, num_codewords, seed=seed, rotation=rotation)


def fit_rotation(
    points: Float[Tensor, "N d"], num_subspaces: int, num_codewords: int, *, seed: int, num_rounds: int
) -> Float[Tensor, "d d"]:
    """R, fitted to at most NUM_POINTS points. FAISS fits it with a power of two of codewords: the largest that is at
    most `num_codewords`."""
    faiss, width = faiss_library(), points.shape[1]
    generator = torch.Generator().manual_seed(seed)
    some = points[torch.randperm(len(points), generator=generator)[:NUM_POINTS].sort().values]
    values = some.repeat(max(-(-width // max(len(some), 1)), 1), 1).numpy()  # [at least d, d]
    bits = min(int(math.log2(num_codewords)), MOST_BITS)
    matrix = faiss.OPQMatrix(width, num_subspaces)
    codes = faiss.ProductQuantizer(width, num_subspaces, bits)
    matrix.pq, matrix.niter = codes, num_rounds
    codes.cp.min_points_per_centroid = 1  # FAISS warns below 39 points for a codeword
    with training(f"a rotation of {width} numbers", values):
        matrix.train(values)
    return torch.from_numpy(faiss.vector_to_array(matrix.A).reshape(width, width).copy())
