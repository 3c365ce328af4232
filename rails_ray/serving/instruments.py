"""Contract of metrics collectors. Imports nothing, as proxies count too."""

from collections.abc import Sequence
from typing import Protocol


class Instrument(Protocol):
    """Something that collects numbers."""

    def __call__(self, value: float, **labels: str) -> None:
        """Add a value to a counter, put it into a histogram, or set a gauge to it; a value for each label."""


class Instruments(Protocol):
    """Makes instruments, each name once."""

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """A sum of what is added."""

    def gauge(self, name: str, about: str, labels: Sequence[str] = (), *, is_one: bool = False) -> Instrument:
        """The last value.

        Args:
            is_one: whether the last value is the only one, whatever its labels.
        """

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """How many values are at most each bound."""
