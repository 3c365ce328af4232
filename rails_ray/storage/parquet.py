"""Tables in Parquet: users' tables, read with checked columns, and the parts of an index version.

A part holds consecutive items of one shard:

    item_row     int64                       position in the corpus
    item_id      int64 or string             identifier in the data set
    title        string                      for people to read; absent if the data set has none

and the columns of the items' state, each a FixedSizeList in row-major order. The file's metadata give under `state` the
kind of the state and the shape of an item in each column. Components have the columns

    components   float32 [P_X, d]            g_p(x)
    average      float32 [d]                 absent if P_X = 1 (it equals the component), or if no search by the
                                             average is wanted
    gate         float32 [P]                 v(x); absent if the similarity has no gate

and codes the column

    codes        int32 [K]                   the item's bucket in each chunk

Axes: X items, P_X item components, P pairs of components, d width of a component, K chunks.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.similarities.states import AnyItems
from rails_ray.storage.filesystem import Storage

LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
KINDS = {
    "integer": pa.types.is_integer,
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "list of integers": lambda kind: any(of(kind) for of in LISTS) and pa.types.is_integer(kind.value_type),
    "list of floats": lambda kind: any(of(kind) for of in LISTS) and pa.types.is_floating(kind.value_type),
}
ID, INTEGER, TEXT = ("integer", "string"), ("integer",), ("string",)  # kinds that a column may have
STATE = "state"  # key of the items' state in a part's metadata
INTEGERS, NUMBERS = ("list of integers",), ("list of floats", "list of integers")


def to_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def read_table(
    storage: Storage,
    path: str,
    columns: Mapping[str, Sequence[str]],
    optional: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """Some columns of a user's table.

    Args:
        columns: kinds (keys of `KINDS`) that each column may have.
        optional: likewise, for columns that may be missing.

    Raises:
        NotFoundError: if there is no such file.
        ValueError: if the file is not Parquet, is empty, lacks a column, or has a column of another kind or with nulls.
    """
    file = f"{storage}/{path}"
    data = storage.read(path)
    try:
        schema = pq.read_schema(io.BytesIO(data))
        there = {name: kinds for name, kinds in (optional or {}).items() if name in schema.names}
        columns = {**columns, **there}
        table = pq.read_table(io.BytesIO(data), columns=[name for name in columns if name in schema.names])
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file} must be a Parquet file, got: {error}") from None
    for name, kinds in columns.items():
        if name not in table.column_names:
            raise ValueError(f"{file} must have a column {name!r}, got {', '.join(schema.names) or 'no column'}")
        column = table[name]
        if not any(KINDS[kind](column.type) for kind in kinds):
            raise ValueError(f"column {name!r} of {file} must be of type {' or '.join(kinds)}, got {column.type}")
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise ValueError(f"column {name!r} of {file} must have a value in every row, got null in row {row}")
    if not table.num_rows:
        raise ValueError(f"{file} must hold at least 1 row, got an empty table")
    return table


def check_distinct(ids: pa.ChunkedArray, column: str, file: str) -> None:
    """Raises:
    ValueError: if an id occurs in two rows.
    """
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        value = repeated[0]["values"]
        row = np.flatnonzero(pc.equal(ids, value).to_numpy())[1]
        raise ValueError(
            f"column {column!r} of {file} must hold distinct ids, got {value.as_py()!r} again in row {row}"
        )


def rows_of(ids: pa.ChunkedArray, known: pa.ChunkedArray, column: str, file: str, known_file: str) -> NDArray[np.int64]:
    """The position in `known` of each id.

    Raises:
        ValueError: if the ids have another type, or one of them is unknown.
    """
    if pa.types.is_integer(ids.type) != pa.types.is_integer(known.type):
        raise ValueError(f"column {column!r} of {file} must be of type {known.type} as in {known_file}, got {ids.type}")
    wide = pa.int64() if pa.types.is_integer(known.type) else pa.large_string()  # a narrow type would wrap ids around
    rows = pc.index_in(ids.cast(wide, safe=False), value_set=known.cast(wide, safe=False))
    if rows.null_count:
        row = int(np.flatnonzero(rows.is_null().to_numpy())[0])
        raise ValueError(f"column {column!r} of {file} must be in {known_file}, got {ids[row].as_py()!r} in row {row}")
    return np.asarray(rows.to_numpy(), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class StateEntry:
    """How a version stores the state of its items.

    kind: kind of the state.
    shapes: shape of an item in each column of the state, by name; () for a single number.
    """

    kind: str
    shapes: dict[str, list[int]]


def item_part(items: pa.Table, state: AnyItems) -> pa.Table:
    """The index part that holds these items. `items` has columns item_row, item_id and, optionally, title."""
    part = items.select([name for name in ("item_row", "item_id", "title") if name in items.column_names])
    shapes = {}
    for name, column in state.columns().items():
        part = part.append_column(name, vectors(column.flatten(start_dim=1).numpy(force=True)))
        shapes[name] = list(column.shape[1:])
    entry = json.dumps(asdict(StateEntry(kind=state.kind, shapes=shapes)))
    return part.replace_schema_metadata({STATE: entry})


def state_entry(part: pa.Table) -> StateEntry:
    """The entry for the items' state in a part's metadata.

    Raises:
        DamagedError: if the part has none.
    """
    try:
        return StateEntry(**json.loads((part.schema.metadata or {})[STATE.encode()]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"an index part must say how it stores its items, got: {error}: encode a new one") from None


def part_to_bytes(part: pa.Table) -> bytes:
    """The bytes of a part's file; the same part gives the same bytes."""
    sink = io.BytesIO()
    # Almost no two vectors are equal, and looking for repeats takes longer than the rest.
    pq.write_table(part, sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def item_state(part: pa.Table, state: type[AnyItems]) -> AnyItems:
    """The items of a part.

    Args:
        state: kind of the items.

    Raises:
        DamagedError: if the items have another kind, a number is not finite, a column is missing, or a column's width
            differs from the part's metadata.
    """
    entry, columns = state_entry(part), {}
    if entry.kind != state.kind:
        raise DamagedError(
            f"an index part must hold items of kind {state.kind!r}, got {entry.kind!r}: encode a new one"
        )
    for name, shape in entry.shapes.items():
        if name not in part.column_names:
            raise DamagedError(f"an index part must have the column {name!r} of its items' state, got none")
        column = _tensor(part[name])
        if column.shape[1] != math.prod(shape):
            raise DamagedError(
                f"column {name!r} of an index part must have {' x '.join(map(str, shape))} numbers for each item, "
                f"got {column.shape[1]}: encode a new version"
            )
        if column.is_floating_point() and not column.isfinite().all():
            raise DamagedError(f"column {name!r} of an index part must hold finite numbers, got NaN or infinity")
        columns[name] = column.unflatten(1, shape)
    try:
        made: AnyItems = state.from_columns(columns)
    except KeyError as error:
        raise DamagedError(f"an index part must have the column {error} of its items' state, got none") from None
    return made


def vectors(rows: NDArray[Any]) -> pa.FixedSizeListArray:
    """Rows [X, D] as a column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def rows_in(column: pa.ChunkedArray) -> NDArray[Any]:
    """The rows [X, D] of a column of vectors."""
    # flatten, unlike values, honours slices
    values = column.combine_chunks().flatten().to_numpy()
    rows: NDArray[Any] = values.reshape(len(column), column.type.list_size)
    return rows


def _tensor(column: pa.ChunkedArray) -> Tensor:
    return torch.tensor(rows_in(column))
