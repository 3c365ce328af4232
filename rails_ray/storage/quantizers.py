"""A quantizer, stored beside the codes that it made: quantizer.safetensors.

    codebooks [M, L, w], selectors [M, L, w], biases [M, L], rotation [d, d], centroids [l, d]

The last two are there if the quantizer turns vectors, and if items are in lists. The file's metadata holds what was
measured.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.modules.quantizers.product import ProductQuantizer

NAME = "quantizer.safetensors"


def to_bytes(
    quantizer: ProductQuantizer,
    centroids: Float[Tensor, "l d"] | None,
    facts: Mapping[str, float] = MappingProxyType({}),
) -> bytes:
    """The bytes of a quantizer's file; equal ones give equal bytes.

    Args:
        facts: what was measured of it.
    """
    fields = ("codebooks", "selectors", "biases", "rotation")
    tensors = {name: getattr(quantizer, name) for name in fields} | {"centroids": centroids}
    there = {name: tensor.cpu().float().contiguous() for name, tensor in tensors.items() if tensor is not None}
    return save(there, {"facts": json.dumps(dict(facts))})


def facts(data: bytes) -> dict[str, float]:
    """Read what was measured of a quantizer when its file was made; raises what `from_bytes` does."""
    from_bytes(data)
    length = int.from_bytes(data[:8], "little")  # of the header, JSON, that a safetensors file begins with
    found: dict[str, float] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["facts"])
    return found


def from_bytes(data: bytes) -> tuple[ProductQuantizer, Float[Tensor, "l d"] | None]:
    """A quantizer and its centroids, from its file.

    Raises:
        DamagedError: if it cannot be read.
    """
    try:
        found: dict[str, torch.Tensor] = load(data)
        centroids = found.pop("centroids", None)
        return ProductQuantizer(**found), centroids
    except (SafetensorError, TypeError, ValueError) as error:
        raise DamagedError(f"{NAME} must hold a quantizer, got: {error}: encode a new version") from None
