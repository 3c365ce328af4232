"""Weights as bytes: safetensors, which hold tensors and nothing that runs."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import safetensors
import safetensors.torch
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
    set_tensors(module, tensors_of(weights))


def loaded(make: Callable[[], Module], weights: bytes) -> Module:
    """Return what `make` makes, with the stored tensors in place of its own, which take next to no memory and time.

    Raises:
        ValueError: if the weights do not fit the module.
    """
    with _Uninitialised():
        module = make()
    set_tensors(module, tensors_of(weights), assign=True)
    return module


def load_below(module: nn.Module, weights: bytes, prefix: str) -> None:
    """Set the tensors of a part of a model to the stored ones, whose names begin with `prefix`.

    Raises:
        ValueError: if the weights do not fit the module.
    """
    set_tensors(module, below(prefix, tensors_of(weights)))


def has_below(weights: bytes, prefix: str) -> bool:
    """Return whether the names of any stored tensors begin with `prefix`.

    Raises:
        ValueError: if these are no weights.
    """
    return any(name.startswith(prefix) for name in header_of(weights))


def header_of(stored: bytes) -> dict[str, Any]:
    """Read the header: names, shapes and places of the tensors, and the metadata.

    Raises:
        ValueError: if these are no weights.
    """
    # A safetensors file begins with the length of its header, 8 bytes, and the header, JSON.
    length = int.from_bytes(stored[:8], "little")
    try:
        header: dict[str, Any] = json.loads(stored[8 : 8 + length])
    except ValueError as error:
        raise ValueError(f"weights must be safetensors, got: {error}") from None
    return header


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, by the rest of their names."""
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


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """Read all stored tensors by their names.

    Raises:
        ValueError: if these are no weights.
    """
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise ValueError(f"weights must be safetensors, got: {error}") from None


def set_tensors(module: nn.Module, tensors: dict[str, Tensor], assign: bool = False) -> None:
    """Set the tensors of a module.

    Args:
        assign: take the given tensors themselves, not their values.

    Raises:
        ValueError: if they do not fit.
    """
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
