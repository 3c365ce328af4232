"""Retrieval: the items of a corpus with the highest score under a learned similarity, k of them or all that reach a
threshold.

| member          | paper                                          | exact                                  |
|-----------------|------------------------------------------------|----------------------------------------|
| `brute_force`   | RAILS, Section 3 (baseline): the exact scan    | always                                 |
| `two_pass`      | RAILS, Algorithm 1                             | always                                 |
| `approximate`   | RAILS, Section 3.2: top-k per embedding, top-k | where its certificate says so          |
|                 | average, combined top-k                        |                                        |
| `look_up`       | SOLAR, Section 4, and product quantization:    | `FullLookUp` always, `Inverted` where  |
|                 | every item, or those in a query's buckets      | its certificate says so                |
| `sharded`       | one corpus, several parts: by items            | as its parts are                       |
| `by_chunk`      | SOLAR, Section 3: by chunks of the codes       | as `look_up` is                        |

`candidates` and `rescore` are the two stages of the approximate methods, `certificate` what an answer proves.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.above import Above
from rails_ray.retrieval.certificate import Certificate, needed
from rails_ray.similarities.states import QueryState, Tables
from rails_ray.top_k import Exclusions, TopK

Query = TypeVar("Query", QueryState, Tables, contravariant=True)


@dataclass(frozen=True)
class Found:
    """
    top_k: exactly k distinct items per query, scores descending, none of them excluded. Of a method that may find
        fewer, `inverted`, the last places may be empty, with score -inf.
    certificate: what is known of the items whose score was not computed.
    num_scored: items of which it was, by query.
    """

    top_k: TopK
    certificate: Certificate
    num_scored: Int[Tensor, " B"]


@dataclass(frozen=True)
class FoundAbove:
    """
    above: the items of each query whose score is at least its threshold, none of them excluded.
    certificate: what is known of the items whose score was not computed although it might reach the threshold.
    num_scored: items of which it was computed, by query.
    """

    above: Above
    certificate: Certificate
    num_scored: Int[Tensor, " B"]

    def gap(self, threshold: Float[Tensor, " B"], at_least: int) -> Float[Tensor, " B"] | None:
        """How much higher than it had to a missing item can score; 0 where the answer is exact, None where nothing is
        known. If a list is shorter than `at_least`, any missing item belongs in it: the gap is inf unless nothing was
        left out.

        Args:
            threshold, at_least: of the search.
        """
        scores = F.pad(self.above.top_k.scores, (0, 1), value=-torch.inf)
        last = scores.masked_fill(scores == -torch.inf, torch.inf).amin(dim=1)
        reached = needed(last, threshold.float(), self.above.is_truncated)
        return self.certificate.gap(reached.masked_fill(self.above.top_k.num_found() < at_least, -torch.inf))


@runtime_checkable
class Retriever(Protocol, Generic[Query]):
    """A search method bound to a similarity and to the items that it searches."""

    @property
    def is_exact(self) -> bool:
        """Whether an answer always equals that of brute force."""

    def search(self, query: Query, k: int, exclude: Exclusions | None = None) -> Found:
        """The k best items of each query.

        Raises:
            ValueError: if k is below 1 or above the number of items left after exclusion, or the query is not finite
                or not of the shape that the items have.
        """

    def search_above(
        self,
        query: Query,
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> FoundAbove:
        """All items whose score is at least the query's threshold, at most the `cap` best of them; where fewer than
        `at_least` reach it, the `at_least` best.

        Args:
            threshold: compared in float32; -inf for every item, inf for none.

        Raises:
            ValueError: if a threshold is NaN, unless 0 <= at_least <= cap and cap >= 1, or if the query is not finite
                or not of the shape that the items have.
        """
