"""Items whose vectors are zeros. They have no direction, so no cosine: they come last, below every cosine.

Every method searches the other items, and what it leaves room for is filled up with these. So an index may hold them
anywhere, and a list that is full without them is as it would be without them in the corpus.

Axes: B queries, X items, P_X components, d width of a component, Z items without a direction.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.top_k import select
from rails_ray.search.spec import SearchResult, SearchSpec

NO_COSINE = float(np.nextafter(np.float32(-1), np.float32(-2)))  # the score below that of an opposite item


def zero_rows(components: Float[Tensor, "X P_X d"]) -> Int[Tensor, " Z"]:
    """Rows of the items all of whose components are zeros, ascending."""
    return (~components.flatten(start_dim=1).any(dim=1)).nonzero()[:, 0]


def with_zeros_last(
    found: SearchResult, spec: SearchSpec, zeros: Sequence[int], excluded: Sequence[Sequence[int]]
) -> SearchResult:
    """Fill lists up with items without a direction, the lower rows first.

    Args:
        found: what a search for `spec` has found among the other items, scores at least -1, in the host's memory.
        zeros: rows of the items without a direction, ascending.
        excluded: rows that the answer to each query may not hold.
    """
    num_found = found.num_found()
    is_open = torch.ones_like(found.is_truncated) if spec.threshold is None else spec.threshold.cpu() <= NO_COSINE
    room = (torch.where(is_open, spec.k, spec.at_least) - num_found).clamp(min=0).tolist()
    hidden = [set(own) for own in excluded]
    lines = [list(islice((row for row in zeros if row not in own), num)) for own, num in zip(hidden, room, strict=True)]
    rows = torch.zeros(len(lines), max(map(len, lines), default=0), dtype=torch.int64)
    scores = torch.full(rows.shape, -torch.inf)
    for number, line in enumerate(lines):
        rows[number, : len(line)] = torch.tensor(line)
        scores[number, : len(line)] = NO_COSINE
    longest = int((num_found + torch.tensor([len(line) for line in lines])).max())
    best = select(
        torch.cat([found.scores, scores.to(found.scores.dtype)], dim=1),
        max(longest, found.k),
        torch.cat([found.item_rows, rows], dim=1),
    )
    every = frozenset(zeros)
    num_zeros = torch.tensor([len(every) - len(own & every) for own in hidden])
    return replace(
        found,
        scores=best.scores,
        item_rows=best.item_rows.masked_fill(best.scores == -torch.inf, 0),
        is_truncated=found.is_truncated | (is_open & (num_found + num_zeros > spec.k)),
    )
