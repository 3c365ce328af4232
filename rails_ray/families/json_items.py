"""Items of a request, as `changing.add` takes them."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from rails_ray.data.forms import NamedItems
from rails_ray.families.given_items import items_of
from rails_ray.families.version import Version
from rails_ray.schema.fields import check_embedding, shortened
from rails_ray.schema.items import GIVEN_BY, ItemInput
from rails_ray.schema.times import unit_of
from rails_ray.storage.attributes import TYPES
from rails_ray.storage.parquet import vectors

LEAST, MOST = -(2**63), 2**63 - 1  # of an integer


def items_in(version: Version, items: Sequence[ItemInput]) -> pa.Table:
    """A table of items that are to be added to a version; texts are read with their titles, as a data set's are.

    Raises:
        ValueError: if one lacks what the version's model reads, or an attribute is wrong.
    """
    has_titles = "title" in version.described.columns or any(item.title is not None for item in items)
    titles = [item.title or "" for item in items] if has_titles else None
    table = items_of(len(items), [item.id for item in items], titles)
    table = table.append_column("input", pa.chunked_array([_inputs(version, items)]))
    kinds = version.described.attributes or {}
    for number, item in enumerate(items):
        for name in item.attributes or {}:
            if name not in kinds:
                known = f"one of {', '.join(kinds)}" if kinds else f"left out, as version {version.name} has none"
                raise ValueError(f"items[{number}].attributes must be {known}, got {shortened(name)}")
    for name, kind in kinds.items():
        values = [
            _value(f"items[{number}].attributes.{name}", kind, (item.attributes or {}).get(name))
            for number, item in enumerate(items)
        ]
        table = table.append_column(name, pa.chunked_array([pa.array(values, TYPES[kind])]))
    return table


def _inputs(version: Version, items: Sequence[ItemInput]) -> pa.Array:
    """The texts or the vectors that the model reads."""
    form, encoder = version.family.form, version.query_encoder
    [wanted] = [name for name in GIVEN_BY[1:] if name in version.described.query] or ["text"]
    takes = {wanted} if encoder is None else {wanted, "text"}
    given = [next(name for name in GIVEN_BY if getattr(item, name) is not None) for item in items]
    wrong = next((number for number, name in enumerate(given) if name not in takes), None)
    if wrong is None and len(set(given)) > 1:
        wrong = next(number for number, name in enumerate(given) if name != wanted)
    if wrong is not None:
        by = wanted if encoder is None else f"{wanted} or text, each alike"
        raise ValueError(f"items[{wrong}] must be given by {by} for version {version.name}, got {given[wrong]}")
    if wanted == "text":
        texts = [item.text or "" for item in items]
        joined = [f"{item.title}\n{text}" if item.title else text for item, text in zip(items, texts, strict=True)]
        return pa.array(joined, pa.string())
    if isinstance(form, NamedItems):
        named = [form.item(item.embeddings or {}, f"items[{number}]") for number, item in enumerate(items)]
        return vectors(np.array(named, np.float32))
    if given[0] == "text":
        assert encoder is not None
        return vectors(encoder.item_features([item.text or "" for item in items]).tensor.numpy())
    rows = [item.embedding or [] for item in items]
    width = version.model.vector_width or len(rows[0])
    for number, row in enumerate(rows):
        check_embedding(row, width, f"items[{number}]", most=float(np.finfo(np.float32).max))
    return vectors(np.array(rows, np.float32))


def _value(where: str, kind: str, value: Any) -> Any:
    """The value of an attribute, as Arrow takes it; None where there is none."""
    if value is None:
        return None
    try:
        return READ[kind](value)
    except (ValueError, TypeError, OverflowError, OSError):  # the last, of a time that no calendar has
        raise ValueError(f"{where} must be {WORDS[kind]}, got {shortened(value)}") from None


def _of_type(*types: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in types:
            raise TypeError
        return value

    return read


def _integer(value: Any) -> int:
    number: int = _of_type(int)(value)
    if not LEAST <= number <= MOST:
        raise OverflowError
    return number


def _number(value: Any) -> float:
    number = float(_of_type(int, float)(value))
    if not np.isfinite(number):
        raise ValueError
    return number


def _time(value: Any) -> datetime:
    if isinstance(value, str):
        found = datetime.fromisoformat(value)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    number = _number(value)
    return datetime.fromtimestamp(number / unit_of(number)[1], UTC)


def _strings(value: Any) -> list[str]:
    return [_of_type(str)(own) for own in _of_type(list)(value)]


READ: dict[str, Callable[[Any], Any]] = {
    "bool": _of_type(bool),
    "int": _integer,
    "float": _number,
    "string": _of_type(str),
    "timestamp": _time,
    "strings": _strings,
}
WORDS = {
    "bool": "true or false",
    "int": "an integer of 64 bits",
    "float": "a finite number",
    "string": "a string",
    "timestamp": "a text in ISO 8601, or a number of seconds since 1970",
    "strings": "a list of strings",
}
