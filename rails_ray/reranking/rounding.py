"""Numbers that are equal but for rounding: to divide by what they differ by would make noise of them.

Axes: N rows, D numbers of each.
"""

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDING = 1e-5  # of the largest of some numbers, far above what sums in float32 are off by


def deviations(rows: Float[Tensor, "N D"]) -> Float[Tensor, " D"]:
    """Standard deviations over rows; 1 for numbers that are equal but for rounding."""
    found = rows.std(dim=0, correction=0)
    return torch.where(found > ROUNDING * rows.abs().amax(dim=0), found, 1.0)
