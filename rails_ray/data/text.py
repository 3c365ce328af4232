"""A text data set: three Parquet tables in one folder.

    items.parquet       item_id (integer or string, distinct), text (string)
    queries.parquet     query_id (integer or string, distinct), text (string), split ("train", "valid" or "test")
    relevance.parquet   query_id, item_id: this item answers this query

Further columns are ignored. The position of an item in items.parquet is its item row. Queries that no item answers
are left out.

Axes: Q queries of a split, M relevant pairs.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import read_table

SPLITS = ("train", "valid", "test")
ID = ("integer", "string")
TEXT = ("string",)


@dataclass(frozen=True)
class Queries:
    """Queries of one split; query i is answered by item rows relevant_rows[starts[i] : starts[i + 1]], ascending."""

    texts: list[str]
    starts: NDArray[np.int64]
    relevant_rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)

    def relevant(self, query: int) -> NDArray[np.int64]:
        return self.relevant_rows[self.starts[query] : self.starts[query + 1]]

    def head(self, num_queries: int) -> "Queries":
        """The first queries."""
        starts = self.starts[: num_queries + 1]
        return Queries(self.texts[:num_queries], starts, self.relevant_rows[: starts[-1]])


@dataclass(frozen=True)
class TextData:
    """A corpus of texts and the queries of each split."""

    item_ids: list[str] | list[int]
    item_texts: list[str]
    queries: dict[str, Queries]


def read(storage: Storage, folder: str) -> TextData:
    """Read and check the three tables.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and value.
    """
    items = read_table(storage, f"{folder}/items.parquet", {"item_id": ID, "text": TEXT})
    queries = read_table(storage, f"{folder}/queries.parquet", {"query_id": ID, "text": TEXT, "split": TEXT})
    relevance = read_table(storage, f"{folder}/relevance.parquet", {"query_id": ID, "item_id": ID})
    return assemble(items, queries, relevance, folder)


def assemble(items: pa.Table, queries: pa.Table, relevance: pa.Table, source: str) -> TextData:
    """The data set of three tables that have the contract's columns.

    Args:
        source: where they came from, for messages.
    """
    _check_distinct(items["item_id"], f"{source}/items.parquet")
    _check_distinct(queries["query_id"], f"{source}/queries.parquet")
    for split in pc.unique(queries["split"]).to_pylist():
        if split not in SPLITS:
            raise ValueError(f"split in {source}/queries.parquet must be one of {', '.join(SPLITS)}, got {split!r}")
    item_rows = _rows_of(relevance["item_id"], items["item_id"], "item_id", source)
    query_rows = _rows_of(relevance["query_id"], queries["query_id"], "query_id", source)

    order = np.lexsort((item_rows, query_rows))
    pairs = np.unique(np.stack([query_rows[order], item_rows[order]]), axis=1)
    counts = np.bincount(pairs[0], minlength=queries.num_rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    split_of = np.array(queries["split"].to_pylist())
    texts = queries["text"].to_pylist()
    by_split = {}
    for split in SPLITS:
        chosen = np.flatnonzero((split_of == split) & (counts > 0))
        by_split[split] = Queries(
            texts=[texts[query] for query in chosen],
            starts=np.concatenate([[0], np.cumsum(counts[chosen])]),
            relevant_rows=np.concatenate(
                [pairs[1][starts[query] : starts[query + 1]] for query in chosen] or [np.empty(0, dtype=np.int64)]
            ),
        )
        if not len(chosen):
            raise ValueError(f"{source} must hold a query with a relevant item in split {split!r}, got none")
    return TextData(items["item_id"].to_pylist(), items["text"].to_pylist(), by_split)


def _check_distinct(ids: pa.ChunkedArray, file: str) -> None:
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise ValueError(f"ids in {file} must be distinct, got {repeated[0]['values'].as_py()!r} more than once")


def _rows_of(ids: pa.ChunkedArray, known: pa.ChunkedArray, column: str, source: str) -> NDArray[np.int64]:
    """The position in `known` of each id."""
    if ids.type != known.type:
        other = "items" if column == "item_id" else "queries"
        raise ValueError(
            f"{column} in {source}/relevance.parquet must be of type {known.type} as in {other}.parquet, got {ids.type}"
        )
    rows = pc.index_in(ids, value_set=known)
    if rows.null_count:
        unknown = ids.filter(pc.is_null(rows))[0].as_py()
        other = "items" if column == "item_id" else "queries"
        raise ValueError(f"{column} in {source}/relevance.parquet must be in {other}.parquet, got {unknown!r}")
    positions: NDArray[np.int64] = rows.to_numpy().astype(np.int64)
    return positions
