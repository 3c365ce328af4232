"""Retrieval: the items of a corpus with the highest score under a learned similarity, k of them or all that reach a
threshold.

| member          | paper                                          | exact                                  |
|-----------------|------------------------------------------------|----------------------------------------|
| `brute_force`   | RAILS, Section 3 (baseline): the exact scan    | always                                 |
| `on_gpu`        | the same on a GPU: a fused kernel of 16 bits,  | always, as far as an error is no more  |
|                 | then the best in float32                       | than a multiple of those seen          |
| `two_pass`      | RAILS, Algorithm 1                             | always                                 |
| `approximate`   | RAILS, Section 3.2: top-k per embedding, top-k | where its certificate says so          |
|                 | average, combined top-k                        |                                        |
| `by_index`      | none: an index of the only component           | as the index is                        |
| `gated`         | none: a score's linear fit, of a query's own   | where it scored every item             |
|                 | items                                          |                                        |
| `look_up`       | SOLAR, Section 4, and product quantization:    | `FullLookUp` always, `Inverted` where  |
|                 | every item, or those in a query's buckets      | its certificate says so                |
| `bm25`          | none: the sum over a query's postings          | always                                 |

Above them `search.candidates` and `search.rescore` are the two stages of the approximate methods, `search.certificates`
says what an answer proves, and `search.searcher` has the methods of one corpus by name.
"""

from typing import Generic, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities.states import AnyQuery
from rails_ray.search.masks import Mask
from rails_ray.search.spec import SearchResult, SearchSpec

Query = TypeVar("Query", bound=AnyQuery, contravariant=True)


@runtime_checkable
class Retriever(Protocol, Generic[Query]):
    """A search method bound to a similarity and to the items that it searches."""

    @property
    def is_exact(self) -> bool:
        """Return whether every answer equals brute force's."""

    def search(self, query: Query, spec: SearchSpec) -> SearchResult:
        """Search for each query. A list is short if fewer items are left, and for `inverted` also if fewer items
        stand in the buckets that it looks up.

        Raises:
            ValueError: unless there is a threshold for each query, or none; or if the query is not finite or not of the
                shape that the items have.
        """


@runtime_checkable
class ExactSearch(Retriever[Query], Protocol, Generic[Query]):
    """A search that scores every item."""

    def log_sum_exp(self, query: Query, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """Log of the sum of exp(logit) over all items that are not hidden, in float64."""
