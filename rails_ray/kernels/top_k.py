"""The k best items of a score, exactly: select, merge, each item once.

Every retrieval method, every block of a scan and every shard of a corpus ends here, so that all agree on what an
answer is: k distinct item rows, scores descending, equal scores by the lower row. The tie rule makes a result
independent of how the corpus was cut into blocks or shards.

Axes: B queries, X items, k results, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

NO_ROW = 2**62  # beyond every item row
TILE = 128  # scores of which a GPU first looks at the best
LOW_WORD = 2**32 - 1


@dataclass(frozen=True)
class TopK:
    """The best items of each query, scores descending. A score of -inf marks a place for which no item was left."""

    scores: Float[Tensor, "B k"]
    item_rows: Int[Tensor, "B k"]

    @property
    def k(self) -> int:
        return self.scores.shape[1]

    def num_found(self) -> Int[Tensor, " B"]:
        """How many places hold an item."""
        return (self.scores > -torch.inf).sum(dim=1)


def select(scores: Float[Tensor, "B X"], k: int, item_rows: Int[Tensor, "B X"] | None = None) -> TopK:
    """The min(k, X) best columns of each row of `scores`. A score of NaN counts as -inf: no item.

    Args:
        item_rows: the item row of each column, distinct in each line; by default the column number.
    """
    k = min(k, scores.shape[1])
    if scores.is_cuda and scores.dtype == torch.float32:
        return select_by_tiles(scores, k, item_rows)
    best, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    values = _as_array(best)  # looked at by numpy, which takes a fifth of torch's time for so few
    if np.isnan(values[:, :1]).any():  # topk counts NaN as the largest, so that it shows if there is any
        scores = scores.masked_fill(scores.isnan(), -torch.inf)
        best, columns = scores.topk(best.shape[1], dim=1)
        values = _as_array(best)
    # topk chooses freely among equal items: lines that have some are put in order, and where it could have taken
    # another one for the k-th, the lower rows are taken.
    is_open = (values[:, k:] == values[:, max(k - 1, 0) : k]).any(axis=1)
    is_equal = (values[:, 1:k] == values[:, : max(k - 1, 0)]) & ~is_open[:, None]
    best, columns = best[:, :k].contiguous(), columns[:, :k].contiguous()
    found = columns if item_rows is None else item_rows.gather(1, columns)
    if is_open.any():
        lines = torch.from_numpy(is_open).to(scores.device)
        found[lines] = _lowest_rows(scores[lines], best[lines], None if item_rows is None else item_rows[lines])
    if is_equal.any():
        _put_in_order(best, found, torch.from_numpy(is_equal).to(scores.device))
    return TopK(best, found)


def _as_array(values: Float[Tensor, "B k"]) -> Float[np.ndarray, "B k"]:
    """The values as numpy has them, which knows no bfloat16."""
    found: NDArray[np.floating] = (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)
    return found


def select_by_tiles(scores: Float[Tensor, "B X"], k: int, item_rows: Int[Tensor, "B X"] | None = None) -> TopK:
    """`select` without a look at what was computed, for which a GPU would have to wait: the k best tiles by their best
    score, then the k best of what is in them. A tile that is left out has k tiles before it, each with a score that is
    higher or, if equal, of a lower row. Item rows must be below 2^32."""
    num_queries, num = scores.shape
    num_tiles = num // TILE
    if item_rows is not None or num_tiles <= 2 * k:
        rows = torch.arange(num, device=scores.device) if item_rows is None else item_rows
        return _by_keys(scores, rows, k)
    whole = scores[:, : num_tiles * TILE].unflatten(1, (num_tiles, TILE))
    highest = whole.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(dim=2)
    tiles = _by_keys(highest, torch.arange(num_tiles, device=scores.device), k).item_rows
    own = whole.gather(1, tiles[:, :, None].expand(-1, -1, TILE)).flatten(start_dim=1)
    rows = torch.add(torch.arange(TILE, device=scores.device), tiles[:, :, None], alpha=TILE).flatten(start_dim=1)
    last = torch.arange(num_tiles * TILE, num, device=scores.device).expand(num_queries, -1)
    return _by_keys(torch.cat([own, scores[:, num_tiles * TILE :]], 1), torch.cat([rows, last], 1), k)


def _by_keys(scores: Float[Tensor, "B C"], rows: Int[Tensor, "*B C"], k: int) -> TopK:
    """The k best scores, equal ones by the lower row. A score's bits and the row become one integer, so that integers
    sort as scores do, and no two are equal."""
    scores = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf) + 0.0  # which makes -0 into 0
    bits = scores.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & (2**31 - 1))
    best, columns = ((ordered.long() << 32) | (LOW_WORD - rows)).topk(k, dim=1)
    return TopK(scores.gather(1, columns), LOW_WORD - (best & LOW_WORD))


def _put_in_order(best: Float[Tensor, "B k"], found: Int[Tensor, "B k"], is_equal: Bool[Tensor, "B _"]) -> None:
    """Put the rows of equal scores in order, in place.

    Args:
        is_equal: whether a place has the score of the next one; nowhere in lines that are in order.
    """
    is_long = (is_equal[:, 1:] & is_equal[:, :-1]).any(dim=1)  # three scores in a row are equal
    if is_long.any():
        found[is_long] = _by_score(best[is_long], found[is_long])
    line, place = (is_equal & ~is_long[:, None] & (found[:, 1:] < found[:, :-1])).nonzero(as_tuple=True)
    found[line, place], found[line, place + 1] = found[line, place + 1], found[line, place]


def _lowest_rows(
    scores: Float[Tensor, "L X"], best: Float[Tensor, "L k"], item_rows: Int[Tensor, "L X"] | None
) -> Int[Tensor, "L k"]:
    """The item rows of the `best` scores; of the items that score as the k-th does, the lowest rows. It sorts no line
    of X scores where the columns are the rows."""
    if item_rows is not None:
        item_rows, order = item_rows.sort(dim=1)
        scores = scores.gather(1, order)
    last = best[:, -1:]
    is_better, is_equal = scores > last, scores == last
    num_open = best.shape[1] - is_better.sum(dim=1, keepdim=True)
    is_taken = is_better | (is_equal & (is_equal.cumsum(dim=1, dtype=torch.int32) <= num_open))
    columns = is_taken.nonzero()[:, 1].view_as(best)
    return _by_score(scores.gather(1, columns), columns if item_rows is None else item_rows.gather(1, columns))


def _by_score(scores: Float[Tensor, "L k"], item_rows: Int[Tensor, "L k"]) -> Int[Tensor, "L k"]:
    """Item rows by descending scores, equal scores by the lower row."""
    item_rows, order = item_rows.sort(dim=1)
    order = scores.gather(1, order).sort(dim=1, descending=True, stable=True).indices
    return item_rows.gather(1, order)


def merge(parts: Sequence[TopK], k: int) -> TopK:
    """The k best of several results over disjoint items (blocks of a scan, shards of a corpus)."""
    scores = torch.cat([part.scores for part in parts], dim=1)
    return select(scores, k, torch.cat([part.item_rows for part in parts], dim=1))


def merge_in_row_order(parts: Sequence[TopK], k: int) -> TopK:
    """Merge results in which equal scores stand by the lower row, within each result and from one to the next, as in
    shards. It takes less time than `merge` if there are at most some 2 k items."""
    scores = torch.cat([part.scores for part in parts], dim=1)
    item_rows = torch.cat([part.item_rows for part in parts], dim=1)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return TopK(scores[:, :k], item_rows.gather(1, order[:, :k]))


def distinct(
    item_rows: Int[Tensor, "B C"], is_there: Bool[Tensor, "B C"]
) -> tuple[Int[Tensor, "B _"], Bool[Tensor, "B _"]]:
    """Each line's distinct item rows, ascending, and which places hold one. The longest line fills its places."""
    rows = item_rows.masked_fill(~is_there, NO_ROW).sort(dim=1).values
    is_again = torch.zeros_like(is_there)
    is_again[:, 1:] = rows[:, 1:] == rows[:, :-1]
    rows = rows.masked_fill(is_again, NO_ROW).sort(dim=1).values
    is_there = rows < NO_ROW
    longest = int(is_there.sum(dim=1).max()) if len(rows) else rows.shape[1]
    rows, is_there = rows[:, :longest], is_there[:, :longest]
    return rows.masked_fill(~is_there, 0), is_there
