"""Losses of a quantizer: the mean of |x - x~|^2, and codewords that no item has.

Axes: X items, D numbers of a vector, M subspaces.
"""

from jaxtyping import Float, UInt8
from torch import Tensor

from rails_ray.modules.quantizers.product import ProductQuantizer


def measured(quantizer: ProductQuantizer, vectors: Float[Tensor, "X D"]) -> dict[str, float]:
    """`reconstruction_loss`, the mean of |x - x~|^2, and `num_dead_codewords`, which none of these items has."""
    codes = quantizer.encode(vectors)
    loss = (vectors - quantizer.decode(codes)).square().sum(dim=1).mean()
    return {"reconstruction_loss": float(loss), "num_dead_codewords": num_dead(codes, quantizer.num_codewords)}


def num_dead(codes: UInt8[Tensor, "X M"], num_codewords: int) -> int:
    """Codewords that no item has."""
    return sum(num_codewords - len(column.unique()) for column in codes.T)
