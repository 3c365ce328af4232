"""Parts of a data set: what is looked at, timed or asked where all of it would take too long.

Axes: X items, Q queries.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import SPLITS, Queries
from rails_ray.storage.ids import ItemIds

SEED = 0  # the same data are looked at in the same rows


def rows(num_rows: int, most: int, seed: int = SEED) -> NDArray[np.int64]:
    """Some of so many rows in ascending order, or all if there are no more than `most`."""
    if num_rows <= most:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(seed).choice(num_rows, most, replace=False, shuffle=False))


def taken(queries: Queries, most: int) -> Queries:
    """At most so many queries."""
    if len(queries) <= most:
        return queries
    return queries.take(rows(len(queries), most))


def part(read: DataSet, num_items: int, num_queries: int) -> DataSet:
    """At most so many queries of each split, and the whole corpus if it has at most `num_items` items; otherwise what
    answers these queries, filled up with other items to that number.

    Not for histories: they hold items themselves, and would lose some.
    """
    queries = {split: taken(read.queries[split], num_queries) for split in SPLITS}
    if len(read.item_ids) <= num_items:
        return DataSet(read.item_ids, read.item_inputs, queries)
    is_kept = np.zeros(len(read.item_ids), dtype=bool)
    for own in queries.values():
        is_kept[own.relevant.rows] = True
    others = np.flatnonzero(~is_kept)
    is_kept[others[rows(len(others), max(num_items - int(is_kept.sum()), 0))]] = True
    kept, row_of = np.flatnonzero(is_kept), np.cumsum(is_kept) - 1
    smaller = {split: Queries(own.inputs, own.relevant.renamed(row_of)) for split, own in queries.items()}
    return DataSet(ItemIds(read.item_ids.take(kept)), _inputs(read.item_inputs, kept), smaller)


def _inputs(inputs: Any, kept: NDArray[np.int64]) -> Any:
    """Texts or vectors of some items; where a model reads the item's row, its row among them."""
    return np.arange(len(kept)) if isinstance(inputs, np.ndarray) else inputs.take(kept)
