"""A data set whose queries are numbers, and whose items may be.

    items       item_id (integer or string, distinct), title or text (string; may be left out), and where a model reads
                vectors of items, a column of vectors or several
    queries     query_id (integer or string, distinct), split ("train", "valid" or "test"), and for each query
                either feature_indices (list of integers) and feature_values (list of numbers, as many),
                or vector (list of numbers, of one length)
    relevance   query_id, item_id: this item answers this query

Further columns of items may be attributes; others are named in a note. The position of an item in its table is its item
row, and all that some models read of it; the title, or else the text, is for people. An item may have several vectors
of one width: a list of lists, or several columns. The indices of a query are distinct, from 0 on; a feature that it
does not name is 0. Splits are as in `rails_ray.data.relevance`.

Axes: X items, Q queries, P vectors of an item, D width of a vector, M features of all queries together.
"""

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus, ItemFiles
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import SPLITS, DenseRows, Inputs, Queries, SparseRows
from rails_ray.data.relevance import are_to_be_read, by_split, no_queries
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import (
    VectorShape,
    as_column,
    check_directions,
    check_numbers,
    finite,
    mapped,
    row_of,
    vectors_of,
    zero_rows,
)
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.parquet_files import RowBatch
from rails_ray.storage.rows import Rows, check_distinct
from rails_ray.storage.tables import Table
from rails_ray.storage.values import FILLED_TEXT, ID, INTEGERS, NO_COLUMNS, NUMBERS, TEXT, VECTOR, Columns, Kind

MOST_FEATURES = 2**24  # each has a row of weights in every chunk, 2 KB for a hidden layer of 512
TABLES = "items, queries and relevance"
QUERY_COLUMNS = ("feature_indices", "feature_values", "vector")


