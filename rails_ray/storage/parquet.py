"""Tables in Parquet: read with their columns checked, and the parts that an index version is made of.

A part holds consecutive items of one shard:

    item_row     int64                       position in the corpus
    item_id      int64 or string             identifier in the data set
    components   float32 [P_X * d]           FixedSizeList; g_p(x), component after component
    average      float32 [d]                 FixedSizeList
    gate         float32 [P]                 FixedSizeList; v(x); absent where the similarity has no gate

Axes: X items, P_X item components, P pairs of components, d width of a component.
"""

import io
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.similarities.states import ItemState
from rails_ray.storage.filesystem import Storage

KINDS = {
    "integer": pa.types.is_integer,
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
}


def to_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def read_table(storage: Storage, path: str, columns: Mapping[str, Sequence[str]]) -> pa.Table:
    """Some columns of a user's table.

    Args:
        columns: the kinds (keys of `KINDS`) that each column may be of.

    Raises:
        NotFoundError: if there is no such file.
        ValueError: if it is no Parquet, empty, lacks a column, or holds a column of another kind or with nulls.
    """
    file = f"{storage}/{path}"
    try:
        table = pq.read_table(io.BytesIO(storage.read(path)))
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} must be a Parquet file, got: {error}") from None
    for name, kinds in columns.items():
        if name not in table.column_names:
            raise ValueError(f"{file} must have a column {name!r}, got {', '.join(table.column_names) or 'no column'}")
        column = table[name]
        if not any(KINDS[kind](column.type) for kind in kinds):
            raise ValueError(f"column {name!r} of {file} must be of type {' or '.join(kinds)}, got {column.type}")
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise ValueError(f"column {name!r} of {file} must have a value in every row, got null in row {row}")
    if not table.num_rows:
        raise ValueError(f"{file} must hold at least 1 row, got an empty table")
    return table.select(list(columns))


def item_part(item_rows: pa.Array, item_ids: pa.Array, items: ItemState) -> pa.Table:
    """The part of an index that holds these items."""
    columns = {
        "item_row": item_rows,
        "item_id": item_ids,
        "components": _vectors(items.components.flatten(start_dim=1)),
        "average": _vectors(items.average),
    }
    if items.gate is not None:
        columns["gate"] = _vectors(items.gate)
    return pa.table(columns)


def split_by_shard(part: pa.Table, shard_items: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    """(shard, items) cut so that each piece holds consecutive items of one shard."""
    rows = part["item_row"].to_numpy()
    shard_of = np.searchsorted(np.cumsum(shard_items), rows, side="right")
    cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(shard_of) != 0)) + 1
    for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if end > first:
            yield int(shard_of[first]), part.slice(first, end - first)


def item_state(part: pa.Table) -> ItemState:
    """The tensors of a part.

    Raises:
        DamagedError: if a vector is not finite.
    """
    average = _tensor(part["average"])
    state = ItemState(
        components=_tensor(part["components"]).unflatten(1, (-1, average.shape[1])),
        gate=_tensor(part["gate"]) if "gate" in part.column_names else None,
        average=average,
    )
    for name in ("components", "average", "gate"):
        tensor = getattr(state, name)
        if tensor is not None and not tensor.isfinite().all():
            raise DamagedError(f"column {name!r} of an index part must hold finite numbers, got NaN or infinity")
    return state


def _vectors(tensor: Float[Tensor, "X D"]) -> pa.FixedSizeListArray:
    values = np.ascontiguousarray(tensor.detach().cpu().numpy())
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _tensor(column: pa.ChunkedArray) -> Float[Tensor, "X D"]:
    # flatten, unlike values, honours slices
    values = column.combine_chunks().flatten().to_numpy()
    return torch.tensor(values.reshape(-1, column.type.list_size))
