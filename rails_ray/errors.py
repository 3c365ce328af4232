"""The failures a caller can act on. Arguments that cannot be right are plain `ValueError`s.

    RailsRayError
    |-- NotFoundError       a run, a version or a data file that is not there: name another
    |-- DamagedError        bytes that are not what was published: restore or publish again
    |-- StorageError        storage that cannot be used: no credentials, denied, unreachable, full: mend it, run again
    |-- ConflictError       someone else wrote first: read again, then decide
    |-- TrainingError       a training run that ended without a model: read its logs, start again
    |-- LostWorkerError     a worker that others wait for in vain: the run goes on from its last checkpoint
    |-- AccessError         a server or cluster that refuses the key: give another
    |-- UnsupportedError    a version that lacks what is asked of it: calibrate it, or ask for something else
    |-- GateError           a version that is not good enough to publish: train a better one, or lower the gate
    `-- UnavailableError    a server, a shard or a cluster that does not answer or did not end its work: try again

Each message is one sentence: what must hold, what came, and what to do where that is not plain.
"""


class RailsRayError(Exception):
    """Root of the errors that this package raises on its own account."""


class NotFoundError(RailsRayError):
    """Something named by the caller does not exist."""


class DamagedError(RailsRayError):
    """A stored artefact does not hold the bytes that its manifest names."""


class StorageError(RailsRayError):
    """The storage itself cannot be used."""


class ConflictError(RailsRayError):
    """Someone else wrote first."""


class TrainingError(RailsRayError):
    """A training run ended without a model."""


class LostWorkerError(RailsRayError):
    """A worker of a training run has died, or does not answer the others."""


class AccessError(RailsRayError):
    """A server or a cluster refuses the key or token, or the lack of one."""


class UnsupportedError(RailsRayError):
    """A version lacks what is asked of it."""


class GateError(RailsRayError):
    """A version is not good enough to be published."""


class UnavailableError(RailsRayError):
    """A server, a shard or a cluster does not answer, or has not ended its work."""
