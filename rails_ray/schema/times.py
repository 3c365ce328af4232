"""Times as people write them, as seconds since 1970: the unit of a number shows by its size.

Up to 1e11 they are seconds (the year 5138), up to 1e14 milliseconds, up to 1e17 microseconds, beyond that nanoseconds.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

UNITS = (("seconds", 1, 10**11), ("milliseconds", 10**3, 10**14), ("microseconds", 10**6, 10**17))
"""Name of each unit, how many of it are a second, and the largest number of it."""
NANOSECONDS = ("nanoseconds", 10**9)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TELLING_S = (10**8, 10**10)
"""Seconds (1973 to 2286) between which a number in its unit tells that unit: others may be near 1970 in another."""
UNKNOWN_TIME = -(2**62)  # of an interaction: no time that anyone means, and differences to it fit 64 bits


def unit_of(number: float) -> tuple[str, int]:
    """The unit of a number by its size, and how many of it are a second."""
    return next(((name, size) for name, size, largest in UNITS if abs(number) <= largest), NANOSECONDS)


def tells(number: float, size: float) -> bool:
    """Return whether a number can hardly be of another unit than that of which `size` are a second."""
    least, most = TELLING_S
    return least < abs(number) / size <= most


def common_unit(numbers: Sequence[float]) -> tuple[str, int]:
    """The unit of several numbers: that of the largest.

    Raises:
        ValueError: if another number tells another unit.
    """
    largest = max(numbers, key=abs, default=0)
    unit, size = unit_of(largest)
    for number in numbers:
        other, other_size = unit_of(number)
        if other != unit and tells(number, other_size):
            raise ValueError(
                f"hold times of one unit, got {number:g} and {largest:g}, by their size {other} and {unit}: write all "
                "in seconds, or as texts in ISO 8601"
            )
    return unit, size


def seconds_of(times: Sequence[Any]) -> list[int]:
    """Seconds since 1970 of numbers of one unit, or of texts in ISO 8601, in UTC where they name no zone.

    Raises:
        ValueError: if one is neither, or numbers are of several units.
    """
    numbers = [one for one in times if isinstance(one, int | float)]
    _, size = common_unit(numbers)
    return [int(one // size) if isinstance(one, int | float) else _parsed(one) for one in times]


def microseconds_of(time: int | float | str) -> int:
    """Microseconds since 1970 of a number, whose unit shows by its size, or of a text as `seconds_of` takes it.

    Raises:
        ValueError: if it is no such text.
    """
    if isinstance(time, str):
        return (_moment(time) - EPOCH) // timedelta(microseconds=1)
    _, size = unit_of(time)
    return time * 10**6 // size if isinstance(time, int) else round(time * 10**6 / size)


def _parsed(text: str) -> int:
    return (_moment(text) - EPOCH) // timedelta(seconds=1)


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise ValueError(f"hold numbers, or texts in ISO 8601 such as 2026-01-31T23:59:00Z, got {text!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
