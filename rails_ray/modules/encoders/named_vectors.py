"""Several vectors of each query and of each item, by name, as they are: frozen, each scaled to the length sqrt(D_p).

    h(x) = [sqrt(D_1) x_1 / |x_1|, .., sqrt(D_P) x_P / |x_P|]

A vector of zeros, of an item that lacks it, stays zeros. Components are the vectors' directions, each followed by zeros
up to the widest of all: the inner product of two of one width is their cosine.

Axes: B queries or items, P vectors of one, D_p width of vector p, E = D_1 + .. + D_P.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rails_ray.allowed_code import AllowedCode
from rails_ray.modules.encoders.config import EncoderConfig, Form, InputFacts
from rails_ray.modules.encoders.vectors import VectorRows, scaled


@dataclass(frozen=True, kw_only=True)
class NamedVectorsConfig(EncoderConfig):
    """Vectors of a data set, several of each query or item.

    Args:
        query_columns: the columns with the vectors of queries, whose names requests give too.
        item_columns: the columns with the vectors of items.
        query_widths: numbers of each vector of a query; empty for the data's.
        item_widths: numbers of each vector of an item; empty for the data's.
    """

    form: ClassVar[Form] = "named_vectors"
    is_frozen: ClassVar[bool] = True

    kind: Literal["named_vectors"] = "named_vectors"
    query_columns: tuple[str, ...] = ("title", "body")
    item_columns: tuple[str, ...] = ("title", "body")
    query_widths: tuple[int, ...] = ()
    item_widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for side, columns, widths in (
            ("query", self.query_columns, self.query_widths),
            ("item", self.item_columns, self.item_widths),
        ):
            if not columns or len(set(columns)) < len(columns):
                raise ValueError(
                    f"{side}_columns must name at least 1 column, each once, got {', '.join(columns) or 'none'}"
                )
            if widths and (len(widths) != len(columns) or min(widths) < 1):
                raise ValueError(
                    f"{side}_widths must be a number above 0 for each of {', '.join(columns)}, got {widths}"
                )
        if self.query_widths and self.item_widths:
            self._check_widths()

    def _check_widths(self) -> None:
        """Vectors of one name are compared, and each has one of its width to be compared with."""
        queries = dict(zip(self.query_columns, self.query_widths, strict=True))
        items = dict(zip(self.item_columns, self.item_widths, strict=True))
        for name in queries.keys() & items.keys():
            if queries[name] != items[name]:
                raise ValueError(
                    f"vectors {name!r} of queries and items must have one width, as they are compared, got "
                    f"{queries[name]} and {items[name]}"
                )
        for own, others, side, other in ((queries, items, "queries", "items"), (items, queries, "items", "queries")):
            for name, width in own.items():
                if width not in others.values():
                    raise ValueError(
                        f"vectors {name!r} of {side} must be as wide as a vector of {other}, got {width} numbers and "
                        f"{', '.join(f'{known} of {one!r}' for one, known in others.items())}: leave that column out"
                    )

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "NamedVectors":
        return NamedVectors(self)

    @property
    def shapes(self) -> tuple[int, tuple[int, int]] | None:
        """The contract of `EncoderConfig`, with D that of a component."""
        if not self.query_widths or not self.item_widths:
            return None
        width = max(*self.query_widths, *self.item_widths)
        return width, (len(self.item_columns), width)

    @property
    def begins_open(self) -> Bool[Tensor, "P_Q P_X"]:
        """The pairs of vectors that a gate begins with: those of one name; where a query's vector has no namesake, all
        with an item's vector of its width."""
        pairs = torch.zeros(len(self.query_columns), len(self.item_columns), dtype=torch.bool)
        for number, name in enumerate(self.query_columns):
            for other, namesake in enumerate(self.item_columns):
                pairs[number, other] = (
                    name == namesake
                    if name in self.item_columns
                    else self.query_widths[number] == self.item_widths[other]
                )
        return pairs

    def for_inputs(self, facts: InputFacts, place: str, allowed: AllowedCode) -> "NamedVectorsConfig":
        found = {"query_widths": facts.query_widths, "item_widths": facts.item_widths}
        for name, widths in found.items():
            if getattr(self, name) not in ((), widths):
                raise ValueError(
                    f"encoder.{name} must be the {' and '.join(map(str, widths)) or 'widths'} of the vectors of "
                    f"{place}, or left out, got {' and '.join(map(str, getattr(self, name)))}"
                )
        return replace(self, query_widths=facts.query_widths, item_widths=facts.item_widths)


class NamedVectors(nn.Module):
    """Vectors, one after the other, to representations; nothing in it is trained."""

    form: Literal["named_vectors"] = "named_vectors"
    takes_representations = False

    def __init__(self, config: NamedVectorsConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def query_width(self) -> int:
        return sum(self.config.query_widths)

    @property
    def item_width(self) -> int:
        return sum(self.config.item_widths)

    def query_features(self, inputs: Any) -> VectorRows:
        return VectorRows(inputs.values)

    def item_features(self, inputs: Any) -> VectorRows:
        return VectorRows(inputs.values)

    def is_blank(self, query: Any) -> bool:
        return not np.any(np.asarray(query, np.float32))

    def queries(self, features: VectorRows) -> Float[Tensor, "B E"]:
        return _each_scaled(features.tensor, self.config.query_widths)

    def items(self, features: VectorRows) -> Float[Tensor, "B E"]:
        return _each_scaled(features.tensor, self.config.item_widths)


def _each_scaled(vectors: Float[Tensor, "B E"], widths: tuple[int, ...]) -> Float[Tensor, "B E"]:
    return torch.cat([scaled(own) for own in vectors.split(widths, dim=1)], dim=1)
