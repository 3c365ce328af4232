"""Product quantization as FAISS fits it: codebooks by k-means in each subspace.

Source: Jegou et al., Product Quantization, Section 3.

Axes: N vectors of a sample, D numbers of a vector, M subspaces, L codewords, w = D / M.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels.faiss_library import check_short, faiss_library, finite, training
from rails_ray.modules.quantizers.product import ProductQuantizer, check_sizes, turned

NUM_ROUNDS = 25  # of k-means: FAISS's default


@dataclass(frozen=True, kw_only=True)
class PqConfig:
    """Codebooks by k-means."""

    kind: Literal["pq"] = "pq"


def fit_pq(
    sample: Float[Tensor, "N D"],
    num_subspaces: int,
    num_codewords: int,
    *,
    seed: int,
    rotation: Float[Tensor, "d d"] | None = None,
) -> ProductQuantizer:
    """A quantizer for vectors like these. The same sample and seed give the same codebooks.

    Args:
        rotation: what turns vectors before they are cut into parts.

    Raises:
        ValueError: if the sample is not finite, too long or smaller than a codebook, or cannot be cut into so many
            parts.
        UnsupportedError: without FAISS.
    """
    faiss = faiss_library()
    check_sizes(sample.shape[1], num_subspaces, num_codewords)
    check_sample(len(sample), num_codewords)
    values = finite(sample, "sample")
    check_short(values)
    points = turned(torch.from_numpy(values), rotation).unflatten(1, (num_subspaces, -1)).numpy()
    codebooks = np.empty((num_subspaces, num_codewords, points.shape[2]), np.float32)
    with training(f"codebooks of {num_codewords} codewords", values):
        for subspace in range(num_subspaces):
            means = faiss.Kmeans(
                points.shape[2], num_codewords, niter=NUM_ROUNDS, seed=seed + subspace, min_points_per_centroid=1
            )
            means.train(np.ascontiguousarray(points[:, subspace]))
            codebooks[subspace] = means.centroids
    return ProductQuantizer.of(torch.from_numpy(codebooks), rotation)


def check_sample(num_vectors: int, num_codewords: int) -> None:
    """
    Raises:
        ValueError: if there are fewer vectors than codewords.
    """
    if num_vectors < num_codewords:
        raise ValueError(
            f"a sample must have a vector for each of the {num_codewords} codewords of a codebook, got {num_vectors}: "
            "take fewer codewords"
        )
