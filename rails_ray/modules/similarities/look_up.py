"""Look-ups: a table per query says what each part of an item's code is worth.

    score(q, x) = sum_k T_q[k, code_k(x)]

SOLAR's tables hold the probabilities of buckets divided by the number of chunks, so that a score lies in [0, 1]: it is
the mean probability of an item's buckets.

Source: SOLAR, Section 3.3.
Differs from the source: the mean where the paper sums; the order is equal.

Axes: B queries, X items, C candidates, K chunks.
"""

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.kernels import lookup_scan
from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import Codes, Tables


@dataclass(frozen=True, kw_only=True)
class LookUpConfig:
    """A sum of look-ups.

    Args:
        values: what the tables hold: each bucket's `probability`, or its `logit`, by which a bucket that the model
            excludes counts against an item. Scores made of logits have no fixed range.
    """

    kind: Literal["look_up"] = "look_up"
    values: Literal["probability", "logit"] = "probability"

    def __post_init__(self) -> None:
        if self.values not in get_args(get_type_hints(LookUpConfig)["values"]):
            raise ValueError(f"values must be probability or logit, got {self.values!r}")


class LookUp(nn.Module):
    """The sum of look-ups as a similarity of queries with tables and items with codes. It learns nothing.

    Args:
        num_buckets: entries of a table for each chunk.
    """

    num_components = (1, 1)
    has_bounded_vectors = False

    def __init__(self, num_buckets: int) -> None:
        super().__init__()
        self.num_buckets = num_buckets

    def forward(self, query: Tables, items: Codes) -> Scored:
        return Scored(self.scores(query, items), None)

    @torch.no_grad()
    def scores(self, query: Tables, items: Codes, floor: Float[Tensor, " B"] | None = None) -> Float[Tensor, "B X"]:
        """The contract of `Similarity`; no item is passed over, as a look-up costs less than such a check.

        Raises:
            ValueError: if a code points outside the tables, or does not have one part for each table.
        """
        num_parts, num_entries = query.tables.shape[1:]
        if items.codes.shape[-1] != num_parts:
            raise ValueError(f"codes must have the {num_parts} parts of the tables, got {items.codes.shape[-1]}")
        if items.codes.numel():
            least, most = (int(end) for end in items.codes.aminmax())
            if least < 0 or most >= num_entries:
                wrong = least if least < 0 else most
                raise ValueError(
                    f"codes must be at least 0 and below the {num_entries} entries of a table, got {wrong}"
                )
        return lookup_scan.scores(query.tables, items.codes)
