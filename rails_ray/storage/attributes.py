"""Attributes: columns of items that filters may name, ordinary columns of the parts in one of six types.

| kind        | read from                                                                               |
|-------------|-----------------------------------------------------------------------------------------|
| `bool`      | booleans                                                                                |
| `int`       | integers of any width and decimals without places, if they fit 64 bits and a sign       |
| `float`     | floats of any width, decimals; NaN, which stands for what is missing in pandas, is null |
| `string`    | strings, binary that is UTF-8, UUIDs                                                    |
| `timestamp` | timestamps of any unit and zone, in UTC where they name none; dates                     |
| `strings`   | lists of strings                                                                        |

Any value may be null.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from rails_ray.item_ids import is_unicode
from rails_ray.storage.plain_values import BadValueError
from rails_ray.storage.values import INTEGER, TEXT, TEXTS, Kind, fitting, is_number

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "strings": pa.list_(pa.string()),
}
"""The Arrow type of each kind."""

TAKEN = (  # columns that parts have anyway, or items on their way to them
    *("item_id", "title", "text", "input", "components", "average", "gate", "surrogate"),
    *("codes", "residuals", "lists", "terms", "weights"),
)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}  # nanoseconds reach few years
YEAR_1_S, YEAR_10000_S = -62_135_596_800, 253_402_300_800


def _booleans(values: pa.Array) -> pa.Array | None:
    return values if pa.types.is_boolean(values.type) else None


def _integers(values: pa.Array) -> pa.Array | None:
    kind = values.type
    is_whole = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0)
    return INTEGER.change(values) if is_whole else None


def _floats(values: pa.Array) -> pa.Array | None:
    if not is_number(values.type):
        return None
    if pa.types.is_integer(values.type):
        return fitting(values, pa.float64())
    numbers = values.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(numbers), None, numbers)


def _strings(values: pa.Array) -> pa.Array | None:
    found = TEXT.change(values)
    return None if found is None else found.cast(pa.string())


def _timestamps(values: pa.Array) -> pa.Array | None:
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s" if pa.types.is_date32(values.type) else "ms"))
    if not pa.types.is_timestamp(values.type):
        return None
    unit = values.type.unit
    if unit in PER_SECOND:
        numbers, first, end = (values.cast(pa.int64()), *(own * PER_SECOND[unit] for own in (YEAR_1_S, YEAR_10000_S)))
        is_wrong = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)).fill_null(False).to_pylist()
        if any(is_wrong):
            row = is_wrong.index(True)
            raise BadValueError("hold times of the years 1 to 9999", f"{numbers[row]} {unit} since 1970", row)
    return values.cast(TYPES["timestamp"], safe=False)


def _lists_of_strings(values: pa.Array) -> pa.Array | None:
    found = TEXTS.change(values)
    return None if found is None else found.cast(TYPES["strings"])


def _of_any_kind(values: pa.Array) -> pa.Array | None:
    for change in (_booleans, _integers, _floats, _strings, _timestamps, _lists_of_strings):
        found = change(values)
        if found is not None:
            return found
    return None


ATTRIBUTE = Kind(
    "boolean, integer, float, string, timestamp, date or list of strings", _of_any_kind, pa.null(), keeps_nulls=True
)
KINDS = {
    "bool": Kind("boolean", _booleans, TYPES["bool"], keeps_nulls=True),
    "int": replace(INTEGER, keeps_nulls=True),  # also whole floats: pandas has no other integers beside missing ones
    "float": Kind("float, integer or decimal", _floats, TYPES["float"], keeps_nulls=True),
    "string": Kind("string", _strings, TYPES["string"], keeps_nulls=True),
    "timestamp": Kind("timestamp or date", _timestamps, TYPES["timestamp"], keeps_nulls=True),
    "strings": Kind("list of strings", _lists_of_strings, TYPES["strings"], keeps_nulls=True),
}
"""Values that a column must hold to become an attribute of each kind."""


def kinds_of(types: Mapping[str, pa.DataType]) -> dict[str, str]:
    """The kind of each attribute, by its Arrow type."""
    kinds = {own: kind for kind, own in TYPES.items()}
    return {name: kinds[own] for name, own in types.items()}


def kinds_for(version: str, attributes: Mapping[str, str]) -> dict[str, Kind]:
    """Values that columns must hold to become attributes of items that are added to a version.

    Args:
        attributes: the kind of each, as the version has it.
    """
    return {
        name: replace(KINDS[kind], name=f"{KINDS[kind].name}, as version {version} has it")
        for name, kind in attributes.items()
    }


def read_column(name: str, column: pa.ChunkedArray, kind: Kind) -> pa.ChunkedArray:
    """A column in memory as an attribute.

    Raises:
        ValueError: if its type or a value is not of the kind, or all are null and nothing else says the kind.
    """
    chunks, first_row = list[pa.Array](), 0
    for chunk in column.chunks:
        try:
            chunks.append(kind.read(chunk))
        except BadValueError as error:
            where = "" if error.row is None else f" in row {first_row + error.row}"
            raise ValueError(f"attribute {name!r} must {error.must}, got {error.got}{where}") from None
        first_row += len(chunk)
    found = pa.chunked_array(chunks, None if chunks else kind.empty)
    if pa.types.is_null(found.type):
        raise ValueError(f"attribute {name!r} must have a value for some item, got null for all: leave it out")
    return found


def check_names(names: Iterable[str]) -> None:
    """Raises:
    ValueError: if an attribute cannot be called so.
    """
    found = dict[str, str]()
    for name in names:
        alike = name.casefold()
        if not is_unicode(name):
            raise ValueError(f"attributes must have names of Unicode characters, got {name!r}")
        if not name or name.startswith("$"):
            raise ValueError(
                f"attributes must have names that do not begin with $, as operators of filters do, got {name!r}: store "
                "it under another name, such as --data.attributes price=COLUMN"
            )
        if alike in TAKEN:
            raise ValueError(
                f"attributes must have other names than {', '.join(TAKEN)}, got {name!r}: store it under another name, "
                f"as --data.attributes item_{name}={name} does"
            )
        if alike in found:
            raise ValueError(
                f"attributes must have names that differ in more than case, got {found[alike]!r} and {name!r}: leave "
                "out one of them"
            )
        found[alike] = name
