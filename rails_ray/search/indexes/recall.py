"""Recall of an index against a scan of its vectors, by a sample of them as queries.

    recall = mean over queries of the share of the k found items that score at least what the k-th best scores

Axes: Q queries of the sample, X items, d width of a vector.
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.search.indexes import VectorIndex
from rails_ray.search.scan import Scan
from rails_ray.search.spec import SearchSpec

K = 10
NUM_QUERIES = 256
ROUNDING = 1e-5  # between two ways to compute a score, of its size


def sampled_recall(
    index: VectorIndex, blocks: Callable[[], Iterable[Float[Tensor, "_ d"]]], num_items: int
) -> float | None:
    """The recall of the ten best, with default search parameters; None without an item.

    Args:
        blocks: gives the vectors of all items in the order of their rows, each time that it is called.
    """
    if not num_items:
        return None
    rows = torch.linspace(0, num_items - 1, min(NUM_QUERIES, num_items)).long()
    queries = torch.cat([block[rows[_is_in(rows, first, block)] - first] for first, block in _numbered(blocks)]).float()
    found = index.search(queries, SearchSpec(K))
    scores, exact = torch.full_like(found.scores, -torch.inf), Scan(SearchSpec(K))
    for first, block in _numbered(blocks):
        of_block = queries @ block.float().T
        line, place = ((found.scores > -torch.inf) & _is_in(found.item_rows, first, block)).nonzero(as_tuple=True)
        scores[line, place] = of_block[line, found.item_rows[line, place] - first]
        exact.add(first, of_block)
    num = torch.full((len(queries),), num_items)
    best = exact.found(num, num).scores
    is_good = scores >= (best[:, -1:] - ROUNDING * best[:, :1].abs())
    return float(is_good.sum() / best.numel())


def _is_in(rows: Int[Tensor, "*R"], first: int, block: Float[Tensor, "_ d"]) -> Bool[Tensor, "*R"]:
    return (rows >= first) & (rows < first + len(block))


def _numbered(blocks: Callable[[], Iterable[Float[Tensor, "_ d"]]]) -> Iterable[tuple[int, Float[Tensor, "_ d"]]]:
    """(First row, vectors) of each block."""
    first = 0
    for block in blocks():
        yield first, block
        first += len(block)
