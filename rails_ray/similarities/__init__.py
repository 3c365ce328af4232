"""Similarities: how well an item answers a query, a number in [-1, 1] (any number if terms or logits are added up).

| member        | paper                                     |
|---------------|-------------------------------------------|
| `dot_product` | the two-tower baseline of all five papers |
| `mol`         | RAILS, Section 2: Mixture of Logits       |
| `look_up`     | SOLAR, Section 3.3: a sum of look-ups     |
| `bm25`        | none: a sum over shared terms, a baseline |

`explain` takes a score apart. `states` holds what a similarity compares: the tensors that encoding a query or an item
leaves behind.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rails_ray.similarities.states import ItemState, QueryState


class Scored(NamedTuple):
    """Scores and, if the similarity has a gate, its gates (each [P] sums to 1)."""

    scores: Float[Tensor, "B X"]
    gates: Float[Tensor, "B X P"] | None


@runtime_checkable
class Similarity(Protocol):
    """Scores every query of a batch against items, all differentiably."""

    @property
    def num_components(self) -> tuple[int, int]:
        """(P_Q, P_X)."""

    def __call__(self, query: QueryState, items: ItemState) -> Scored:
        """Scores in [-1, 1] of each query against all items [X], or against candidates of its own [B C]."""

    def scores(self, query: QueryState, items: ItemState, floor: Float[Tensor, " B"] | None = None) -> Tensor:
        """The same scores [B, X] or [B, C], for inference: no gradient, no gates, block by block.

        Args:
            floor: an item whose score cannot reach it may get -inf instead.
        """
