"""The mean of a tensor over all workers, with the gradient that makes data-parallel training exact.

    m = 1/W sum_r m_r          backward: dL/dm_r = 1/W sum_r' dL_r'/dm

Each worker's loss depends on m. Data-parallel training averages parameter gradients over the W workers, so each
worker must pass back the mean of what all of them want of m; a local gradient alone would be right only where all
losses depend on m in the same way.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rails_ray.training.collectives.group import communicating, num_workers


class _MeanOverWorkers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _mean(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _mean(gradients[0])


def _mean(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    with communicating("taking a mean"):
        dist.all_reduce(total)
    return total / num_workers()


def mean_over_workers(tensor: Tensor) -> Tensor:
    """The mean over all workers of the default process group; the tensor itself if there is no group.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    if num_workers() == 1:
        return tensor
    result: Tensor = _MeanOverWorkers.apply(tensor)  # type: ignore[no-untyped-call]
    return result
