"""Vectors scaled to length 1, of any length that their dtype holds.

    unit(x) = x / max(|x|, shortest)

The square of a number above 2^64 overflows float32, and that of one below 2^-63 vanishes. Vectors of such numbers are
multiplied by a power of two first, which rounds nothing: all others are scaled to the last bit as
`torch.nn.functional.normalize` scales them.

Axes: N vectors, d width.
"""

import torch
from jaxtyping import Float
from torch import Tensor

LARGE, SMALL = 2.0**40, 2.0**-50  # of the largest number of a vector: squares of others lie within float32
FACTOR = 2.0**96
ORDINARY = 2.0**-40, 2.0**40  # lengths of vectors of up to 2^20 numbers, the largest of which is in between


def unit(vectors: Float[Tensor, "*N d"], shortest: float = 0.0) -> Float[Tensor, "*N d"]:
    """Scale vectors to length 1; a vector of zeros stays.

    Args:
        shortest: vectors of less length are divided by it, and stay shorter than 1.
    """
    if vectors.is_cpu and vectors.numel() and not torch.is_grad_enabled():  # a look costs less than the other steps
        lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        least, most = (end.item() for end in lengths.aminmax())
        if least >= ORDINARY[0] and most <= ORDINARY[1]:
            shortest = max(shortest, torch.finfo(vectors.dtype).tiny)
            return torch.div(vectors, lengths if least >= shortest else lengths.clamp(min=shortest))
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    factor = torch.ones_like(largest)
    factor = factor.masked_fill(largest > LARGE, 1 / FACTOR).masked_fill((largest < SMALL) & (largest > 0), FACTOR)
    scaled = vectors * factor
    least = (shortest * factor).clamp(min=torch.finfo(vectors.dtype).tiny)
    return scaled / torch.maximum(scaled.norm(dim=-1, keepdim=True), least)
