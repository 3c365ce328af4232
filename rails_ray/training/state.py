"""Weights as bytes: safetensors, which hold tensors and nothing that runs."""

import safetensors
import safetensors.torch
from torch import nn


def to_bytes(module: nn.Module) -> bytes:
    """All parameters and buffers by their names."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return safetensors.torch.save(tensors)


def load(module: nn.Module, weights: bytes) -> None:
    """Set the tensors of `module` to those stored under their names.

    Raises:
        ValueError: if the weights are not those of such a module.
    """
    try:
        stored = safetensors.torch.load(weights)
    except safetensors.SafetensorError as error:
        raise ValueError(f"weights must be safetensors, got: {error}") from None
    try:
        module.load_state_dict(stored)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"weights must be those of the config beside them, got: {reason}") from None