def read(sources: Sources, vector_columns: Sequence[str] = (), needed: Collection[str] = SPLITS) -> DataSet:
    """Read and check the three tables.

    Args:
        vector_columns: columns with the vectors of items, if the model reads any.
        needed: as in `QueryForm.read`. Without queries no vector is read: inputs of items and queries are empty.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    items = item_files(sources, (), without=vector_columns).read()
    check_distinct(items, "item_id")
    item_ids, titles = ItemIds(items["item_id"]), Texts(items["title"]) if "title" in items else None
    if vector_columns and not are_to_be_read(sources, needed):
        shape = _together(_shapes(sources.open("items", vector_columns), vector_columns))
        none = np.empty((0, *shape), dtype=np.float32)
        return DataSet(item_ids, DenseRows(none), no_queries(DenseRows(none.reshape(0, shape[-1]))), titles=titles)
    table = sources.open("items", vector_columns)
    inputs = DenseRows(mapped_vectors(table, vector_columns)) if vector_columns else np.arange(len(items))
    are_compared = bool(vector_columns)  # by their cosines; chunks of SOLAR read vectors of queries as they are
    if isinstance(inputs, DenseRows):
        check_compared(sources, "items", items["item_id"], inputs)
    return DataSet(item_ids, inputs, _asked(sources, items, needed, are_compared), titles=titles)


def check_compared(sources: Sources, name: str, ids: pa.ChunkedArray, vectors: DenseRows) -> None:
    """Check vectors that are compared by their cosines.

    Args:
        name: of their table.

    Raises:
        ValueError: if one is zero, and the sources refuse that.
    """
    if sources.refuses_zeros:
        zeros = zero_rows(vectors.values)
        first = ids[int(zeros[0])].as_py() if len(zeros) else None
        check_directions(name, len(zeros), len(ids), first)


def _asked(sources: Sources, items: Rows, needed: Collection[str], are_compared: bool) -> dict[str, Queries]:
    table = sources.open("queries", ("query_id", "split", *QUERY_COLUMNS))
    queries = table.read({"query_id": ID, "split": TEXT})
    check_one_form(table)
    inputs: Inputs
    if "vector" in table:
        inputs = DenseRows(mapped_vectors(table, ["vector"], NUMBERS))
        if are_compared:
            check_compared(sources, "queries", queries["query_id"], inputs)
    else:
        inputs = _sparse_rows(table)
    return by_split(sources, queries, items, inputs.take, needed)


def check_one_form(queries: Table) -> None:
    """Raises:
    ValueError: if a table of queries has neither vectors nor features, or both.
    """
    forms = [name for name in QUERY_COLUMNS if name in queries]
    if forms not in (["vector"], ["feature_indices", "feature_values"]):
        raise ValueError(
            f"{queries.name} must have either columns 'feature_indices' and 'feature_values' or a column 'vector', "
            f"got {' and '.join(map(repr, forms)) or 'none of them'}"
        )


def corpus(
    sources: Sources, query: dict[str, str], vector_columns: Sequence[str] = (), item_shape: Sequence[int] = ()
) -> Corpus:
    """The items to encode.

    Args:
        query: as in `Corpus`.
        vector_columns: as in `read`.
        item_shape: number and width of the vectors that a trained model reads of an item; empty for any.

    Raises:
        NotFoundError: if there is no table of items.
        ValueError: if vectors of items have another shape.
    """
    items = item_files(sources, vector_columns, sources.attribute_columns())
    if vector_columns and item_shape:
        found = (1, *_together(_shapes(items.table, vector_columns)))[-2:]
        if found != tuple(item_shape):
            wanted, given = (" x ".join(map(str, shape)) for shape in (item_shape, found))
            raise ValueError(
                f"items of {sources} must have vectors as the model reads them, {wanted} numbers an item, got {given}: "
                "train a new run"
            )
    return Corpus(items, query)


def item_files(
    sources: Sources,
    vector_columns: Sequence[str],
    attributes: Columns = NO_COLUMNS,
    without: Collection[str] = (),
) -> ItemFiles:
    """The items, with their vectors as inputs if columns are named, and attributes.

    Args:
        without: further columns that are no texts, whatever their names.
    """
    columns = {"item_id": ID, **dict.fromkeys(vector_columns, VECTOR)}
    optional = {name: FILLED_TEXT for name in ("title", "text") if name not in (*vector_columns, *without)}
    table = sources.open("items", {**columns, **optional})
    made = partial(_item, shapes=tuple(_shapes(table, vector_columns)), texts=tuple(optional))
    return ItemFiles(table, columns, optional, made, sources.refuses_zeros, attributes)


def mapped_vectors(table: Table, columns: Sequence[str], kind: Kind = VECTOR) -> NDArray[np.float32]:
    """The vectors of one column, or of several side by side, mapped into memory."""
    shapes = _shapes(table, columns, kind)
    batches = table.batches(dict.fromkeys(columns, kind))
    whole = VectorShape(_together(shapes), table.paths[0])
    return mapped((_joined(batch, shapes) for batch in batches), whole)


def _shapes(table: Table, columns: Sequence[str], kind: Kind = VECTOR) -> list[tuple[str, VectorShape]]:
    """The shape of the rows of each column.

    Raises:
        ValueError: if vectors of several columns differ in width, or a column of several has several vectors itself.
    """
    shapes = [(column, VectorShape.of(table, column, kind)) for column in columns]
    if len(shapes) > 1:
        (first, like), *others = shapes
        for column, shape in others:
            if len(shape.sizes) > 1 or shape.sizes != like.sizes:
                raise ValueError(
                    f"column {column!r} of {shape.file} must hold one vector of {like.sizes[-1]} numbers in every row "
                    f"as column {first!r}, got {' x '.join(map(str, shape.sizes))}"
                )
    return shapes


def _together(shapes: Sequence[tuple[str, VectorShape]]) -> tuple[int, ...]:
    [(_, first), *others] = shapes
    return (len(shapes), *first.sizes) if others else first.sizes


def _joined(batch: RowBatch, shapes: Sequence[tuple[str, VectorShape]]) -> NDArray[np.float32]:
    found = [vectors_of(batch, column, shape) for column, shape in shapes]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _item(batch: RowBatch, shapes: Sequence[tuple[str, VectorShape]], texts: Sequence[str]) -> pa.Table:
    items = batch.table.select(["item_id"])
    if shapes:
        items = items.append_column("input", as_column(_joined(batch, shapes)))
    found = [batch[name] for name in texts if name in batch.table.column_names]
    if not found:
        return items
    title = found[0] if len(found) == 1 else pc.if_else(pc.equal(found[0], ""), found[1], found[0])
    return items.append_column("title", title)


def _sparse_rows(table: Table) -> SparseRows:
    parts = [features_of(batch) for batch in table.batches({"feature_indices": INTEGERS, "feature_values": NUMBERS})]
    lengths, indices, values = (np.concatenate(own) for own in zip(*parts, strict=True))
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return SparseRows(starts, indices, values, int(indices.max(initial=-1)) + 1)


def features_of(batch: RowBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """How many features each query of a batch has, and all their indices and values.

    Raises:
        ValueError: if indices and values of a query differ in number, or one of them is out of range.
    """
    (starts, indices), (value_starts, values) = (_parts(batch[name]) for name in ("feature_indices", "feature_values"))
    lengths, value_lengths = np.diff(starts), np.diff(value_starts)
    wrong = np.flatnonzero(lengths != value_lengths)
    if len(wrong):
        raise ValueError(
            f"column 'feature_values' of {batch.file} must hold as many numbers as 'feature_indices' in every row, "
            f"got {value_lengths[wrong[0]]} and {lengths[wrong[0]]} in row {batch.at(int(wrong[0]))}"
        )
    numbers = finite(batch, "feature_values", values, starts)
    _check_indices(batch, starts, indices)
    return lengths, indices.to_numpy().astype(np.int64), numbers


def _check_indices(batch: RowBatch, starts: NDArray[np.int64], indices: pa.Array) -> None:
    column = f"column 'feature_indices' of {batch.file}"
    check_numbers(batch, "feature_indices", indices, starts)
    numbers = indices.to_numpy()
    negative = np.flatnonzero(numbers < 0)
    if len(negative):
        row = batch.at(row_of(starts, negative[0]))
        raise ValueError(f"{column} must hold integers of at least 0, got {numbers[negative[0]]} in row {row}")
    too_large = np.flatnonzero(numbers >= MOST_FEATURES)
    if len(too_large):
        row = batch.at(row_of(starts, too_large[0]))
        raise ValueError(
            f"{column} must hold integers below {MOST_FEATURES}, got {numbers[too_large[0]]} in row {row}: "
            "number the features from 0"
        )
    queries = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((numbers, queries))
    is_repeated = (np.diff(queries[order]) == 0) & (np.diff(numbers[order]) == 0)
    if is_repeated.any():
        place = order[np.argmax(is_repeated)]
        row = batch.at(int(queries[place]))
        raise ValueError(f"{column} must hold distinct integers in every row, got {numbers[place]} twice in row {row}")


def _parts(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Where the list of each row begins, and what all lists hold."""
    lengths = pc.list_value_length(column).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pc.list_flatten(column).combine_chunks()
