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

from rails_ray.modules.similarities.states import ItemState, QueryState


class Scored(NamedTuple):
    """Scores and, if the similarity has a gate, its gates (each [P] sums to 1)."""

    scores: Float[Tensor, "B X"]
    gates: Float[Tensor, "B X P"] | None


@runtime_checkable
class Scorer(Protocol):
    """Scores for inference: no gradient, no gates, block by block."""

    @property
    def num_components(self) -> tuple[int, int]:
        """(P_Q, P_X)."""

    @property
    def has_bounded_vectors(self) -> bool:
        """Return whether components have length 1 or less."""

    def scores(self, query: QueryState, items: ItemState, floor: Float[Tensor, " B"] | None = None) -> Tensor:
        """Scores in [-1, 1] of each query against all items [B, X], or against candidates of its own [B, C].

        Args:
            floor: an item whose score cannot reach it may get -inf instead.
        """


@runtime_checkable
class Similarity(Scorer, Protocol):
    """Scores every query of a batch against items, all differentiably."""

    def __call__(self, query: QueryState, items: ItemState) -> Scored:
        """Scores in [-1, 1] of each query against all items [X], or against candidates of its own [B C]."""

    def numbers_per_pair(self, query: QueryState, *, is_shared: bool) -> int:
        """Numbers that training keeps for each pair of query and item, until it has gone back.

        Args:
            is_shared: whether all queries are compared with the same items.
        """

    def training_scores(self, query: QueryState, items: ItemState) -> Float[Tensor, "B X"]:
        """The scores of a call, by the shortest way there and back."""

    def prepared(self) -> Scorer:
        """Return a scorer that scores alike as long as no weight changes, with all made that depends on neither query
        nor items."""
