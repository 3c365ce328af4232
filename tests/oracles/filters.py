"""Filters item by item, each value in Python and None for a missing one."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda own, other: own > other,
    "$gte": lambda own, other: own >= other,
    "$lt": lambda own, other: own < other,
    "$lte": lambda own, other: own <= other,
}


def passes(filter: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether a filter passes an item."""
    return judged(filter, item) is True


def judged(filter: Mapping[str, Any], item: Mapping[str, Any]) -> bool | None:
    """True, False, or None where a missing value leaves it open."""
    return all_of(of_field(name, own, item) for name, own in filter.items())


def of_field(name: str, given: Any, item: Mapping[str, Any]) -> bool | None:
    if name == "$and":
        return all_of(judged(own, item) for own in given)
    if name == "$or":
        return negated(all_of(negated(judged(own, item)) for own in given))
    if name == "$not":
        return negated(judged(given, item))
    if not isinstance(given, Mapping):
        given = {"$eq": given}
    return all_of(compared(operator, literal, item[name]) for operator, literal in given.items())


def compared(operator: str, literal: Any, value: Any) -> bool | None:
    if operator == "$exists":
        return (value is not None) is literal
    if operator == "$not":
        return negated(all_of(compared(name, own, value) for name, own in literal.items()))
    if value is None:
        return None
    if operator in ORDERS:
        return ORDERS[operator](value, like(literal, value))
    literals = literal if operator in ("$in", "$nin") else [literal]
    is_one = any(
        own == like(other, own) for own in (value if isinstance(value, list) else [value]) for other in literals
    )
    return is_one if operator in ("$eq", "$in") else not is_one


def like(literal: Any, value: Any) -> Any:
    """A literal as values of its column are; numbers of times are seconds."""
    if not isinstance(value, datetime):
        return literal
    if isinstance(literal, str):
        found = datetime.fromisoformat(literal)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return datetime.fromtimestamp(literal, UTC)


def all_of(found: Iterable[bool | None]) -> bool | None:
    known = list(found)
    if False in known:
        return False
    return None if None in known else True


def negated(found: bool | None) -> bool | None:
    return None if found is None else not found
