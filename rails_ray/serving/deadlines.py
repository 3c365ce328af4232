"""When an answer is of no more use: to its client, and to a request that waits for a heavy ranker."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from math import inf

from rails_ray.errors import LateError
from rails_ray.schema.requests import BudgetInput

EARLY_S = 0.002  # by which an event loop may end a wait too soon: uvloop's timers count whole milliseconds

ends_at = ContextVar("ends_at", default=inf)  # when the client stops waiting, by `time.monotonic`


def left_s() -> float:
    """Seconds that the client still waits; 0 or less if it does not."""
    return ends_at.get() - time.monotonic()


def is_late() -> bool:
    """Return whether the client has stopped waiting, or is about to."""
    return left_s() <= EARLY_S


class Deadline:
    """The time that a request has left, in seconds.

    Args:
        limit_ms: the latest deadline of a request, and that of one without its own; None for none.
    """

    def __init__(self, budget: BudgetInput | None, clock: Callable[[], float], limit_ms: float | None = None) -> None:
        self.clock = clock
        own = None if budget is None else budget.deadline_ms
        self.deadline_ms = min((given for given in (own, limit_ms) if given is not None), default=None)
        self.end = None if self.deadline_ms is None else clock() + self.deadline_ms / 1000

    def left(self) -> float | None:
        """None without a deadline; 0 if it has passed."""
        return None if self.end is None else max(self.end - self.clock(), 0.0)

    def reason(self, answer: BaseException | None = None) -> str:
        """Why an answer is missing: the deadline, or what came in its place before that."""
        left = self.left()
        if left is not None and left <= EARLY_S and (answer is None or isinstance(answer, LateError)):
            return f"the deadline of {self.deadline_ms:g} ms came first"
        return str(answer)

    @property
    def has_passed(self) -> bool:
        return self.left() == 0
