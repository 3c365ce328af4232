"""Columns of users' tables: every Arrow type that holds the right values, read as one type.

| kind       | read as                              | from                                                            |
|------------|--------------------------------------|-----------------------------------------------------------------|
| `ID`       | int64, uint64 or large_string        | integers, whole floats and decimals; strings, binary, UUIDs     |
| `INTEGER`  | int64                                | integers, whole floats and decimals                             |
| `TEXT`     | large_string                         | strings, binary that is UTF-8                                   |
| `NUMBER`   | float64                              | integers, floats, decimals, booleans                            |
| `TIME`     | timestamp[us], or int64 or float64   | timestamps, dates, strings of ISO 8601, or numbers of any unit  |
| `INTEGERS` | a list of integers                   | lists of integers, whole floats and decimals                    |
| `NUMBERS`  | a list of numbers                    | lists of floats, integers or decimals, tensors of one axis      |
| `TEXTS`    | a list of what `TEXT` is read as     | lists of what `TEXT` takes                                      |
| `IDS`      | a list of what `ID` is read as       | lists of what `ID` takes                                        |
| `TIMES`    | a list of what `TIME` is read as     | lists of what `TIME` takes                                      |
| `FLOATS`   | a large list of float32              | as `NUMBERS`                                                    |
| `VECTOR`   | a list of numbers, or of such lists  | as `NUMBERS`; also lists of such lists, tensors of two axes     |

Dictionaries (categoricals of pandas), views, run ends and extension types are read as what they hold: `plain_values`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rails_ray.storage.plain_values import (
    BadValueError,
    Metadata,
    is_list,
    plain,
    texts_of_bytes,
    uuid_text,
    with_values,
)

EXACT = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}  # up to here a float holds every integer
UUID_BYTES = 16


@dataclass(frozen=True)
class Kind:
    """The values that a column must hold.

    name: them in words.
    change: changes an array of plain values; returns None for a type that is not of the kind.
    empty: type of a column of which every value is null.
    is_filled: whether nulls are read as empty texts, or as empty lists.
    """

    name: str
    change: Callable[[pa.Array], pa.Array | None]
    empty: pa.DataType
    is_filled: bool = False
    keeps_nulls: bool = False

    def read(self, values: pa.Array, metadata: Metadata = None) -> pa.Array:
        """Read an array. Nulls stay.

        Args:
            metadata: that of its field.

        Raises:
            BadValueError: if the type or a value is not of the kind.
        """
        flat = plain(values, metadata)
        if pa.types.is_null(flat.type):
            return pa.nulls(len(flat), self.empty)
        found = self.change(flat)
        if found is None:
            raise BadValueError(f"be of type {self.name}", str(values.type))
        return found

    def filled(self, values: pa.Array) -> pa.Array:
        """Values that were read, with an empty text or an empty list in place of null."""
        if not is_list(values.type):
            return values.fill_null("")
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        return pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), values.flatten())

    def type_of(self, field: pa.Field) -> pa.DataType:
        """The type as which a column is read.

        Raises:
            BadValueError: if its type is not of the kind.
        """
        return self.read(pa.array([], field.type), field.metadata).type


def _texts(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.large_string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return texts_of_bytes(values, bytes.decode)
    return None


def _id_of_bytes(value: bytes) -> str:
    """A text, or 16 bytes as a UUID. A random UUID is printable text once in some ten million."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        if len(value) != UUID_BYTES:
            raise
        return uuid_text(value)
    return text if len(value) != UUID_BYTES or text.isprintable() else uuid_text(value)


def _integers(values: pa.Array, largest: pa.DataType) -> pa.Array | None:
    """Whole numbers as int64, or as the type of 64 bits that is given, if their type is that or a wide decimal."""
    kind = values.type
    if pa.types.is_integer(kind):
        if kind != pa.uint64():
            return values.cast(pa.int64())
        return values if largest == kind else fitting(values, pa.int64())
    if pa.types.is_decimal(kind):
        is_large = largest == pa.uint64() and pc.max(values).as_py() is not None and pc.max(values).as_py() >= 2**63
        return fitting(values, pa.uint64() if is_large else pa.int64())
    if not pa.types.is_floating(kind):
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    is_missing = np.isnan(numbers)
    with np.errstate(invalid="ignore"):
        is_wrong = ~is_missing & ~((np.trunc(numbers) == numbers) & (np.abs(numbers) <= EXACT[kind]))
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        most = f"2**{EXACT[kind].bit_length() - 1}"
        raise BadValueError(
            f"hold whole numbers, and of type {kind} up to {most}, as it rounds larger ones", str(numbers[row]), row
        )
    return pa.array(np.where(is_missing, 0, numbers).astype(np.int64), mask=is_missing)


