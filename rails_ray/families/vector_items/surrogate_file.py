"""A surrogate, stored beside the vectors that it made: surrogate.safetensors.

    inverse [S, D], mean [F], deviation [F]
    weight.0, bias.0, weight.1, bias.1                             layers of the map
    sample.components [S, P_Q, d], sample.gate [S, P], sample.temperature [S]
    supports.components [N, P_X, d], supports.gate [N, P]          if the map reads scores of supports

A gate is absent if the similarity has none.
"""

from safetensors import SafetensorError
from safetensors.torch import load, save

from rails_ray.errors import DamagedError
from rails_ray.reranking.surrogate import Surrogate

NAME = "surrogate.safetensors"


def to_bytes(surrogate: Surrogate) -> bytes:
    """The bytes of a surrogate's file; equal ones give equal bytes."""
    return save({name: tensor.cpu().float().contiguous() for name, tensor in surrogate.tensors().items()})


def from_bytes(data: bytes) -> Surrogate:
    """A surrogate from its file.

    Raises:
        DamagedError: if it cannot be read.
    """
    try:
        return Surrogate.of(load(data))
    except (SafetensorError, KeyError) as error:
        raise DamagedError(f"{NAME} must hold a surrogate, got: {error}: encode a new version") from None
