"""Encoders: a query or an item becomes the tensors that a similarity compares.

| member             | paper                                                                      |
|--------------------|----------------------------------------------------------------------------|
| `two_tower`        | the dual encoder of MoPQ and pEBR, on hashed character n-grams             |
| `character_ngrams` | text to n-gram buckets, the input of `two_tower`                           |
| `components`       | RAILS, Section 2: representation -> P_Q / P_X components and gate vectors  |
| `temperature`      | pEBR, Section 2.4: the head that gives each query its tau_q                |
| `model`            | all of these with a similarity: what is trained, stored and served         |
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Features = TypeVar("Features")


@runtime_checkable
class Encoder(Protocol, Generic[Features]):
    """Two towers from inputs to representations of the same width D."""

    @property
    def width(self) -> int:
        """D."""

    def features(self, inputs: Sequence[str]) -> Features:
        """Inputs (texts) as the tensors that the towers read."""

    def is_blank(self, text: str) -> bool:
        """Whether nothing in a text tells it from another."""

    def queries(self, features: Features) -> Float[Tensor, "B D"]:
        """Representations of queries."""

    def items(self, features: Features) -> Float[Tensor, "X D"]:
        """Representations of items."""
