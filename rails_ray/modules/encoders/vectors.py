"""Vectors that were made elsewhere, as they are: frozen, scaled to length sqrt(D).

    h(x) = sqrt(D) x / |x|

so that a number of a representation is about 1, as layers expect. An item may have several vectors of one width; its
representation then is all of them, one after the other.

Axes: B queries or items, P vectors of an item, D width of a vector.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.allowed_code import AllowedCode
from rails_ray.kernels.unit import unit
from rails_ray.modules.encoders.config import EncoderConfig, Form, InputFacts


@dataclass(frozen=True, kw_only=True)
class VectorsConfig(EncoderConfig):
    """Vectors of a data set.

    Args:
        item_columns: the column with the vectors of items, or several with one vector each.
        query_width: D of a query; 0 for the data's.
        item_shape: (P, D) of an item; empty for the data's.
    """

    form: ClassVar[Form] = "vector"
    is_frozen: ClassVar[bool] = True

    kind: Literal["vectors"] = "vectors"
    item_columns: tuple[str, ...] = ("vector",)
    query_width: int = 0
    item_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.item_columns:
            raise ValueError("item_columns must name at least 1 column, got none")
        if self.query_width < 0:
            raise ValueError(f"query_width must be at least 0, got {self.query_width}")
        if self.item_shape and (len(self.item_shape) != 2 or min(self.item_shape) < 1):
            raise ValueError(
                f"item_shape must be the number of an item's vectors and their width, got {self.item_shape}"
            )

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "Vectors":
        return Vectors(self)

    @property
    def shapes(self) -> tuple[int, tuple[int, int]] | None:
        if not self.item_shape:
            return None
        num_vectors, width = self.item_shape
        return self.query_width, (num_vectors, width)

    def for_inputs(self, facts: InputFacts, place: str, allowed: AllowedCode) -> "VectorsConfig":
        if facts.query_width is None or facts.item_shape is None:
            raise ValueError(f"queries of {place} must be vectors for encoder.kind vectors, got features")
        if self.query_width not in (0, facts.query_width):
            raise ValueError(
                f"encoder.query_width must be the {facts.query_width} of the queries of {place}, or 0, got "
                f"{self.query_width}"
            )
        return replace(self, query_width=facts.query_width, item_shape=facts.item_shape)


class VectorRows:
    """Vectors of many inputs, from which some can be taken: of a file that is mapped into memory, say."""

    def __init__(self, values: "NDArray[np.float32] | Tensor") -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Int[Tensor, " M"]) -> "VectorRows":
        """The vectors of some inputs, in memory."""
        if isinstance(self.values, Tensor):
            return VectorRows(self.values[rows])
        return VectorRows(torch.from_numpy(np.array(self.values[rows.numpy()])))

    def to(self, device: torch.device | str) -> "VectorRows":
        return VectorRows(self.tensor.to(device))

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def tensor(self) -> Tensor:
        """All vectors [B, D] or [B, P, D]."""
        return self.values if isinstance(self.values, Tensor) else torch.from_numpy(np.array(self.values))


class Vectors(nn.Module):
    """Vectors to representations; nothing in it is trained."""

    form: Literal["vector"] = "vector"
    takes_representations = False

    def __init__(self, config: VectorsConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def query_width(self) -> int:
        return self.config.query_width

    @property
    def item_width(self) -> int:
        return math.prod(self.config.item_shape)

    def query_features(self, inputs: Any) -> VectorRows:
        return VectorRows(inputs.values)

    def item_features(self, inputs: Any) -> VectorRows:
        return VectorRows(inputs.values)

    def is_blank(self, query: Any) -> bool:
        return not np.any(np.asarray(query, np.float32))

    def queries(self, features: VectorRows) -> Float[Tensor, "B D"]:
        return scaled(features.tensor)

    def items(self, features: VectorRows) -> Float[Tensor, "B E"]:
        return scaled(features.tensor).flatten(start_dim=1)


def scaled(vectors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Scale vectors to the length sqrt(D)."""
    return unit(vectors) * math.sqrt(vectors.shape[-1])
