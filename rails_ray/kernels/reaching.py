"""The few scores that reach a threshold, of many.

Axes: B queries, X items, N scores that reach their query's threshold.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.compiled import in_threads, loops_for


def num_reaching(scores: Float[Tensor, "B X"], reach: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """How many scores of each query reach its threshold; NaN reaches none."""
    loops = loops_for(scores, reach)
    if loops is None or scores.dtype != torch.float32:
        return (scores >= reach[:, None]).sum(dim=1)
    counts = torch.zeros(len(scores), dtype=torch.int64)
    arrays = scores.contiguous().numpy(), reach.float().contiguous().numpy(), counts.numpy()
    in_threads(lambda first, end: loops.count_reaching(*arrays, first, end), len(scores))
    return counts


def reaching(
    scores: Float[Tensor, "B X"], reach: Float[Tensor, " B"], num: Int[Tensor, " B"]
) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """(Query, column) of each score that reaches its query's threshold, in the order of queries, then of columns.

    Args:
        num: what `num_reaching` counted.
    """
    loops = loops_for(scores, reach)
    if loops is None or scores.dtype != torch.float32:
        query, column = (scores >= reach[:, None]).nonzero(as_tuple=True)
        return query, column
    ends = num.cumsum(dim=0)
    columns = torch.empty(int(ends[-1]) if len(ends) else 0, dtype=torch.int64)
    arrays = scores.contiguous().numpy(), reach.float().contiguous().numpy(), (ends - num).numpy(), ends.numpy()
    in_threads(lambda first, end: loops.list_reaching(*arrays, columns.numpy(), first, end), len(scores))
    # Not repeat_interleave: torch's threads would wait busily for more, where the next loops are to run.
    return torch.from_numpy(np.repeat(np.arange(len(scores)), num.numpy())), columns


def compile_loops() -> None:
    """Compile what both run, or the first search that has a threshold would wait half a second for it."""
    scores = torch.zeros(1, 1)
    reaching(scores, scores[0], num_reaching(scores, scores[0]))
