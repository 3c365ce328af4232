"""Commands that run until a signal ends them, and the messages that they print until then."""

import signal
from collections.abc import Callable
from typing import Any

from rails_ray.cli.base import fail, out


def on_signals() -> Callable[[], None]:
    """Make SIGTERM do what Ctrl-C does.

    Returns:
        A function that raises KeyboardInterrupt once a signal has come. Python loses the exception of one that comes
        while an object is finalized.
    """
    given = list[int]()

    def note(number: int, frame: Any) -> None:
        given.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if given:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return check


def telling(keys_file: str | None) -> Callable[[], None]:
    """A function that reports, at each call, what has changed about the file of keys."""
    from rails_ray.serving.http.keys import KeysFile

    if keys_file is None:
        return lambda: None
    keys, last_problem = KeysFile(keys_file), None

    def tell() -> None:
        nonlocal last_problem
        problem = keys.look().problem
        if problem != last_problem:
            last_problem = problem
            if problem is None:
                out.print(f"the keys of {keys_file} are valid", highlight=False, soft_wrap=True)
            else:
                fail(problem)

    return tell
