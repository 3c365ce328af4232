"""Numbers as people write them."""

import re
from fractions import Fraction

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def count(text: str, name: str) -> int:
    """The whole number that a text such as 4000, 10k, 100M or 1.5B stands for.

    Args:
        name: what is counted, for the message.

    Raises:
        ValueError: if it is no whole number of at least 1.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmb]?)", text.strip().casefold().replace("_", ""))
    value = Fraction(0) if found is None else Fraction(found[1]) * SUFFIXES[found[2]]
    if value < 1 or value.denominator != 1:
        raise ValueError(f"{name} must be a whole number of at least 1, such as 4000, 10k, 100M or 1.5B, got {text!r}")
    return value.numerator


def shown_bytes(size_bytes: float) -> str:
    """A size in decimal units, three digits of it: 83.2 GB."""
    return _shown(size_bytes, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def shown_seconds(seconds: float) -> str:
    """A time in ms, s, min or h, three digits of it."""
    if seconds < 1e-4:
        return "<0.1 ms"
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else _shown(seconds, 60, ("s", "min", "h"))


def _shown(value: float, step: int, units: tuple[str, ...]) -> str:
    *smaller, largest = units
    for unit in smaller:
        if value < step:
            return f"{value:.3g} {unit}"
        value /= step
    return f"{value:,.0f} {largest}" if value >= 1000 else f"{value:.3g} {largest}"
