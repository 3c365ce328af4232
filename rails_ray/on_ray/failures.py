"""Raise a worker's failure as if it had happened in the caller's process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayError

from rails_ray.errors import RailsRayError, UnavailableError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Inside the block, raise one of our own errors in place of the Ray failure that it caused.

    Ray's error is an instance of both, but its text is a traceback of another process.

    Raises:
        UnavailableError: if the failure is Ray's own, such as a worker that was killed too often.
    """
    try:
        yield
    except Exception as error:
        cause = own_cause(error)
        if cause is not None and cause.args:
            cause.args = (_without_retries(str(cause.args[0])), *cause.args[1:])
        if cause is None and isinstance(error, RayError):
            lines = [line.strip() for line in _without_retries(str(error)).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise UnavailableError(f"the cluster must complete the work, got: {reason}: try again") from error
        if cause is None or cause is error:
            raise
        raise cause from None


def _without_retries(message: str) -> str:
    """A message without what Ray Data adds about its retries."""
    return message.partition("\nFailed to apply UDF")[0]


def own_cause(error: BaseException) -> Exception | None:
    """Our own error or the `ValueError` beneath a failure; None if there is none."""
    found: BaseException | None = error
    while found is not None:
        is_ours = isinstance(found, RailsRayError | ValueError | FloatingPointError)
        if is_ours and not isinstance(found, RayError):
            return found  # type: ignore[return-value]
        found = getattr(found, "cause", None) or found.__cause__
    return None
