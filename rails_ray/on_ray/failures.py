"""What went wrong on a worker, told to the caller as if it had happened here."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayError

from rails_ray.errors import RailsRayError


@contextmanager
def told_plainly() -> Iterator[None]:
    """Inside the block, a failure of Ray that was caused by one of our own errors is raised as that error.

    Ray's error is an instance of both, but its text is a traceback of another process.
    """
    try:
        yield
    except Exception as error:
        cause = own_cause(error)
        if cause is None or cause is error:
            raise
        raise cause from None


def own_cause(error: BaseException) -> Exception | None:
    """The error of ours, or the `ValueError`, that lies beneath a failure, if there is one."""
    found: BaseException | None = error
    while found is not None:
        is_ours = isinstance(found, RailsRayError | ValueError | FloatingPointError)
        if is_ours and not isinstance(found, RayError):
            return found  # type: ignore[return-value]
        found = getattr(found, "cause", None) or found.__cause__
    return None
