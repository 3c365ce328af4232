"""Progress of work on the cluster, seen from the process that started it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError

from rails_ray import counting
from rails_ray.errors import StorageError
from rails_ray.on_ray.failures import plain_errors

POLL_S = 0.2  # seconds between looks

Result = TypeVar("Result")
OnProgress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, a short note)."""


class ProgressBoard:
    """The latest progress of each piece of work, by name."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int, str]] = {}

    def write(self, done: int, total: int, note: str, piece: str) -> None:
        self._latest[piece] = (done, total, note)

    def read(self) -> dict[str, tuple[int, int, str]]:
        return self._latest


def new_board() -> Any:
    """A board as an actor on the cluster. If its process dies, an empty board replaces it and later reports fill it."""
    return ray.remote(num_cpus=0, max_restarts=-1)(ProgressBoard).remote()


def latest(board: Any) -> dict[str, tuple[int, int, str]]:
    """The progress of each piece that has reported; nothing while the board's process is being replaced."""
    with suppress(RayActorError):
        shown: dict[str, tuple[int, int, str]] = ray.get(board.read.remote())
        return shown
    return {}


class Reporter:
    """Writes to a board, at most every POLL_S seconds.

    Args:
        board: the board; None to report nothing.
        first_step: steps already done in the checkpoint that the run resumes from.
        piece: name of the piece of work.
    """

    def __init__(
        self,
        board: Any,
        total: int,
        first_step: int = 0,
        piece: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._piece = piece
        self._total = total
        self._steps = first_step
        self._note = f", going on from step {first_step}" if first_step else ""
        self._clock = clock
        self._next = -float("inf")

    def __call__(self, done: int, loss: float) -> None:
        self._steps = done
        note = "validating" if done == self._total else f"loss {loss:.3f}"
        self._write(done, self._total, note + self._note, is_due=done == self._total)

    def count(self, done: int, total: int, what: str) -> None:
        """Write what a pass over items or queries counts: in place of the steps of a run's only piece, or else beside
        them."""
        if self._piece:
            self._write(self._steps, self._total, f"{done:,} of {total:,} {what}")
        else:
            self._write(done, total, what, is_due=done == total)

    def advance(self, done: int, total: int, what: str) -> None:
        """Write what a pass over all of the piece's work counts; a further pass goes on where the one before ended."""
        self._steps = max(self._steps, done * self._total // total)
        self._write(self._steps, self._total, what)

    def _write(self, done: int, total: int, note: str, is_due: bool = False) -> None:
        now = self._clock()
        if self._board is not None and (now >= self._next or is_due):
            self._next = now + POLL_S
            self._board.write.remote(done, total, note, self._piece)


def in_task(function: Callable[..., Result], *arguments: Any, on_progress: OnProgress | None = None) -> Result:
    """Call a function in a task on the cluster and return its result. What it counts is passed on until it ends.

    Raises:
        RailsRayError, ValueError: as the function does.
    """
    board = None if on_progress is None else new_board()
    try:
        with plain_errors():
            reference = _counted.remote(function, board, *arguments)
            if on_progress is not None:
                _pass_on_until(reference, board, on_progress)
            found: Result = ray.get(reference)
            return found
    finally:
        if board is not None:
            ray.kill(board)


def _pass_on_until(reference: Any, board: Any, on_progress: OnProgress) -> None:
    """Pass on what is new on a board until a task has ended."""
    is_done, shown = False, None
    while not is_done:
        is_done = bool(ray.wait([reference], timeout=POLL_S)[0])
        for seen in latest(board).values():
            if seen != shown:
                on_progress(*seen)
            shown = seen


@ray.remote(num_cpus=1)
def _counted(function: Callable[..., Any], board: Any, *arguments: Any) -> Any:
    with counting.shown(Reporter(board, total=0).count):
        found = function(*arguments)
    if board is not None:
        ray.get(board.read.remote())  # so that the last count is there before the result
    return found


def watch(
    work: Callable[[], Result], look: Callable[[], tuple[int, int, str] | None], on_progress: OnProgress
) -> Result:
    """Run `work` in a thread and pass on what `look` returns until it ends. Returns the result of `work`, or raises its
    exception."""
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    # A daemon: Ctrl-C must not wait for work that ends with this process's connection to the cluster.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        _pass_on(look, on_progress)
        thread.join(POLL_S)
    if failure:
        raise failure[0]
    _pass_on(look, on_progress)
    return outcome[0]


def _pass_on(look: Callable[[], tuple[int, int, str] | None], on_progress: OnProgress) -> None:
    with suppress(StorageError):  # a look that fails says nothing of the work
        seen = look()
        if seen is not None:
            on_progress(*seen)
