"""Progress of a long pass over items or queries, from where it is counted to where it is shown.

    with shown(on_progress):                  # the caller that shows it
        rank_all(...)

    advance(done, total, "queries ranked")    # wherever it is done

Where nobody shows it, nothing is counted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Show = Callable[[int, int, str], None]
"""Called with (number done, number of all, what they are)."""

_show = ContextVar[Show | None]("show", default=None)


@contextmanager
def shown(show: Show) -> Iterator[None]:
    """Inside the block, in this thread or task, `show` is called with every advance."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def advance(done: int, total: int, what: str) -> None:
    """Say that `done` of `total` are done."""
    show = _show.get()
    if show is not None:
        show(done, total, what)
