"""Tell all workers what each of them says: its loss, for example."""

import torch
import torch.distributed as dist

from rails_ray.training.collectives.group import communicating, device, num_workers


def from_each(value: float) -> list[float]:
    """The values of all workers, by rank.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    if num_workers() == 1:
        return [value]
    own_value = torch.tensor(value, dtype=torch.float64, device=device())
    heard = [torch.empty_like(own_value) for _ in range(num_workers())]
    with communicating("telling each other"):
        dist.all_gather(heard, own_value)
    return [one.item() for one in heard]
