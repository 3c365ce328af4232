"""The failures that a caller can act on. A wrong argument is a plain `ValueError`.

    RailsRayError
    |-- NotFoundError       a run, a version or a data file does not exist: name another
    |-- DamagedError        stored bytes are not what was written: restore or publish again
    |-- StorageError        storage cannot be used (no credentials, denied, unreachable, full): fix it, run again
    |-- ConflictError       someone else wrote first: read again, then decide
    |-- TrainingError       a training run ended without a model: read its logs, start again
    |-- LostWorkerError     a worker died or stopped answering: the run resumes from its last checkpoint
    |-- AccessError         a server or cluster refuses the key: give another
    |-- UnsupportedError    a version lacks what a request needs: calibrate it, or ask for something else
    |-- GateError           a version is not good enough to publish: train a better one, or lower the gate
    `-- UnavailableError    a server, a shard or a cluster does not answer or did not finish its work: try again
        |-- LostGpuError    a GPU fails: ask another replica; this one is replaced
        |-- LateError       an answer did not come in time: allow more, or ask for less
        `-- BusyError       all places of a server or a shard are taken: ask again a little later

Each message is one sentence: what must hold, what came, and what to do if that is not obvious.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RailsRayError(Exception):
    """Base class of the errors of this package."""


class NotFoundError(RailsRayError):
    """Something that the caller names does not exist."""


class DamagedError(RailsRayError):
    """A stored artefact does not hold the bytes that were written."""


class StorageError(RailsRayError):
    """The storage itself cannot be used."""


class ConflictError(RailsRayError):
    """Someone else wrote first."""


class TrainingError(RailsRayError):
    """A training run ended without a model."""


class LostWorkerError(RailsRayError):
    """A worker of a training run has died, or does not answer the others."""


class AccessError(RailsRayError):
    """A server or a cluster refuses the key or token, or needs one."""


class UnsupportedError(RailsRayError):
    """A version lacks what a request needs."""


class GateError(RailsRayError):
    """A version is not good enough to be published."""


class UnavailableError(RailsRayError):
    """A server, a shard or a cluster does not answer, or did not finish its work."""


class LostGpuError(UnavailableError):
    """A GPU does not work any more, as far as this process can tell."""


class LateError(UnavailableError):
    """An answer did not come in the time that was allowed for it."""


class BusyError(UnavailableError):
    """A server or a shard has no place for one more request."""


@contextmanager
def renaming(former: str, name: str | Callable[[re.Match[str]], str]) -> Iterator[None]:
    """Inside the block, sentences about an argument have the name that the caller gave it.

    Args:
        former: a regular expression.
        name: what takes the place of its first match.
    """
    try:
        yield
    except (ValueError, UnavailableError) as error:
        kind = ValueError if isinstance(error, ValueError) else type(error)
        raise kind(re.sub(former, name, str(error), count=1)) from None
