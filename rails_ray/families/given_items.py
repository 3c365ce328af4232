"""Items that a caller gives in memory: their vectors, ids, titles and attributes, checked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.schema.fields import check_listed, listed, shortened
from rails_ray.storage.attributes import check_names
from rails_ray.storage.numbers import numbers_as_array
from rails_ray.storage.parquet import vectors

LARGEST_SIGNED = 2**63 - 1
UNREADABLE = (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError)  # what Arrow raises of a list
ARE_STRINGS = (pa.types.is_string, pa.types.is_large_string)
ARE_IDS = (pa.types.is_integer, *ARE_STRINGS)


def rows_of(vectors: Any) -> NDArray[np.float32]:
    """Vectors of items as an array [X, D].

    Args:
        vectors: an array of numpy or torch, a table, or a list of vectors, an iterator or a column too.

    Raises:
        ValueError: if they are not finite numbers of one width, or none.
    """
    is_masked = isinstance(getattr(vectors, "mask", None), np.ndarray)  # of numpy
    if is_masked or (isinstance(vectors, list) and any(isinstance(own, bytes | bytearray) for own in vectors)):
        got = "some that are masked" if is_masked else "bytes"
        raise ValueError(f"vectors must be numbers [items, width], got {got}: give an array of all of them")
    is_read_by_numpy = hasattr(vectors, "__array__") or hasattr(vectors, "__getitem__")
    is_list = isinstance(vectors, Iterable) and not is_read_by_numpy and not isinstance(vectors, set | frozenset)
    try:
        given = np.asarray(list(vectors) if is_list else vectors)
        if given.dtype == object and given.ndim == 1:  # a vector in each place
            given = np.asarray(given.tolist())
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
    ids: Any,
    titles: Any,
    attributes: Any = None,
) -> pa.Table:
    """A table with item_id, title if there are titles, and a column for each attribute, which has its values as given.

    Args:
        ids: by default the numbers of the rows.
        attributes: values of all items, by name.

    Raises:
        ValueError: if ids, titles or an attribute are not one for each item, ids not distinct, or of a wrong type.
    """
    numbers = numbers_as_array(np.arange(num_items)) if ids is None else ids
    columns = {"item_id": _given_column(numbers, num_items, "ids", "all integers or all strings", ARE_IDS)}
    if titles is not None:
        columns["title"] = _given_column(titles, num_items, "titles", "strings", ARE_STRINGS)
    table = pa.table(columns)
    column = table["item_id"]
    counts = column.value_counts()
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise ValueError(f"ids must be distinct, got {repeated[0].as_py()!r} twice or more")
    kind = pa.string()
    if pa.types.is_integer(column.type):
        kind = pa.int64() if pc.max(column).as_py() <= LARGEST_SIGNED else pa.uint64()
    table = table.set_column(0, "item_id", column.cast(kind))
    for name, values in _by_name(attributes).items():
        table = table.append_column(name, _attribute(name, values, num_items))
    return table


def _by_name(attributes: Any) -> dict[str, Any]:
    """Raises:
    ValueError: if they are no values by name, or an attribute cannot be called so.
    """
    if attributes is not None and not isinstance(attributes, Mapping):
        raise ValueError(f"attributes must be values of all items by name, got {shortened(attributes)}")
    given = {} if attributes is None else dict(attributes)
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise ValueError(f"attributes must have strings as names, got {shortened(wrong[0])}")
    check_names(given)
    return given


def _given_column(
    values: Any, num_items: int, name: str, kind: str, are: Sequence[Callable[[pa.DataType], bool]]
) -> pa.ChunkedArray:
    """The column of ids or titles, one for each item.

    Args:
        kind: what they must be, for messages; and how to tell that, `are`.
    """
    given = _with_length(values, name)
    if len(given) != num_items:
        raise ValueError(f"{name} must be one for each of the {num_items} items, got {len(given)}")
    try:
        column = _column(given)
    except OverflowError as error:
        raise ValueError(f"{name} must be integers of 64 bits, all signed or all unsigned, got: {error}") from None
    except UNREADABLE as error:
        raise ValueError(f"{name} must be {kind}, got: {error}") from None
    if column.null_count or not any(is_kind(column.type) for is_kind in are):
        got = "none for some items" if column.null_count else column.type
        raise ValueError(f"{name} must be {kind}, got {got}")
    return column


def _attribute(name: str, values: Any, num_items: int) -> pa.ChunkedArray:
    given = _with_length(values, f"attribute {name!r}")
    if len(given) != num_items:
        raise ValueError(f"attribute {name!r} must have one value for each of the {num_items} items, got {len(given)}")
    try:
        return _column(given)
    except UNREADABLE as error:
        raise ValueError(f"attribute {name!r} must have values of one type, got: {error}") from None


def _column(values: Any) -> pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return values
    try:
        found = pa.array(values)
    except OverflowError:
        found = pa.array(values, pa.uint64())
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def _with_length(values: Any, name: str) -> Any:
    """A list, or what Arrow reads as it is: its own columns and those of numpy and pandas.

    Raises:
        ValueError: as `check_listed`.
    """
    check_listed(values, name)
    has_kind = hasattr(getattr(values, "dtype", None), "kind")
    return values if has_kind or isinstance(values, pa.Array | pa.ChunkedArray) else listed(values, name)


def given_items(
    inputs: Any,
    ids: Any,
    titles: Any = None,
    attributes: Any = None,
) -> pa.Table:
    """Items to add, as `changing.add` takes them: each argument is a list of any kind, or is refused.

    Args:
        inputs: vectors [X, D], or texts, which the model reads after their titles, as it does those of a data set.
        attributes: values of all items, by name.

    Raises:
        ValueError: if they are not as said.
    """
    check_listed(ids, "ids")
    read_one_by_one = isinstance(inputs, Iterable) and _may_be_texts(inputs)
    texts = listed(inputs, "inputs") if read_one_by_one else []
    are_texts = [isinstance(own, str) for own in texts]
    if any(are_texts) and not all(are_texts):
        number = are_texts.index(False)
        raise ValueError(f"inputs must be all texts or all vectors, got {shortened(texts[number])} in inputs[{number}]")
    if any(are_texts):
        shown = None if titles is None else listed(titles, "titles")
        items = items_of(len(texts), ids, shown, attributes)
        read = [f"{title}\n{text}" if title else text for title, text in zip(shown or repeat(""), texts, strict=False)]
        return items.append_column("input", pa.chunked_array([pa.array(read, pa.string())]))
    rows = rows_of(texts if read_one_by_one else inputs)
    return items_of(len(rows), ids, titles, attributes).append_column("input", vectors(rows))


def _may_be_texts(inputs: Any) -> bool:
    """Tell tables, and arrays and columns of numbers, which need not be looked through, from all else."""
    if hasattr(inputs, "columns"):
        return False
    if isinstance(inputs, pa.Array | pa.ChunkedArray):
        return not pa.types.is_nested(inputs.type)
    dtype = getattr(inputs, "dtype", None)
    of_others = "f" if hasattr(inputs, "ndim") else "O"  # torch's arrays have a type that numpy does not know
    return dtype is None or getattr(dtype, "kind", of_others) in "OUST"
