"""Filters: which items a search may find, by their attributes.

    {"lang": "fr", "price": {"$lt": 20}, "$or": [{"tags": {"$in": ["a", "b"]}}, {"year": {"$gte": 2020}}]}

| operator                | what it passes                                                                         |
|-------------------------|----------------------------------------------------------------------------------------|
| `$eq` `$ne`             | values that are the literal, or are not; a bare literal stands for `$eq`               |
| `$gt` `$gte` `$lt` `$lte` | numbers, times and strings by their order                                            |
| `$in` `$nin`            | values that are one of a list, or none of it                                           |
| `$exists`               | items that have a value (`true`), or have none (`false`)                               |
| `$and` `$or` `$not`     | what all, one at least, or none of some filters pass; fields side by side are an `$and` |

A list of strings is what one of its strings is: `$eq` and `$in` pass it if one does, `$ne` and `$nin` if none does. An
item without a value passes nothing that asks for one, `$ne`, `$nin` and `$not` neither: a comparison is then neither
true nor false, and a filter passes what it is true of (three-valued logic, as in SQL).
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from rails_ray.item_ids import is_unicode
from rails_ray.schema.fields import LARGEST_TIME, LONGEST_ECHO, LONGEST_TIME, shortened
from rails_ray.schema.times import microseconds_of

DEEPEST = 16  # levels of a filter
MOST_CONDITIONS = 1000
MOST_VALUES = 10_000  # of a list
LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**63 - 1

ORDERS = ("$gt", "$gte", "$lt", "$lte")
OPERATORS = ("$eq", "$ne", *ORDERS, "$in", "$nin", "$exists")
LOGIC = ("$and", "$or", "$not")
OPPOSITES = {"$ne": "$eq", "$nin": "$in"}
ORDERED = ("int", "float", "string", "timestamp")  # kinds that have an order
LITERALS = {
    "bool": "true or false",
    "int": "an integer of 64 bits",
    "float": "a number",
    "string": "a string",
    "timestamp": "a time in ISO 8601, such as 2026-01-31T23:59:00Z, or in seconds since 1970",
    "strings": "a string",
}
"""How a literal of each kind of column is written."""


@dataclass(frozen=True)
class Comparison:
    """
    operator: $eq, $gt, $gte, $lt, $lte, $in or $exists.
    value: the literal, or those of `$in`; microseconds since 1970 of a time.
    """

    column: str
    operator: str
    value: Any


@dataclass(frozen=True)
class AllOf:
    terms: "Sequence[Condition]"


@dataclass(frozen=True)
class AnyOf:
    terms: "Sequence[Condition]"


@dataclass(frozen=True)
class Negation:
    term: "Condition"


Condition = Comparison | AllOf | AnyOf | Negation


def parse(given: Any, columns: Mapping[str, str] | None = None) -> Condition:
    """Read a filter.

    Args:
        columns: kind of each column that it may name; None to check neither names nor the types of literals.

    Raises:
        ValueError: if it is no filter, or does not fit the columns.
    """
    return _Reading(columns).filter(given, "filter", 1)


def canonical(given: Mapping[str, Any]) -> str:
    """The text of a filter, for all orders of its fields."""
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """A filter of a request, whose columns are not known yet."""
    try:
        parse(given)
    except ValueError as error:
        message = str(error).removeprefix("filter")  # the place of the field comes before it
        raise PydanticCustomError("filter", "{message}", {"message": message}) from None
    return given


FilterInput = Annotated[dict[str, Any], AfterValidator(_checked)]


@dataclass
class _Reading:
    columns: Mapping[str, str] | None
    num_conditions: int = field(default=0)

    def filter(self, given: Any, where: str, depth: int) -> Condition:
        fields = self._object(given, where, depth)
        terms = [self._field(name, own, where, depth) for name, own in fields.items()]
        return terms[0] if len(terms) == 1 else AllOf(terms)

    def _field(self, name: str, given: Any, where: str, depth: int) -> Condition:
        place = _place(where, name)
        if name in ("$and", "$or"):
            if not isinstance(given, list | tuple) or not given:
                raise ValueError(f"{place} must be a list of at least one filter, got {shortened(given)}")
            terms = [self.filter(own, f"{place}[{number}]", depth + 1) for number, own in enumerate(given)]
            return AllOf(terms) if name == "$and" else AnyOf(terms)
        if name == "$not":
            return Negation(self.filter(given, place, depth + 1))
        if name.startswith("$"):
            raise ValueError(f"{where} must have columns, or {', '.join(LOGIC)}, got {shortened(name)}")
        if self.columns is not None and name not in self.columns:
            attributes = f"must name attributes of the version, {', '.join(self.columns)}"
            if not self.columns:
                attributes = "must be left out for a version whose items have no attributes"
            raise ValueError(f"{where} {attributes}, got {shortened(name)}")
        if isinstance(given, Mapping):
            return self._operators(name, given, place, depth + 1)
        return self._comparison(name, "$eq", given, place)

    def _operators(self, column: str, given: Any, where: str, depth: int) -> Condition:
        fields, terms = self._object(given, where, depth), list[Condition]()
        if not fields:
            raise ValueError(f"{where} must have an operator, one of {', '.join(OPERATORS)}, got none")
        for name, own in fields.items():
            place = _place(where, name)
            if name == "$not":
                terms.append(Negation(self._operators(column, own, place, depth + 1)))
            elif name in OPPOSITES:
                terms.append(Negation(self._comparison(column, OPPOSITES[name], own, place)))
            elif name in OPERATORS:
                terms.append(self._comparison(column, name, own, place))
            else:
                raise ValueError(f"{where} must have operators among {', '.join(OPERATORS)}, got {shortened(name)}")
        return terms[0] if len(terms) == 1 else AllOf(terms)

    def _comparison(self, column: str, operator: str, given: Any, where: str) -> Condition:
        self.num_conditions += 1
        if self.num_conditions > MOST_CONDITIONS:
            raise ValueError(f"filter must have at most {MOST_CONDITIONS} conditions, got more")
        kind = None if self.columns is None else self.columns[column]
        if operator == "$exists":
            if not isinstance(given, bool):
                raise ValueError(f"{where} must be true or false, got {shortened(given)}")
            has_value = Comparison(column, operator, True)
            return has_value if given else Negation(has_value)
        if operator == "$in":
            return Comparison(column, operator, self._values(given, kind, where))
        if operator in ORDERS and kind is not None and kind not in ORDERED:
            raise ValueError(
                f"{where} must compare a column that has an order, got one of type {kind}: take $eq or $in"
            )
        return Comparison(column, operator, _literal(given, kind, where))

    def _values(self, given: Any, kind: str | None, where: str) -> list[Any]:
        if not isinstance(given, list | tuple):
            raise ValueError(f"{where} must be a list, got {shortened(given)}")
        if len(given) > MOST_VALUES:
            raise ValueError(f"{where} must have a length of at most {MOST_VALUES}, got {len(given)}")
        return [_literal(own, kind, f"{where}[{number}]") for number, own in enumerate(given)]

    def _object(self, given: Any, where: str, depth: int) -> Mapping[str, Any]:
        if depth > DEEPEST:
            raise ValueError(f"filter must nest at most {DEEPEST} levels deep, got more")
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} must be a JSON object, got {shortened(given)}")
        for name in given:
            if not isinstance(name, str):
                raise ValueError(f"{where} must have strings as keys, got {shortened(name)}")
        return given


def _place(where: str, name: str) -> str:
    """The place of a field, as a client would write it: filter.price.$lt."""
    is_name = name.removeprefix("$").isidentifier() and len(name) <= LONGEST_ECHO
    return f"{where}.{name}" if is_name else f"{where}[{shortened(name)}]"


def _literal(given: Any, kind: str | None, where: str) -> Any:
    """The value of a literal for a kind of column; None for any kind."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    is_finite = is_number and (isinstance(given, int) or math.isfinite(given))
    match kind:
        case None if isinstance(given, bool) or is_finite or (isinstance(given, str) and is_unicode(given)):
            return given
        case "bool" if isinstance(given, bool):
            return given
        case "int" if is_number and isinstance(given, int) and LEAST_INTEGER <= given <= MOST_INTEGER:
            return given
        case "float" if is_finite and abs(given) <= sys.float_info.max:
            return float(given)
        case "string" | "strings" if isinstance(given, str) and is_unicode(given):
            return given
        case "timestamp":
            return _time(given, is_finite, where)
    raise _refused(given, kind, where)


def _time(given: Any, is_finite: bool, where: str) -> int:
    is_text = isinstance(given, str) and len(given) <= LONGEST_TIME
    if not is_text and not (is_finite and abs(given) <= LARGEST_TIME):
        raise _refused(given, "timestamp", where)
    try:
        return microseconds_of(given)
    except ValueError:
        raise _refused(given, "timestamp", where) from None


def _refused(given: Any, kind: str | None, where: str) -> ValueError:
    must = "a string, a finite number, or true or false"
    if kind is not None:
        must = f"{LITERALS[kind]}, as the column is of type {kind}"
    advice = ""
    if given is None:
        advice = ': {"$exists": false} passes items without a value'
    elif isinstance(given, list | tuple):
        advice = ": take $in for one of several values"
    return ValueError(f"{where} must be {must}, got {shortened(given)}{advice}")
