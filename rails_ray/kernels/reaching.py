"""The few scores that reach a threshold, of many.

numpy finds them on the CPU, some lines at a time: as fast as loops that numba compiles, without the memory that numba
takes in a process that needs it for nothing else, 118 MB, and without waiting for a compiler.

Axes: B queries, X items, N scores that reach their query's threshold.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.kernels.compiled import in_threads

MOST_SCORES = 2**17  # compared at once, by less than the cache of a core


def num_reaching(scores: Float[Tensor, "B X"], reach: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """How many scores of each query reach its threshold; NaN reaches none."""
    if not _is_for_numpy(scores):
        return (scores >= reach[:, None]).sum(dim=1)
    counts = np.zeros(len(scores), np.int64)
    least, width = reach.float().numpy()[:, None], scores.shape[1]

    def count(first: int, end: int) -> None:
        for lines, places in _places(scores.numpy(), least, first, end):
            counts[lines] = np.bincount(places // width, minlength=len(counts[lines]))

    in_threads(count, len(scores))
    return torch.from_numpy(counts)


def reaching(
    scores: Float[Tensor, "B X"], reach: Float[Tensor, " B"], num: Int[Tensor, " B"]
) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """(Query, column) of each score that reaches its query's threshold, in the order of queries, then of columns.

    Args:
        num: what `num_reaching` counted.
    """
    if not _is_for_numpy(scores):
        query, column = (scores >= reach[:, None]).nonzero(as_tuple=True)
        return query, column
    least, width, ends = reach.float().numpy()[:, None], scores.shape[1], np.append(0, num.numpy().cumsum())
    columns = np.empty(ends[-1], np.int64)

    def note(first: int, end: int) -> None:
        for lines, places in _places(scores.numpy(), least, first, end):
            np.remainder(places, width, out=columns[ends[lines.start] : ends[lines.stop]])

    in_threads(note, len(scores))
    # Not repeat_interleave: torch's threads would wait busily for more, where the next threads are to run.
    return torch.from_numpy(np.repeat(np.arange(len(scores)), num.numpy())), torch.from_numpy(columns)


def _is_for_numpy(scores: Tensor) -> bool:
    return scores.is_cpu and scores.dtype == torch.float32


def _places(
    scores: NDArray[np.float32], least: NDArray[np.float32], first: int, end: int
) -> Iterator[tuple[slice, NDArray[np.intp]]]:
    """Some of the lines first .. end - 1 at a time, and the places of what reaches in them, line by line."""
    num = max(MOST_SCORES // max(scores.shape[1], 1), 1)
    for start in range(first, end, num):
        lines = slice(start, min(start + num, end))
        yield lines, np.flatnonzero(scores[lines] >= least[lines])
