"""Checkpoints as bytes: safetensors, as weights are.

A checkpoint holds the module's tensors as module.<name>, AdamW's as optimizer.<parameter number>.<name>, the best
validation's as best.<name>, and a few facts as JSON.
"""

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from rails_ray.modules.weight_files import below, copy, header_of, set_tensors, tensors_of


def load_model(model: nn.Module, checkpoint: bytes) -> None:
    """Set a model's tensors to the ones that a checkpoint of its training step holds.

    Raises:
        ValueError: if the checkpoint does not fit the model.
    """
    set_tensors(model, below("module.model.", tensors_of(checkpoint)))


def checkpoint_to_bytes(
    module: nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any], best: dict[str, Tensor] | None
) -> bytes:
    """Everything that a run needs to go on.

    Args:
        facts: anything that JSON can hold.
        best: weights of the best validation so far.
    """
    tensors = {f"module.{name}": tensor for name, tensor in copy(module).items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value.cpu().contiguous() for name, value in values.items()}
    tensors |= {f"best.{name}": tensor for name, tensor in (best or {}).items()}
    return safetensors.torch.save(tensors, {"facts": json.dumps(facts)})


def load_checkpoint(
    module: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: bytes
) -> tuple[dict[str, Any], dict[str, Tensor] | None]:
    """Set module and optimiser to what a checkpoint holds; return its facts and the best weights so far.

    Raises:
        ValueError: if the checkpoint does not fit the module.
    """
    tensors = tensors_of(checkpoint)
    set_tensors(module, below("module.", tensors))
    moments: dict[int, dict[str, Tensor]] = {}
    for path, tensor in below("optimizer.", tensors).items():
        number, name = path.split(".")
        moments.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return _facts(checkpoint), below("best.", tensors) or None


def steps_done(checkpoint: bytes) -> int:
    """How many steps the run had done when it left the checkpoint."""
    return len(_facts(checkpoint)["losses"])


def _facts(checkpoint: bytes) -> dict[str, Any]:
    metadata = header_of(checkpoint).get("__metadata__", {})
    if "facts" not in metadata:
        raise ValueError("a checkpoint must hold facts beside its tensors, got weights alone")
    facts: dict[str, Any] = json.loads(metadata["facts"])
    return facts
