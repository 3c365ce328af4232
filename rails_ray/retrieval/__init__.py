"""Retrieval: the k items of a corpus with the highest score under a learned similarity.

| member          | paper                                          | exact                                  |
|-----------------|------------------------------------------------|----------------------------------------|
| `brute_force`   | RAILS, Section 3 (baseline): the exact scan    | always                                 |
| `two_pass`      | RAILS, Algorithm 1                             | always                                 |
| `approximate`   | RAILS, Section 3.2: top-k per embedding, top-k | where its certificate says so          |
|                 | average, combined top-k                        |                                        |
| `sharded`       | one corpus, several parts                      | as its parts are                       |

`candidates` and `rescore` are the two stages of the approximate methods, `certificate` what an answer proves.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from rails_ray.retrieval.certificate import Certificate
from rails_ray.similarities.states import QueryState
from rails_ray.top_k import Exclusions, TopK


@dataclass(frozen=True)
class Found:
    """
    top_k: exactly k distinct items per query, scores descending, none of them excluded.
    certificate: what is known of the items whose score was not computed.
    num_scored: items of which it was, by query.
    """

    top_k: TopK
    certificate: Certificate
    num_scored: Int[Tensor, " B"]


@runtime_checkable
class Retriever(Protocol):
    """A search method bound to a similarity and to the items that it searches."""

    @property
    def is_exact(self) -> bool:
        """Whether an answer always equals that of brute force."""

    def search(self, query: QueryState, k: int, exclude: Exclusions | None = None) -> Found:
        """The k best items of each query.

        Raises:
            ValueError: if k is below 1 or above the number of items left after exclusion, or the query is not finite
                or not of the shape that the items have.
        """
