"""Items that a caller gives in memory: their vectors, ids, titles and attributes, checked."""

from collections.abc import Iterable, Mapping, Set
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from rails_ray.schema.fields import check_listed, listed, shortened
from rails_ray.storage.attributes import check_names
from rails_ray.storage.numbers import numbers_as_array
from rails_ray.storage.parquet import vectors

LARGEST_SIGNED = 2**63 - 1


def rows_of(vectors: ArrayLike) -> NDArray[np.float32]:
    """Vectors of items as an array [X, D].

    Raises:
        ValueError: if they are not finite numbers of one width, or none.
    """
    try:
        given = np.asarray(vectors)
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:  # unequal lists, tensors that are not plain
        raise ValueError(f"vectors must be numbers [items, width], got: {error}") from None
    if given.dtype.kind not in "fiu":
        raise ValueError(f"vectors must be numbers [items, width], got an array of {given.dtype}")
    with np.errstate(over="ignore"):  # an infinity is refused below
        rows = given.astype(np.float32, copy=False)
    if rows.ndim != 2 or not rows.size:
        shape = " x ".join(map(str, rows.shape)) or "a number"
        raise ValueError(f"vectors must be [items, width], of one item at least, got {shape}")
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise ValueError(f"vectors must be finite in float32, got NaN or infinity in row {wrong[0]}")
    return rows


def items_of(
    num_items: int,
    ids: Iterable[Any] | None,
    titles: Iterable[Any] | None,
    attributes: Mapping[str, Any] | None = None,
) -> pa.Table:
    """A table with item_id, title if there are titles, and a column for each attribute, which has its values as given.

    Args:
        ids: by default the numbers of the rows.
        attributes: values of all items, by name.

    Raises:
        ValueError: if ids, titles or an attribute are not one for each item, ids not distinct, or of a wrong type.
    """
    numbers = numbers_as_array(np.arange(num_items)) if ids is None else ids
    given: dict[str, Any] = {"item_id": _in_order(numbers, "ids")}
    given |= {} if titles is None else {"title": _in_order(titles, "titles")}
    for name, values in given.items():
        if len(values) != num_items:
            option = "ids" if name == "item_id" else "titles"
            raise ValueError(f"{option} must be one for each of the {num_items} vectors, got {len(values)}")
    try:
        table = pa.table({name: _column(values) for name, values in given.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"ids must be all integers or all strings, and titles strings, got: {error}") from None
    kinds = {
        "item_id": (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string),
        "title": (pa.types.is_string, pa.types.is_large_string),
    }
    for name in table.column_names:
        column = table[name]
        if column.null_count or not any(is_kind(column.type) for is_kind in kinds[name]):
            got = "none for some items" if column.null_count else column.type
            raise ValueError(f"ids must be all integers or all strings, and titles strings, got {got} as {name}")
    column = table["item_id"]
    counts = column.value_counts()
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise ValueError(f"ids must be distinct, got {repeated[0].as_py()!r} twice or more")
    kind = pa.string()
    if pa.types.is_integer(column.type):
        kind = pa.int64() if pc.max(column).as_py() <= LARGEST_SIGNED else pa.uint64()
    table = table.set_column(0, "item_id", column.cast(kind))
    given_attributes = {} if attributes is None else dict(attributes)
    check_names(given_attributes)
    for name, values in given_attributes.items():
        table = table.append_column(name, _attribute(name, values, num_items))
    return table


def _attribute(name: str, values: Any, num_items: int) -> pa.ChunkedArray:
    is_column = hasattr(values, "__len__") and not isinstance(values, str | bytes | bytearray | Mapping | Set)
    if not is_column or len(values) != num_items:
        got = len(values) if is_column else shortened(values)
        raise ValueError(f"attribute {name!r} must have one value for each of the {num_items} items, got {got}")
    try:
        column = values if isinstance(values, pa.ChunkedArray) else _column(values)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"attribute {name!r} must have values of one type, got: {error}") from None
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _column(values: Any) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, pa.uint64())


def _in_order(values: Any, name: str) -> Any:
    """Values that have a length and an order.

    Raises:
        ValueError: as `check_listed`, and if they are a set.
    """
    check_listed(values, name)
    if isinstance(values, Set):
        raise ValueError(f"{name} must be a list, got a set, which has no order")
    return values if hasattr(values, "__len__") else list(values)


def given_items(
    inputs: ArrayLike | Iterable[Any],
    ids: Iterable[Any],
    titles: Iterable[Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Items to add, as `changing.add` takes them.

    Args:
        inputs: vectors [X, D], or texts, which the model reads after their titles, as it does those of a data set.
        attributes: values of all items, by name.

    Raises:
        ValueError: if they are not as said.
    """
    is_looked_through = isinstance(inputs, Iterable) and _may_be_texts(inputs)
    texts = listed(_in_order(inputs, "inputs"), "inputs") if is_looked_through else []
    if texts and all(isinstance(own, str) for own in texts):
        shown = None if titles is None else listed(titles, "titles")
        items = items_of(len(texts), ids, shown, attributes)
        read = [f"{title}\n{text}" if title else text for title, text in zip(shown or repeat(""), texts, strict=False)]
        return items.append_column("input", pa.chunked_array([pa.array(read, pa.string())]))
    given: Any = texts or inputs
    rows = rows_of(given)
    return items_of(len(rows), ids, titles, attributes).append_column("input", vectors(rows))


def _may_be_texts(inputs: Any) -> bool:
    """Tell arrays of numbers, which need not be looked through, from all else."""
    return not hasattr(inputs, "dtype") or getattr(inputs.dtype, "kind", "f") in "OUT"
