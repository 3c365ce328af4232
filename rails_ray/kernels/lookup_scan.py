"""Sums of table look-ups: the scores of SOLAR, and of product quantization.

    score(q, x) = sum_m T_q[m, code_m(x)]

Entries are added in float64, one part after the other, and the sum is rounded to float32 once. Every way to compute it
does the same operations in the same order, so that a score does not depend on the device, on which other items or
queries stand beside it, or on where a corpus is cut. Sums over some of the parts, in float64, add up to it except
for a float64 rounding, 2^-53, before the float32 one.

Source: SOLAR, Section 4 (inference); Jegou et al., Product Quantization, Equation 13 (asymmetric distance).

Axes: B queries, X items, C candidates of a query, M parts of a code, L entries of a table.
"""

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from rails_ray.kernels.compiled import in_threads, loops_for

BLOCK_SUMS = 2**20  # of a block in torch: its sums and numbers of entries take 16 MB


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
    tables = tables.detach().float().contiguous()
    loops = loops_for(tables, codes)
    is_own = codes.dim() == 3
    if loops is None:
        return (gathered_candidate_scores if is_own else gathered_scores)(tables, codes, dtype)
    found = torch.empty(len(tables), codes.shape[-2], dtype=dtype)
    arrays = tables.numpy(), codes.numpy(), found.numpy()
    look_up = loops.look_up_own if is_own else loops.look_up
    in_threads(lambda first, end: look_up(*arrays, first, end), len(codes))
    return found


def gathered_scores(
    tables: Float[Tensor, "B M L"], codes: Integer[Tensor, "X M"], dtype: torch.dtype
) -> Float[Tensor, "B X"]:
    """`scores` in torch: on a GPU, and where numba is not installed."""
    found = torch.empty(len(tables), len(codes), dtype=dtype, device=tables.device)
    size = max(BLOCK_SUMS // max(len(tables), 1), 1)
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
    """The same for each query's own candidates."""
    total = torch.zeros(codes.shape[:2], dtype=torch.float64, device=tables.device)
    for part in range(codes.shape[2]):
        total += tables[:, part].gather(1, codes[:, :, part].long())
    return total.to(dtype)
