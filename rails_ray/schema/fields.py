"""Types of the fields of requests, and how a sentence about a request repeats what came."""

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, StrictInt, StrictStr
from pydantic_core import CoreSchema, core_schema

SUPPORTS = "supports"  # of a query that is read, not of a request: a heavy ranker's score of each support
LARGEST_INTEGER = 2**31 - 1  # far above what an index holds, and a tensor takes it
LARGEST_TIME = 2**63  # nanoseconds of a signed integer of 64 bits
LONGEST_TIME = 64  # characters
LARGEST_NUMBER = 1e6  # of an embedding: far above what towers make, far below where float32 products overflow
LONGEST_ECHO = 60  # characters of what a request said, in a sentence about it


class _Id:
    """A union that has one error, at its own place: a client knows nothing of its branches."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        message = "Input should be a string or an integer"
        return core_schema.custom_error_schema(handler(source), "item_id", custom_error_message=message)


class _Time:
    """A number or a text, with one error, as `_Id` has it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        message = f"Input should be a number up to {LARGEST_TIME:g} or a text in ISO 8601"
        return core_schema.custom_error_schema(handler(source), "time", custom_error_message=message)


class _Key:
    """An integer as a key of a JSON object: a string, and only one for each number."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        digits = core_schema.str_schema(pattern="^(0|[1-9][0-9]{0,9})$")
        number = core_schema.int_schema(le=LARGEST_INTEGER)
        message = f"must have integers from 0 to {LARGEST_INTEGER} in decimal digits as keys"
        read = core_schema.chain_schema([digits, number])
        return core_schema.custom_error_schema(read, "key", custom_error_message=message)


# Numbers are strict: an integer will do for a float, but neither "3", true nor, for an integer, 3.0.
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
IdField = Annotated[StrictStr | StrictInt, _Id()]
TimeField = Annotated[
    Annotated[str, Field(strict=True, max_length=LONGEST_TIME)]
    | Annotated[int, Field(strict=True, ge=-LARGEST_TIME, le=LARGEST_TIME)]
    | Annotated[float, Field(strict=True, ge=-LARGEST_TIME, le=LARGEST_TIME, allow_inf_nan=False)],
    _Time(),
]
FeatureNumber = Annotated[int, _Key()]


def check_listed(values: Any, name: str, *, in_order: bool = True) -> None:
    """
    Args:
        in_order: whether it matters what comes first, of which a set says nothing.

    Raises:
        ValueError: unless `values` is a list. A loop would read the characters of a text, and the keys of a mapping or
            the columns of a table.
    """
    if hasattr(values, "columns"):
        raise ValueError(f"{name} must be a list, got a table: give one of its columns")
    is_one = isinstance(values, str | bytes | bytearray | Mapping) or getattr(values, "ndim", None) == 0
    if is_one or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list, got {shortened(values)} alone: put it into brackets")
    if in_order and isinstance(values, set | frozenset):
        raise ValueError(f"{name} must be a list, got a set, which has no order: give a list")


def listed(values: Iterable[Any], name: str, *, in_order: bool = True) -> list[Any]:
    """The values of an argument that is a list, of numpy, torch or Arrow too, as Python has them.

    Raises:
        ValueError: as `check_listed`.
    """
    check_listed(values, name, in_order=in_order)
    for convert in () if _is_of_times(values) else ("to_pylist", "tolist"):
        if hasattr(values, convert):
            found: list[Any] = getattr(values, convert)()
            return found
    return [_as_python(value) for value in values]


def _as_python(value: Any) -> Any:
    """A number or a text of Arrow, numpy or torch as Python has it; all else as it is."""
    if hasattr(value, "as_py"):
        return value.as_py()
    return value.item() if getattr(value, "ndim", None) == 0 and not _is_of_times(value) else value


def _is_of_times(values: Any) -> bool:
    """Tell times of numpy, which Python would have as numbers."""
    return getattr(getattr(values, "dtype", None), "kind", "") in {"m", "M"}


def lists_of(values: Iterable[Iterable[Any]], name: str) -> list[list[Any]]:
    """A list of lists, as Python has them; the order within each does not matter.

    Raises:
        ValueError: if there is one value in place of a list.
    """
    return [listed(line, f"{name}[{number}]", in_order=False) for number, line in enumerate(listed(values, name))]


def check_ids(item_ids: Sequence[Any], name: str = "ids") -> None:
    """Raises:
    ValueError: if one of them is no id.
    """
    for number, own in enumerate(item_ids):
        if isinstance(own, bool) or not isinstance(own, str | int):
            raise ValueError(f"{name}[{number}] must be a string or an integer, got {shortened(own)}")


def check_text(text: str, is_blank: bool, where: str) -> None:
    """Raises:
    ValueError: if a model finds nothing in a text.
    """
    if is_blank:
        raise ValueError(f"{where}.text must hold a letter or a digit, got {shortened(text)}")


def check_embedding(
    embedding: list[float], width: int, where: str, most: float = LARGEST_NUMBER, field: str = "embedding"
) -> None:
    """
    Args:
        where: the place of what has it, for messages.
        field: its field there.

    Raises:
        ValueError: if an embedding is not of its width, or too large.
    """
    if len(embedding) != width:
        raise ValueError(f"{where}.{field} must have {width} numbers, got {len(embedding)}")
    largest = max(embedding, key=abs)
    if abs(largest) > most:
        raise ValueError(f"{where}.{field} must hold numbers up to {most:g}, got {largest:g}")


class _Echo(reprlib.Repr):
    """Values as Python writes them, but with JSON's words, and cut short if they are long or deep."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = LONGEST_ECHO
        self.maxlevel = 3

    def repr1(self, x: Any, level: int) -> str:
        return json.dumps(x) if x is None or isinstance(x, bool) else super().repr1(x, level)


def shortened(value: Any) -> str:
    """Repeat what a request said, as short as an error may repeat it."""
    text = _Echo().repr(value)
    return text if len(text) <= LONGEST_ECHO else f"{text[: LONGEST_ECHO - 3]}..."
