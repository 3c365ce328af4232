"""Similarity of items that are codes: the similarity of their model, and the quantizer that reads them back."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.modules.quantizers.product import ProductQuantizer


class QuantizedSimilarity(nn.Module):
    """A similarity of components, with what reads them back from codes.

    Args:
        centroids: of the inverted lists of mean components; None if there are none.
    """

    def __init__(
        self, similarity: nn.Module, quantizer: ProductQuantizer, centroids: Float[Tensor, "l d"] | None = None
    ) -> None:
        super().__init__()
        self.similarity: Any = similarity
        self.quantizer = quantizer
        self.centroids = centroids

    @property
    def num_components(self) -> tuple[int, int]:
        """(P_Q, P_X)."""
        found: tuple[int, int] = self.similarity.num_components
        return found

    @property
    def longest(self) -> float:
        """As `longest_of`."""
        return longest_of(self.similarity)

    def to(self, *args: Any, **kwargs: Any) -> "QuantizedSimilarity":
        """Move to another device."""
        device = torch.device(*args, **kwargs)
        centroids = None if self.centroids is None else self.centroids.to(device)
        return QuantizedSimilarity(self.similarity.to(device), self.quantizer.to(device), centroids)


def longest_of(similarity: Any) -> float:
    """Length that no component which a similarity compares exceeds."""
    return 1.0 if similarity.has_bounded_vectors else float("inf")