def fitting(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers as another type that holds them.

    Raises:
        BadValueError: if one does not fit.
    """
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        row = next(row for row in range(len(values)) if not _fits(values[row], kind))
        most = f" up to 2**{EXACT[kind].bit_length() - 1}, as it rounds larger ones" if kind in EXACT else ""
        raise BadValueError(f"hold whole numbers within {kind}{most}", str(values[row].as_py()), row) from None


def _fits(value: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _ids(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return texts_of_bytes(values, _id_of_bytes)
    found = _texts(values)
    return _integers(values, pa.uint64()) if found is None else found


def _numbers(values: pa.Array) -> pa.Array | None:
    return values.cast(pa.float64(), safe=False) if is_number(values.type) or pa.types.is_boolean(values.type) else None


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _instants(values: pa.Array) -> pa.Array | None:
    """Moments in time, in UTC where they name no zone; numbers stay numbers, whose unit the whole column shows."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return values.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.timestamp("us"))
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _integers(values, pa.int64())
    if pa.types.is_floating(kind):
        numbers = values.cast(pa.float64())
        return pc.if_else(pc.is_nan(numbers), None, numbers)
    found = _texts(values)
    return None if found is None else _parsed(found)


def _parsed(texts: pa.Array) -> pa.Array:
    """Texts of ISO 8601, each with a zone or without."""
    has_zone = pc.match_substring_regex(texts, r"\d(Z|[+-]\d\d(:?\d\d)?)$").fill_null(False)
    has_zone = pc.and_(has_zone, pc.match_substring_regex(texts, ":").fill_null(False))
    parts = []
    for chosen, kind in ((pc.invert(has_zone), pa.timestamp("us")), (has_zone, pa.timestamp("us", "UTC"))):
        some = pc.if_else(chosen, texts, None)
        try:
            parts.append(some.cast(kind).cast(pa.timestamp("us")))
        except pa.ArrowInvalid:
            row = next(row for row in range(len(some)) if not _fits(some[row], kind))
            raise BadValueError(
                "hold times in ISO 8601, such as 2026-01-31T23:59:00Z", repr(some[row].as_py()), row
            ) from None
    return pc.coalesce(*parts)


def _lists(values: pa.Array, has_type: Callable[[pa.DataType], bool]) -> bool:
    return is_list(values.type) and has_type(values.type.value_type)


def _lists_of_integers(values: pa.Array) -> pa.Array | None:
    if not _lists(values, is_number) or pa.types.is_integer(values.type.value_type):
        return values if _lists(values, is_number) else None
    return _lists_of(lambda flat: _integers(flat, pa.int64()))(values)


def _list_of(lists: pa.Array, place: int | None) -> int | None:
    """The list that holds a value."""
    ends = np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False))
    return None if place is None else int(np.searchsorted(ends, place, side="right"))


def _lists_of(change: Callable[[pa.Array], pa.Array | None]) -> Callable[[pa.Array], pa.Array | None]:
    """Changes the values of lists."""

    def changed(values: pa.Array) -> pa.Array | None:
        if not is_list(values.type):
            return None
        flat = values.flatten()
        try:
            found = pa.nulls(len(flat), pa.large_string()) if pa.types.is_null(flat.type) else change(flat)
        except BadValueError as error:
            raise BadValueError(error.must, error.got, _list_of(values, error.row)) from None
        return None if found is None else with_values(values, found)

    return changed


def _lists_of_numbers(values: pa.Array) -> pa.Array | None:
    if not _lists(values, is_number):
        return None
    if not pa.types.is_decimal(values.type.value_type):
        return values
    return with_values(values, values.flatten().cast(pa.float64(), safe=False))


def _lists_of_floats(values: pa.Array) -> pa.Array | None:
    found = _lists_of_numbers(values)
    return None if found is None else with_values(found, found.flatten().cast(pa.float32(), safe=False))


def _vectors(values: pa.Array) -> pa.Array | None:
    if not _lists(values, is_list):
        return _lists_of_numbers(values)
    inner = _lists_of_numbers(values.flatten())
    if inner is None or inner.type == values.type.value_type:
        return None if inner is None else values
    return with_values(values, inner)


ID = Kind("integer or string", _ids, pa.large_string())
REFERENCE = Kind("integer or string", _ids, pa.large_string(), keeps_nulls=True)  # an id of another table
INTEGER = Kind("integer", lambda values: _integers(values, pa.int64()), pa.int64())
TEXT = Kind("string", _texts, pa.large_string())
FILLED_TEXT = Kind("string", _texts, pa.large_string(), is_filled=True)  # a null is an empty text
NUMBER = Kind("integer, float or boolean", _numbers, pa.float64())
WEIGHT = Kind(
    "integer, float or decimal",
    lambda values: values.cast(pa.float64(), safe=False) if is_number(values.type) else None,
    pa.float64(),
    keeps_nulls=True,
)
TIME = Kind("timestamp, date, number or string", _instants, pa.int64())
INTEGERS = Kind("list of integers", _lists_of_integers, pa.list_(pa.int64()))
NUMBERS = Kind("list of floats or list of integers", _lists_of_numbers, pa.list_(pa.float32()))
FLOATS = Kind("list of floats", _lists_of_floats, pa.large_list(pa.float32()))
FILLED_VECTOR = Kind(  # a null is an empty list
    "list of floats or list of integers", _lists_of_numbers, pa.list_(pa.float32()), is_filled=True
)
VECTOR = Kind("list of floats or list of integers or list of lists of floats", _vectors, pa.list_(pa.float32()))
TEXTS = Kind("list of strings", _lists_of(_texts), pa.list_(pa.string()))
IDS = Kind("list of integers or list of strings", _lists_of(_ids), pa.list_(pa.int64()))
TIMES = Kind("list of timestamps, dates, numbers or strings", _lists_of(_instants), pa.list_(pa.int64()))
Columns = Mapping[str, Kind]
"""The kind of each column."""
NO_COLUMNS: Columns = {}


def common_type(types: Collection[pa.DataType]) -> pa.DataType | None:
    """The type of one column of several files as `Kind.read` gives it; None if there is none.

    Signed and unsigned integers have one if one of the two holds all values, which only the values say: `pa.null()`.
    """
    found = list(dict.fromkeys(types))
    if len(found) < 2:
        return found[0] if found else pa.null()
    if set(found) == {pa.int64(), pa.float64()}:
        return pa.float64()
    return pa.null() if set(found) == {pa.int64(), pa.uint64()} else None
