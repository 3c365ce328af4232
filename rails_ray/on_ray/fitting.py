"""Needs of every run of Ray Train: retries, a checkpoint timer, and the reason of a failure."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig
from ray.train.v2.api.config import FailureConfig, ScalingConfig
from ray.train.v2.api.config import RunConfig as RayRunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import TrainingFailedError
from ray.train.v2.torch.torch_trainer import TorchTrainer  # what ray.train.torch names, as type checkers cannot see

from rails_ray.errors import LostWorkerError
from rails_ray.on_ray.failures import own_cause

CHECKPOINT_S = 60.0
MAX_RESTARTS = 3  # after which a run whose workers die fails


def fit_to_end(
    worker: Callable[[], None],
    scaling: ScalingConfig,
    backend: TorchConfig | None,
    name: str,
) -> None:
    """Train to the end, and retry if processes die. Our own errors would recur, so they are not retried.

    Args:
        backend: of the workers' process group; None for workers without one.
    """
    for restarts_left in reversed(range(MAX_RESTARTS + 1)):
        # We read nothing that Ray Train keeps: checkpoints are in our storage, on S3 or not.
        with tempfile.TemporaryDirectory(prefix="rails-ray-") as bookkeeping:
            run_config = RayRunConfig(
                name=name,
                storage_path=bookkeeping,
                # How often Ray asks for workers that have no room, a minute each time, before it reports that.
                failure_config=FailureConfig(controller_failure_limit=2),
            )
            of_run: dict[str, Any] = {"scaling_config": scaling, "run_config": run_config}
            if backend is None:
                trainer = DataParallelTrainer(worker, **of_run)
            else:
                trainer = TorchTrainer(worker, torch_config=backend, **of_run)
            try:
                trainer.fit()
            except RayActorError:  # the controller died, and the workers with it
                if not restarts_left:
                    raise
            except TrainingFailedError as error:
                failed = getattr(error, "worker_failures", {}).values()
                causes = [own_cause(failure) for failure in failed]
                have_died = [cause is None or isinstance(cause, LostWorkerError) for cause in causes]
                if not restarts_left or not have_died or not all(have_died):
                    raise
            else:
                return


class Every:
    """True at most once in `seconds`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()

    def __call__(self) -> bool:
        now = self._clock()
        is_due = now - self._last >= self._seconds
        if is_due:
            self._last = now
        return is_due


def reason_of(error: BaseException) -> str:
    """One line on why a worker failed. A worker's own error comes before the loss that the others noticed."""
    failures = (*getattr(error, "worker_failures", {}).values(), error)
    causes = [cause for cause in map(own_cause, failures) if cause is not None]
    if causes:
        return str(min(causes, key=lambda cause: isinstance(cause, LostWorkerError)))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
