"""Pieces without a gradient, which take no step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rails_ray.modules import weight_files
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.storage import runs
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Prepared


class Popularity(nn.Module):
    """How many training queries each item answers."""

    counts: torch.Tensor

    def __init__(self, counts: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("counts", counts)


@dataclass(frozen=True)
class CountingPiece:
    """Counts, when it is prepared; after other pieces of its kind it adds what they have counted.

    fails_by: what it fails with, if it does.
    """

    name: str = ""
    after: Sequence[str] = ()
    fails_by: str = ""
    shares_gradient: bool = False
    training: TrainingConfig | None = None

    def check_workers(self, num_workers: int) -> None:
        pass

    def prepare(self, given: Given) -> Prepared:
        if self.fails_by:
            raise ValueError(self.fails_by)
        relevant = given.read.queries["train"].relevant
        module = Popularity(torch.from_numpy(np.bincount(relevant.rows, minlength=len(given.read.item_ids))))
        for name in self.after:
            [(_, weights)] = runs.weights(given.storage, runs.read_piece(given.storage, given.run, name))
            earlier = Popularity(torch.zeros_like(module.counts))
            weight_files.load(earlier, weights)
            module.counts += earlier.counts

        def report(progress: Progress) -> dict[str, Any]:
            return {"counted": int(module.counts.sum()), "cutoff_mass": None}

        return Prepared(module=module, report=report, steps=None)
