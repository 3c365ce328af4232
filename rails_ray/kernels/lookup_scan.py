"""Sums of table look-ups: the scores of SOLAR, and of product quantization.

    score(q, x) = sum_m T_q[m, code_m(x)]

Entries are added in float64, one part after the other, and the sum is rounded to float32 once. Every way to compute it
does the same operations in the same order, so that a score does not depend on the device, on which other items or
queries stand beside it, or on where a corpus is cut. Sums over some of the parts, in float64, add up to it except
for a float64 rounding, 2^-53, before the float32 one.

Source: SOLAR, Section 4 (inference); Jegou et al., Product Quantization, Equation 13 (asymmetric distance).

Axes: B queries, X items, C candidates of a query, M parts of a code, L entries of a table.
"""

import math
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Integer
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.kernels.compiled import in_threads, loops_for

BESIDE, LEAST_BESIDE = 32, 8  # queries side by side
MOST_ENTRIES = 2**13  # of a query's tables: those of 32 queries, 1 MB, stay in the cache
BLOCK_SUMS = 2**20  # of a block in torch: its sums and numbers of entries take 16 MB
GPU_BLOCK_SUMS = 2**24  # a GPU has no such cache, and waits for its kernels to be launched


def plain_scores(tables: Float[Tensor, "B M L"], codes: Integer[Tensor, "X M"]) -> Float[Tensor, "B X"]:
    """The equation, all at once: what `scores` must equal."""
    parts = torch.arange(tables.shape[1], device=tables.device)
    return tables.float().double()[:, parts, codes.long()].sum(dim=2).float()


def scores(
    tables: Float[Tensor, "B M L"],
    codes: Integer[Tensor, "X M"] | Integer[Tensor, "B C M"],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B _"]:
    """Scores of all items for each query, or of its own candidates.

    Args:
        tables: in any floating dtype; taken as float32.
        codes: in any integer dtype, each in 0 .. L - 1, which is not checked.
        dtype: float64 for sums that others are to be added to.
    """
    if codes.dim() == 2:
        return LookUps(tables).scores(codes, dtype)
    tables = tables.detach().float().contiguous()
    loops = loops_for(tables, codes)
    if loops is None:
        return gathered_candidate_scores(tables, codes, dtype)
    found = torch.empty(len(tables), codes.shape[1], dtype=dtype)
    arrays, look_up_own = (tables.numpy(), codes.numpy(), found.numpy()), loops.look_up_own
    in_threads(lambda first, end: look_up_own(*arrays, first, end), len(codes))
    return found


class LookUps:
    """The tables of a batch of queries, laid out once to score any number of blocks of items.

    Many queries with small tables lie side by side, so that an item's entry of all of them is added at once: with
    16 parts of 256 entries and 32 queries that takes .38 times as long as query after query.
    """

    def __init__(self, tables: Float[Tensor, "B M L"]) -> None:
        self.tables = tables.detach().float().contiguous()
        num_queries, num_parts, num_entries = tables.shape
        self.beside: list[tuple[slice, NDArray[np.float32]]] = []
        if num_queries >= LEAST_BESIDE and num_parts * num_entries <= MOST_ENTRIES and tables.is_cpu:
            for first in range(0, num_queries, BESIDE):
                own = slice(first, first + BESIDE)
                # By numpy: torch's threads would wait busily for more, where the loops are to run.
                self.beside.append((own, np.ascontiguousarray(self.tables[own].numpy().transpose(1, 2, 0))))

    def scores(
        self,
        codes: Integer[Tensor, "X M"],
        dtype: torch.dtype = torch.float32,
        memory: Float[Tensor, " _"] | None = None,
    ) -> Float[Tensor, "B X"]:
        """Return what `scores` gives.

        Args:
            memory: where the scores may lie, of this dtype and at least as many; new pages of 32 MB take 10 ms.
        """
        loops = loops_for(self.tables, codes)
        if loops is None:
            return gathered_scores(self.tables, codes, dtype)
        shape, rows = (len(self.tables), len(codes)), codes.numpy()
        found = torch.empty(shape, dtype=dtype) if memory is None else memory[: math.prod(shape)].view(shape)
        tasks = [(loops.look_up_beside, own, table) for own, table in self.beside]
        for look_up, own, table in tasks or [(loops.look_up, slice(None), self.tables.numpy())]:
            arrays = table, rows, found[own].numpy()
            in_threads(partial(look_up, *arrays), len(codes))
        return found


def gathered_scores(
    tables: Float[Tensor, "B M L"], codes: Integer[Tensor, "X M"], dtype: torch.dtype
) -> Float[Tensor, "B X"]:
    """`scores` in torch: on a GPU, and where numba is not installed."""
    found = torch.empty(len(tables), len(codes), dtype=dtype, device=tables.device)
    size = max((BLOCK_SUMS if tables.is_cpu else GPU_BLOCK_SUMS) // max(len(tables), 1), 1)
    for first in range(0, len(codes), size):
        block = codes[first : first + size].T.long()  # no copy of all codes
        total = torch.zeros(len(tables), block.shape[1], dtype=torch.float64, device=tables.device)
        for part, entries in enumerate(block):
            total += tables[:, part].index_select(1, entries)
        found[:, first : first + size] = total
    return found


def gathered_candidate_scores(
    tables: Float[Tensor, "B M L"], codes: Integer[Tensor, "B C M"], dtype: torch.dtype
) -> Float[Tensor, "B C"]:
    """Score each query's own candidates."""
    total = torch.zeros(codes.shape[:2], dtype=torch.float64, device=tables.device)
    for part in range(codes.shape[2]):
        total += tables[:, part].gather(1, codes[:, :, part].long())
    return total.to(dtype)
