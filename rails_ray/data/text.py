"""A text data set: three Parquet tables in one folder.

    items.parquet       item_id (integer or string, distinct), text (string), title (string; may be left out)
    queries.parquet     query_id (integer or string, distinct), text (string), split ("train", "valid" or "test")
    relevance.parquet   query_id, item_id: this item answers this query

Further columns are ignored. The position of an item in items.parquet is its item row. A title is read before the text.
Queries that no item answers are left out. Where no query is of split "valid", every tenth one of "train" is.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.dataset import SPLITS, DataSet, ItemLists, Queries
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import ID, TEXT, check_distinct, read_table, rows_of

HELD_OUT = 10  # one training query in so many becomes one of validation, where a data set has none


def read(storage: Storage) -> DataSet:
    """Read and check the three tables in a folder.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    items = read_items(storage)
    queries = read_table(storage, "queries.parquet", {"query_id": ID, "text": TEXT, "split": TEXT})
    relevance = read_table(storage, "relevance.parquet", {"query_id": ID, "item_id": ID})
    check_distinct(queries["query_id"], "query_id", f"{storage}/queries.parquet")
    file = f"{storage}/relevance.parquet"
    pairs = np.stack(
        [
            rows_of(relevance["query_id"], queries["query_id"], "query_id", file, f"{storage}/queries.parquet"),
            rows_of(relevance["item_id"], items["item_id"], "item_id", file, f"{storage}/items.parquet"),
        ]
    )
    split_of = _splits(queries["split"], f"{storage}/queries.parquet")
    return DataSet(
        items["item_id"].to_pylist(),
        item_texts(items).to_pylist(),
        _by_split(queries["text"].to_pylist(), split_of, pairs, str(storage)),
        titles=items["title"].to_pylist() if "title" in items.column_names else None,
    )


def read_items(storage: Storage) -> pa.Table:
    """The table of items alone, checked."""
    file = "items.parquet"
    items = read_table(storage, file, {"item_id": ID, "text": TEXT}, optional={"title": TEXT})
    check_distinct(items["item_id"], "item_id", f"{storage}/{file}")
    return items


def item_texts(items: pa.Table) -> pa.ChunkedArray:
    """What the item encoder reads of each item."""
    if "title" not in items.column_names:
        return items["text"]
    kind = pa.large_string()  # all three must be of one type
    return pc.binary_join_element_wise(items["title"].cast(kind), items["text"].cast(kind), pa.scalar("\n", kind))


def _splits(column: pa.ChunkedArray, file: str) -> NDArray[np.object_]:
    split_of = np.array(column.to_pylist(), dtype=object)
    wrong = np.flatnonzero(~np.isin(split_of, SPLITS))
    if len(wrong):
        raise ValueError(
            f"column 'split' of {file} must be one of {', '.join(SPLITS)}, got {split_of[wrong[0]]!r} in row {wrong[0]}"
        )
    if "valid" not in split_of:
        split_of[np.flatnonzero(split_of == "train")[HELD_OUT - 1 :: HELD_OUT]] = "valid"
    return split_of


def _by_split(
    texts: list[str], split_of: NDArray[np.object_], pairs: NDArray[np.int64], source: str
) -> dict[str, Queries]:
    """The queries of each split, from (query row, item row) of all relevant pairs."""
    pairs = np.unique(pairs, axis=1)  # by query, then by item
    starts = np.concatenate([[0], np.cumsum(np.bincount(pairs[0], minlength=len(texts)))])
    relevant = ItemLists(starts, pairs[1])
    by_split = {}
    for split in SPLITS:
        chosen = np.flatnonzero((split_of == split) & (relevant.lengths > 0))
        if not len(chosen):
            raise ValueError(f"{source} must hold a query with a relevant item in split {split!r}, got none")
        by_split[split] = Queries([texts[query] for query in chosen], relevant.take(chosen))
    return by_split
