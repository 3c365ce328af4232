"""What went wrong on a worker, told to the caller as if it had happened here."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayError

from rails_ray.errors import RailsRayError, UnavailableError


@contextmanager
def told_plainly() -> Iterator[None]:
    """Inside the block, a failure of Ray that was caused by one of our own errors is raised as that error.

    Ray's error is an instance of both, but its text is a traceback of another process.

    Raises:
        UnavailableError: for a failure that is Ray's own: a worker that was killed too often, say.
    """
    try:
        yield
    except Exception as error:
        cause = own_cause(error)
        if cause is None and isinstance(error, RayError):
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise UnavailableError(f"the cluster must carry out the work, got: {reason}: try again") from error
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
