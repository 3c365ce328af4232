"""Weights and checkpoints as bytes: safetensors, which hold tensors and nothing that runs.

A checkpoint holds the module's tensors as module.<name>, AdamW's as optimizer.<parameter number>.<name>, the best
validation's as best.<name>, and a few facts as JSON.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Module = TypeVar("Module", bound=nn.Module)


def to_bytes(module: nn.Module) -> bytes:
    """All parameters and buffers by their names."""
    return safetensors.torch.save(copy(module))


def copy(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers as they are now, on the CPU."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in module.state_dict().items()}


def load(module: nn.Module, weights: bytes) -> None:
    """Set the tensors of `module` to the stored ones of the same names.

    Raises:
        ValueError: if the weights do not fit the module.
    """
    _set(module, _tensors(weights))


def loaded(make: Callable[[], Module], weights: bytes) -> Module:
    """What `make` makes, with the stored tensors in place of its own, which take next to no memory and time.

    Raises:
        ValueError: if the weights do not fit the module.
    """
    with _Uninitialised():
        module = make()
    _set(module, _tensors(weights), assign=True)
    return module


def load_below(module: nn.Module, weights: bytes, prefix: str) -> None:
    """Set the tensors of a part of a model to the stored ones, whose names begin with `prefix`.

    Raises:
        ValueError: if the weights do not fit the module.
    """
    _set(module, _below(prefix, _tensors(weights)))


def load_model(model: nn.Module, checkpoint: bytes) -> None:
    """Set a model's tensors to the ones that a checkpoint of its training step holds.

    Raises:
        ValueError: if the checkpoint does not fit the model.
    """
    _set(model, _below("module.model.", _tensors(checkpoint)))


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
    tensors = _tensors(checkpoint)
    _set(module, _below("module.", tensors))
    moments: dict[int, dict[str, Tensor]] = {}
    for path, tensor in _below("optimizer.", tensors).items():
        number, name = path.split(".")
        moments.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return _facts(checkpoint), _below("best.", tensors) or None


def steps_done(checkpoint: bytes) -> int:
    """How many steps the run had done when it left the checkpoint."""
    return len(_facts(checkpoint)["losses"])


def has_below(weights: bytes, prefix: str) -> bool:
    """Whether the names of any stored tensors begin with `prefix`.

    Raises:
        ValueError: if these are no weights.
    """
    return any(name.startswith(prefix) for name in _header(weights))


def _header(stored: bytes) -> dict[str, Any]:
    # A safetensors file begins with the length of its header, 8 bytes, and the header, JSON.
    length = int.from_bytes(stored[:8], "little")
    try:
        header: dict[str, Any] = json.loads(stored[8 : 8 + length])
    except ValueError as error:
        raise ValueError(f"weights must be safetensors, got: {error}") from None
    return header


def _facts(checkpoint: bytes) -> dict[str, Any]:
    metadata = _header(checkpoint).get("__metadata__", {})
    if "facts" not in metadata:
        raise ValueError("a checkpoint must hold facts beside its tensors, got weights alone")
    facts: dict[str, Any] = json.loads(metadata["facts"])
    return facts


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class _Uninitialised(TorchFunctionMode):
    """Modules that are made inside have weights with any values: `torch.nn.init` leaves them as they are.

    Not `torch.device("meta")`: its random numbers load the whole compiler, and it takes the values of buffers that are
    not stored.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", None) == nn.init.__name__:
            return args[0] if args else given["tensor"]
        return function(*args, **given)


def _tensors(data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise ValueError(f"weights must be safetensors, got: {error}") from None


def _set(module: nn.Module, tensors: dict[str, Tensor], assign: bool = False) -> None:
    try:
        module.load_state_dict(tensors, assign=assign)
    except RuntimeError:
        raise ValueError(f"weights must fit a model of this config, got {_first_difference(module, tensors)}") from None


def _first_difference(module: nn.Module, tensors: dict[str, Tensor]) -> str:
    """The first tensor, by name, that one side lacks or has in another shape."""
    own = module.state_dict()
    for name in sorted({*own, *tensors}):
        if name not in tensors:
            return f"none for {name}"
        if name not in own:
            return f"weights of {name}, which it lacks"
        found, wanted = tensors[name], own[name]
        if isinstance(wanted, Tensor) and found.shape != wanted.shape:
            return f"{name} of shape {tuple(found.shape)} in place of {tuple(wanted.shape)}"
    return "tensors of another kind"
