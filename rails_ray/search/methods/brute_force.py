"""Score every item, in blocks: the exact scan, and the answer that every other method is measured against.

The item's side (components and gate) is computed once per index. With `prune`, items whose largest cosine does not
reach the k-th best score so far, or the threshold, are passed over without a gate, which changes no answer.

    log_sum_exp(q) = log sum_x exp(logit(score(q, x), tau_q))

Source: RAILS, Section 3 (brute force); pEBR, Section 2.4: the denominator of the training loss, over the corpus.

Axes: B queries, X items.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import ItemState, QueryState, Searched, take
from rails_ray.search.certificates import rounding_slack
from rails_ray.search.checks import check_items, check_query
from rails_ray.search.masks import Mask
from rails_ray.search.scan import Scan
from rails_ray.search.spec import SearchResult, SearchSpec, joined
from rails_ray.stopwatch import part

BLOCK_SCORES = 2**19  # scores of a block of a normaliser: 2 MB
BLOCK_ITEMS = 2**14  # between two looks at the k-th best, however many queries there are: `num_scored` depends on it
GPU_BLOCK_ITEMS = 2**16  # a look interrupts a GPU
BLOCK_QUERIES = 2**10  # of a scan, whose blocks then take 64 MB at most


class BruteForce:
    """Exact search with any similarity."""

    is_exact = True

    def __init__(self, similarity: Scorer, items: Searched, *, prune: bool = True) -> None:
        check_items(similarity, items)
        self.similarity = similarity
        self.items = items
        self.prune = prune
        self.slack = rounding_slack(math.prod(similarity.num_components), items.width, items.dtype)

    def scores(self, query: QueryState) -> Float[Tensor, "B X"]:
        """The scores of all items; for evaluation, where a batch of queries is small."""
        return self.similarity.scores(query, self.items.taken(slice(None)))

    @part("score")
    def search(self, query: QueryState, spec: SearchSpec, floor: Float[Tensor, " B"] | None = None) -> SearchResult:
        """The contract of `Retriever`.

        Args:
            floor: a score below which the answer is known to need no item.
        """
        check_query(query, self.similarity, self.items)
        spec.check_queries(len(query))
        if len(query) <= BLOCK_QUERIES:
            return self._search(query, spec, floor)
        parts = []
        for lines in torch.arange(len(query), device=query.components.device).split(BLOCK_QUERIES):
            own = None if floor is None else floor[lines]
            parts.append(self._search(take(query, lines), spec.of_queries(lines), own))
        return joined(parts)

    def _search(self, query: QueryState, spec: SearchSpec, floor: Float[Tensor, " B"] | None) -> SearchResult:
        running, device = Scan(spec), query.components.device
        num_scored = torch.zeros(len(query), dtype=torch.int64, device=device)
        for first, items in self.blocks(BLOCK_ITEMS if device.type == "cpu" else GPU_BLOCK_ITEMS):
            scores = self.similarity.scores(query, items, self._least(floor, running))
            num_scored += (scores > -torch.inf).sum(dim=1)
            running.add(first, scores)
        return running.found(num_scored, spec.num_left(len(query), len(self.items), device))

    def log_sum_exp(self, query: QueryState, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """Log of the sum of exp(logit) over all items that are not hidden, added up in float64. The log-sum-exp of
        several shards' values is the value of their corpus."""
        check_query(query, self.similarity, self.items)
        blocks = self.blocks(BLOCK_SCORES // max(len(query), 1))
        scored = ((first, self.similarity.scores(query, items)) for first, items in blocks)
        return log_sum_exp(scored, query.temperature, logit, mask)

    def blocks(self, most: int) -> Iterator[tuple[int, ItemState]]:
        """(First row, items) of each block of at most so many."""
        size = max(min(most, self.items.most_at_once), 1)
        for first in range(0, len(self.items), size):
            yield first, self.items.taken(slice(first, first + size))

    def _least(self, floor: Float[Tensor, " B"] | None, running: Scan) -> Float[Tensor, " B"] | None:
        """Return what a largest cosine must reach for its item to be scored."""
        reached = running.floor if self.prune else None
        if floor is not None:
            reached = floor if reached is None else torch.maximum(floor, reached)
        return None if reached is None else reached - self.slack


def log_sum_exp(
    blocks: Iterable[tuple[int, Float[Tensor, "B _"]]],
    temperature: Float[Tensor, " B"],
    logit: ScoreLogit,
    mask: Mask | None = None,
) -> Float[Tensor, " B"]:
    """Compute it from consecutive blocks of items: (first item row, scores) of each."""
    total = torch.full_like(temperature, -torch.inf, dtype=torch.float64)
    for first, scores in blocks:
        logits = logit(scores, temperature).double()
        if mask is not None:
            logits = mask.hide(logits, first)
        total = torch.logaddexp(total, _of_block(logits))
    return total


def _of_block(logits: Float[Tensor, "B _"]) -> Float[Tensor, " B"]:
    """The log-sum-exp of a block, in which an item whose score is NaN counts as none."""
    if logits.is_cpu:  # a GPU would have to be waited for
        found = logits.logsumexp(dim=1)
        if not found.isnan().any():
            return found
    return logits.masked_fill(logits.isnan(), -torch.inf).logsumexp(dim=1)
