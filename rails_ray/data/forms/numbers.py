"""A data set whose queries are numbers: three Parquet tables in one folder.

    items.parquet       item_id (integer or string, distinct), title or text (string; may be left out)
    queries.parquet     query_id (integer or string, distinct), split ("train", "valid" or "test"), and for each query
                        either feature_indices (list of integers) and feature_values (list of numbers, as many),
                        or vector (list of numbers, of one length)
    relevance.parquet   query_id, item_id: this item answers this query

Further columns are ignored. The position of an item in items.parquet is its item row, and all that a model reads of
it; the title, or else the text, is for people. The indices of a query are distinct, from 0 on; a feature that it does
not name is 0. Splits are as in `rails_ray.data.relevance`.

Axes: Q queries, D width of a vector, M features of all queries together.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet, DenseRows, SparseRows
from rails_ray.data.relevance import by_split
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import ID, INTEGERS, NUMBERS, TEXT, check_distinct, read_table

MOST_FEATURES = 2**24  # each has a row of weights in every chunk, 2 KB for a hidden layer of 512
TABLES = "items.parquet, queries.parquet and relevance.parquet"
QUERY_COLUMNS = {"feature_indices": INTEGERS, "feature_values": NUMBERS, "vector": NUMBERS}


def read(storage: Storage) -> DataSet:
    """Read and check the three tables in a folder.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    items, file = read_items(storage), f"{storage}/queries.parquet"
    queries = read_table(storage, "queries.parquet", {"query_id": ID, "split": TEXT}, optional=QUERY_COLUMNS)
    forms = [name for name in queries.column_names if name in QUERY_COLUMNS]
    if forms == ["vector"]:
        vectors = _vectors(queries["vector"], file)
        split = by_split(storage, queries, items, vectors.take)
    elif forms == ["feature_indices", "feature_values"]:
        sparse = _sparse_rows(queries, file)
        split = by_split(storage, queries, items, sparse.take)
    else:
        raise ValueError(
            f"{file} must have either columns 'feature_indices' and 'feature_values' or a column 'vector', "
            f"got {' and '.join(map(repr, forms)) or 'none of them'}"
        )
    return DataSet(
        items["item_id"].to_pylist(),
        np.arange(items.num_rows),
        split,
        titles=items["title"].to_pylist() if "title" in items.column_names else None,
    )


def read_items(storage: Storage) -> pa.Table:
    """The table of items alone, checked: item_id, and title if there is something to show."""
    items = read_table(storage, "items.parquet", {"item_id": ID}, optional={"title": TEXT, "text": TEXT})
    check_distinct(items["item_id"], "item_id", f"{storage}/items.parquet")
    if "title" in items.column_names:
        return items.select(["item_id", "title"])
    return items.rename_columns(["title" if name == "text" else name for name in items.column_names])


def corpus(storage: Storage, query: dict[str, str]) -> Corpus:
    """The items to encode.

    Args:
        query: as in `Corpus`.
    """
    items = read_items(storage)
    titles = items["title"] if "title" in items.column_names else None
    return Corpus.of(items["item_id"], np.arange(items.num_rows), titles, query)


def _vectors(column: pa.ChunkedArray, file: str) -> DenseRows:
    starts, values = _parts(column)
    lengths = np.diff(starts)
    if not lengths[0]:
        raise ValueError(f"column 'vector' of {file} must hold at least 1 number, got none in row 0")
    wrong = np.flatnonzero(lengths != lengths[0])
    if len(wrong):
        raise ValueError(
            f"column 'vector' of {file} must hold {lengths[0]} numbers in every row as in row 0, "
            f"got {lengths[wrong[0]]} in row {wrong[0]}"
        )
    return DenseRows(_finite(starts, values, "vector", file).reshape(len(lengths), -1))


def _sparse_rows(queries: pa.Table, file: str) -> SparseRows:
    (starts, indices), (value_starts, values) = (
        _parts(queries[name]) for name in ("feature_indices", "feature_values")
    )
    lengths, value_lengths = np.diff(starts), np.diff(value_starts)
    wrong = np.flatnonzero(lengths != value_lengths)
    if len(wrong):
        raise ValueError(
            f"column 'feature_values' of {file} must hold as many numbers as 'feature_indices' in every row, "
            f"got {value_lengths[wrong[0]]} and {lengths[wrong[0]]} in row {wrong[0]}"
        )
    numbers = _finite(starts, values, "feature_values", file)
    _check_indices(starts, indices, file)
    rows = indices.to_numpy().astype(np.int64)
    return SparseRows(starts, rows, numbers, int(rows.max(initial=-1)) + 1)


def _check_indices(starts: NDArray[np.int64], indices: pa.Array, file: str) -> None:
    column = f"column 'feature_indices' of {file}"
    _check_no_null(starts, indices, "feature_indices", file)
    numbers = indices.to_numpy()
    negative = np.flatnonzero(numbers < 0)
    if len(negative):
        row = _row_of(starts, negative[0])
        raise ValueError(f"{column} must hold integers of at least 0, got {numbers[negative[0]]} in row {row}")
    too_large = np.flatnonzero(numbers >= MOST_FEATURES)
    if len(too_large):
        row = _row_of(starts, too_large[0])
        raise ValueError(
            f"{column} must hold integers below {MOST_FEATURES}, got {numbers[too_large[0]]} in row {row}: "
            "number the features from 0"
        )
    queries = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((numbers, queries))
    is_repeated = (np.diff(queries[order]) == 0) & (np.diff(numbers[order]) == 0)
    if is_repeated.any():
        place = order[np.argmax(is_repeated)]
        raise ValueError(
            f"{column} must hold distinct integers in every row, got {numbers[place]} twice in row {queries[place]}"
        )


def _finite(starts: NDArray[np.int64], values: pa.Array, name: str, file: str) -> NDArray[np.float32]:
    """The numbers of a column, in float32."""
    _check_no_null(starts, values, name, file)
    numbers = values.to_numpy()
    with np.errstate(over="ignore"):
        narrow: NDArray[np.float32] = numbers.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(narrow))
    if len(wrong):
        raise ValueError(
            f"column {name!r} of {file} must hold numbers that are finite in float32, "
            f"got {numbers[wrong[0]]} in row {_row_of(starts, wrong[0])}"
        )
    return narrow


def _check_no_null(starts: NDArray[np.int64], numbers: pa.Array, name: str, file: str) -> None:
    if numbers.null_count:
        place = np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))[0]
        raise ValueError(f"column {name!r} of {file} must hold numbers, got null in row {_row_of(starts, place)}")


def _parts(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Where the list of each row begins, and what all lists hold."""
    lengths = pc.list_value_length(column).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pc.list_flatten(column).combine_chunks()


def _row_of(starts: NDArray[np.int64], place: np.int64) -> int:
    return int(np.searchsorted(starts, place, side="right")) - 1
