"""Copies to a GPU, where there is none: tensors stay where they are, and how each was sent is noted."""

from typing import Any

import pytest
import torch
from torch import Tensor


def note_copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """(From pinned memory, without a wait) of each copy to "cuda" from now on."""
    copies, move = list[tuple[bool, bool]](), Tensor.to

    def pin_memory(tensor: Tensor) -> Tensor:
        pinned: Any = tensor.clone()
        pinned.was_pinned = True
        return pinned

    def to(tensor: Tensor, *given: Any, **named: Any) -> Tensor:
        if given and isinstance(given[0], str | torch.device) and torch.device(given[0]).type == "cuda":
            copies.append((hasattr(tensor, "was_pinned"), named.get("non_blocking", False)))
            return tensor
        return move(tensor, *given, **named)

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(Tensor, "to", to)
    return copies
