"""Timers that nested code reports to the nearest `noted()` block; the code in between passes nothing on.

    with noted() as seconds:        # the block that collects
        retriever.search(...)
    seconds["score"]

    @part("score")                  # wherever it is done
    def candidate_scores(...): ...

A part inside a part of the same name is counted once. Where nobody wants to know, nothing is noted.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class _Notes:
    seconds: dict[str, float] = field(default_factory=dict)
    under_way: set[str] = field(default_factory=set)


_notes = ContextVar[_Notes | None]("notes", default=None)


@contextmanager
def noted() -> Iterator[Mapping[str, float]]:
    """Inside the block, in this thread or task, the seconds of each part are added up by its name."""
    notes = _Notes()
    token = _notes.set(notes)
    try:
        yield notes.seconds
    finally:
        _notes.reset(token)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Note how long the block takes, or the function that it decorates."""
    notes = _notes.get()
    if notes is None or name in notes.under_way:
        yield
        return
    notes.under_way.add(name)
    began = time.perf_counter()
    try:
        yield
    finally:
        notes.seconds[name] = notes.seconds.get(name, 0.0) + time.perf_counter() - began
        notes.under_way.discard(name)
