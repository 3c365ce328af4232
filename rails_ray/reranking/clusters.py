"""Supports from clusters: of each cluster the item nearest to its centre.

Source: RBE, Section 3.4 and Table 1: scikit-learn's clusters with its defaults.
Differs from the source: what the paper does with clusters that have no centre, or share their nearest item, it does
not say. Here a centre is the mean of a cluster's items, and a support is taken from the items of its own cluster, so
that all differ. Where scikit-learn leaves clusters empty, the items furthest from their centres fill up.

Axes: X items, Q support queries, S supports.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from rails_ray.optional import optional

NUM_NEIGHBORS = 10  # of spectral_nearest_neighbors: scikit-learn's default


def near_centres(relevance: Float[ndarray, "X Q"], num_supports: int, method: str, seed: int) -> Int[ndarray, " S"]:
    """Rows of the supports, each once.

    Args:
        method: a method of `supports.ClusterSupports`.

    Raises:
        UnsupportedError: if scikit-learn is not installed.
        ValueError: for methods of two-sided clusters with more clusters than queries.
    """
    labels = labels_of(relevance, num_supports, method, seed)
    sums = np.zeros((num_supports, relevance.shape[1]))
    np.add.at(sums, labels, relevance)
    counts = np.bincount(labels, minlength=num_supports)
    centres = sums / np.maximum(counts, 1)[:, None]
    distances = np.square(relevance - centres[labels]).sum(axis=1)
    by_cluster = np.lexsort((distances, labels))
    nearest = by_cluster[(np.cumsum(counts) - counts)[counts > 0]]
    others = np.setdiff1d(np.argsort(-distances, kind="stable"), nearest, assume_unique=True)
    return np.concatenate([nearest, others[: num_supports - len(nearest)]])


def labels_of(relevance: Float[ndarray, "X Q"], num_clusters: int, method: str, seed: int) -> Int[ndarray, " X"]:
    """The cluster of each item. Raises what `near_centres` does."""
    cluster = optional(
        "sklearn.cluster",
        needed_by="supports.kind clusters",
        package="scikit-learn",
        install="'rails-ray[relevance]'",
    )
    if method.startswith("spectral") and not 2 <= num_clusters < len(relevance):
        raise ValueError(
            f"{method} must have at least 2 supports and fewer than the {len(relevance)} items, got {num_clusters}"
        )
    one_sided: dict[str, Any] = {
        "k_means": cluster.KMeans,
        "mini_batch_k_means": cluster.MiniBatchKMeans,
        "bisecting_k_means": cluster.BisectingKMeans,
    }
    two_sided = {
        "spectral_coclustering": cluster.SpectralCoclustering,
        "spectral_biclustering": cluster.SpectralBiclustering,
    }
    if method in one_sided:
        fitted = one_sided[method](num_clusters, random_state=seed).fit(relevance)
    elif method == "agglomerative":
        if len(relevance) == 1:  # scikit-learn wants two
            return np.zeros(1, np.int64)
        fitted = cluster.AgglomerativeClustering(num_clusters).fit(relevance)
    elif method == "spectral_nearest_neighbors":
        num_neighbors = min(NUM_NEIGHBORS, len(relevance))
        options: dict[str, Any] = {"affinity": "nearest_neighbors", "n_neighbors": num_neighbors}
        fitted = cluster.SpectralClustering(num_clusters, random_state=seed, **options).fit(relevance)
    else:
        if num_clusters > min(relevance.shape):
            raise ValueError(
                f"{method} must have at most as many clusters as there are support queries ({relevance.shape[1]}),"
                f" got {num_clusters}"
            )
        # these divide by the square roots of the sums of rows and columns, which must be positive
        fitted = two_sided[method](num_clusters, random_state=seed).fit(relevance - relevance.min() + 1e-3)
        return np.asarray(fitted.row_labels_)
    return np.asarray(fitted.labels_)
