"""Parquet of our own: the parts of an index version.

A part holds consecutive items of one shard, in columns that any reader of Parquet opens:

    item_id      integer or string           identifier in the data set
    title        string                      for people to read; absent if the data set has none
    text         string                      for heavy rankers to read; absent unless the version keeps texts

and the columns of the items' state, each a FixedSizeList in row-major order. The file's metadata give under `state` the
kind of the state, and of each column the shape of an item and its dtype. Components have the columns

    components   [P_X, d]                    g_p(x)
    average      [d]                         absent if P_X = 1 (it equals the component), or if no search by the
                                             average is wanted
    gate         float32 [P]                 v(x); absent if the similarity has no gate
    surrogate    [D]                         w_x; absent unless the version was encoded with a surrogate

in float32, float16 or bfloat16. Parquet has no bfloat16: its 16 bits are stored as uint16. Codes have the column

    codes        int32 [K]                   the item's bucket in each chunk

and components that are product-quantised have

    codes        uint8 [P_X M]               their codewords, two in a byte if codebooks have at most 16
    residuals    float32 [P_X]               |g_p(x) - what its codes stand for|
    lists        int32 [1]                   the item's inverted list; absent if there are none

beside `gate`, and beside `components` and `average` if these are kept.

Axes: X items, P_X item components, P pairs of components, d width of a component, D of a
surrogate, K chunks.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.storage.numbers import numbers_in

NAMED = ("item_id", "title", "text")  # columns beside those of the items' state
STATE = "state"  # key of the items' state in a part's metadata
CHECKED = "page_checksums"  # key of a file whose pages have checksums, so that some columns of it can be read alone


def to_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def read_plain(source: Any, columns: Sequence[str] | None = None, *, checks_pages: bool = False) -> pa.Table:
    """A stored table of ours, whose columns are plain. An extension type would make Python objects of the values: one
    of Ray Data's unpickles them.

    One thread reads it: those of Arrow would keep 15 MB, which `heap.trim` does not reach. `pyarrow.parquet.read_table`
    would load pandas.

    Args:
        columns: names of those to read; by default all.
        checks_pages: whether the checksums of pages are compared.

    Raises:
        DamagedError: if a column has an extension type.
        pyarrow.ArrowException: if it is no Parquet file.
    """
    try:
        with pq.ParquetFile(source, page_checksum_verification=checks_pages) as file:
            table = file.read(columns, use_threads=False)
    except (pa.ArrowException, OSError):
        raise
    except Exception as error:  # of the package that registered an extension type
        raise DamagedError("a stored table must have columns of plain types, got one that cannot be read") from error
    for field in table.schema:
        if _is_extended(field.type):
            raise DamagedError(
                f"column {field.name!r} of a stored table must be of a plain type, got {field.type}: nothing here "
                "writes such columns"
            )
    return table


def _is_extended(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    below = [kind.field(number).type for number in range(kind.num_fields)]
    return any(map(_is_extended, [*below, kind.value_type] if pa.types.is_dictionary(kind) else below))


@dataclass(frozen=True, kw_only=True)
class StateEntry:
    """How a version stores the state of its items.

    kind: kind of the state.
    shapes: shape of an item in each column of the state, by name; () for a single number.
    dtypes: dtype of each column, by name, as torch calls it.
    """

    kind: str
    shapes: dict[str, list[int]]
    dtypes: dict[str, str]


def item_part(items: pa.Table, state: AnyItems, attributes: Sequence[str] = ()) -> pa.Table:
    """The index part that holds these items.

    Args:
        items: columns item_id and, optionally, title and text, and the attributes.
    """
    named = [name for name in (*NAMED, *attributes) if name in items.column_names]
    part = items.select(named).combine_chunks()  # where a page of long strings ends would follow the chunks
    shapes, dtypes = {}, {}
    for name, column in state.columns().items():
        numbers = column.flatten(start_dim=1)
        bits = numbers.view(torch.uint16) if column.dtype == torch.bfloat16 else numbers
        part = part.append_column(name, vectors(bits.numpy(force=True)))
        shapes[name], dtypes[name] = list(column.shape[1:]), str(column.dtype).removeprefix("torch.")
    entry = json.dumps(asdict(StateEntry(kind=state.kind, shapes=shapes, dtypes=dtypes)))
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
    part = part.replace_schema_metadata({**(part.schema.metadata or {}), CHECKED: "crc32"})
    # Almost no two vectors are equal, and looking for repeats takes longer than the rest.
    pq.write_table(part, sink, compression="zstd", use_dictionary=False, write_page_checksum=True)
    return sink.getvalue()


class StateReader:
    """Reads the state of consecutive items from their parts, each number copied once.

    Args:
        entry: how the parts store the state.
        state: the kind of the items.

    Raises:
        DamagedError: if the items have another kind.
    """

    def __init__(self, entry: StateEntry, state: type[AnyItems], num_items: int) -> None:
        if entry.kind != state.kind:
            raise DamagedError(
                f"an index part must hold items of kind {state.kind!r}, got {entry.kind!r}: encode a new one"
            )
        self.entry = entry
        self.state = state
        self.columns = {
            name: _in_large_pages((num_items, *shape), _dtype(entry.dtypes[name]))
            for name, shape in entry.shapes.items()
        }
        self.num_read = 0

    def add(self, part: pa.Table) -> None:
        """Take in the next part.

        Raises:
            DamagedError: if a number is not finite, a column is missing, or a column differs from the part's metadata.
        """
        rows = slice(self.num_read, self.num_read + part.num_rows)
        for name, column in self.columns.items():
            numbers = column[rows].view(part.num_rows, math.prod(self.entry.shapes[name]))
            bits = (numbers.view(torch.uint16) if numbers.dtype == torch.bfloat16 else numbers).numpy()
            bits[:] = self._stored(part, name, bits)
            if numbers.is_floating_point() and not numbers.isfinite().all():
                raise DamagedError(f"column {name!r} of an index part must hold finite numbers, got NaN or infinity")
        self.num_read += part.num_rows

    def _stored(self, part: pa.Table, name: str, like: NDArray[Any]) -> NDArray[Any]:
        """The numbers of a column, which must be as many as in `like` and of its dtype."""
        if name not in part.column_names:
            raise DamagedError(f"an index part must have the column {name!r} of its items' state, got none")
        stored = rows_in(part[name])
        if stored.shape != like.shape or stored.dtype != like.dtype:
            raise DamagedError(
                f"column {name!r} of an index part must have {' x '.join(map(str, self.entry.shapes[name]))} numbers "
                f"of {like.dtype} for each item, got {stored.shape[1]} of {stored.dtype}: encode a new version"
            )
        return stored

    def made(self) -> AnyItems:
        """The items.

        Raises:
            DamagedError: if the state lacks a column.
        """
        try:
            made: AnyItems = self.state.from_columns(self.columns)
        except KeyError as error:
            raise DamagedError(f"an index part must have the column {error} of its items' state, got none") from None
        return made


def _dtype(name: str) -> torch.dtype:
    """The dtype of a column.

    Raises:
        DamagedError: if torch has none of this name.
    """
    found = vars(torch).get(name)  # torch itself imports modules that it is asked for by name
    if not isinstance(found, torch.dtype):
        raise DamagedError(f"an index part must hold numbers of a dtype of torch, got {name!r}: encode a new one")
    return found


def _in_large_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in numpy's memory, for which it asks the system for large pages, unlike torch: a scan for one query then
    takes two thirds of the time."""
    return torch.from_numpy(np.empty(shape, f"i{dtype.itemsize}")).view(dtype)


def item_state(part: pa.Table, state: type[AnyItems]) -> AnyItems:
    """The items of a single part. Raises what `StateReader` does."""
    reader = StateReader(state_entry(part), state, part.num_rows)
    reader.add(part)
    return reader.made()


def vectors(rows: NDArray[Any]) -> pa.FixedSizeListArray:
    """Rows [X, D] as a column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def rows_in(column: pa.ChunkedArray) -> NDArray[Any]:
    """The rows [X, D] of a column of vectors."""
    # flatten, unlike values, honours slices
    return numbers_in(column.combine_chunks().flatten()).reshape(len(column), column.type.list_size)
