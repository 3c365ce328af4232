"""Queries by split with the items that answer them, from tables: what data sets of any kind of query share.

    queries.parquet     query_id (integer or string, distinct), split ("train", "valid" or "test"), and what is asked
    relevance.parquet   query_id, item_id: this item answers this query

Queries that no item answers are left out. If no query is of split "valid", every tenth one of "train" is.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.dataset import SPLITS, Inputs, ItemLists, Queries
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import ID, check_distinct, read_table, rows_of

HELD_OUT = 10  # one training query in so many is for validation, if a data set has no such queries


def by_split(
    storage: Storage, queries: pa.Table, items: pa.Table, inputs_of: Callable[[NDArray[np.int64]], Inputs]
) -> dict[str, Queries]:
    """The queries of each split, with the relevance that is read from the folder.

    Args:
        queries: query_id and split.
        items: item_id, distinct.
        inputs_of: gives what some rows of `queries` ask.

    Raises:
        NotFoundError: if there is no table of relevance.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    split_of, relevant = _splits(storage, queries), _relevant(storage, queries, items)
    found = {}
    for split in SPLITS:
        chosen = np.flatnonzero((split_of == split) & (relevant.lengths > 0))
        if not len(chosen):
            raise ValueError(f"{storage} must hold a query with a relevant item in split {split!r}, got none")
        found[split] = Queries(inputs_of(chosen), relevant.take(chosen))
    return found


def _splits(storage: Storage, queries: pa.Table) -> NDArray[np.object_]:
    split_of = np.array(queries["split"].to_pylist(), dtype=object)
    wrong = np.flatnonzero(~np.isin(split_of, SPLITS))
    if len(wrong):
        raise ValueError(
            f"column 'split' of {storage}/queries.parquet must be one of {', '.join(SPLITS)}, "
            f"got {split_of[wrong[0]]!r} in row {wrong[0]}"
        )
    if "valid" not in split_of:
        split_of[np.flatnonzero(split_of == "train")[HELD_OUT - 1 :: HELD_OUT]] = "valid"
    return split_of


def _relevant(storage: Storage, queries: pa.Table, items: pa.Table) -> ItemLists:
    """The items that answer each query, each once and in their order."""
    relevance = read_table(storage, "relevance.parquet", {"query_id": ID, "item_id": ID})
    file, query_file, item_file = (f"{storage}/{name}.parquet" for name in ("relevance", "queries", "items"))
    check_distinct(queries["query_id"], "query_id", query_file)
    pairs = np.stack(
        [
            rows_of(relevance["query_id"], queries["query_id"], "query_id", file, query_file),
            rows_of(relevance["item_id"], items["item_id"], "item_id", file, item_file),
        ]
    )
    pairs = np.unique(pairs, axis=1)  # by query, then by item
    starts = np.concatenate([[0], np.cumsum(np.bincount(pairs[0], minlength=queries.num_rows))])
    return ItemLists(starts, pairs[1])
