"""What a worker does in tests of collectives, with faults among others: for a spawned process to import."""

import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rails_ray.errors import LostWorkerError
from rails_ray.training.collectives.gather import gather, gather_constants
from rails_ray.training.collectives.group import place_of, rank
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.collectives.ring import shift_on_ring
from support.cross_device_worker import BASELINES, FORMS, Case, model_of, sampler_of, step_of


def told(call: Callable[[], Any]) -> str:
    """The kind and the text of the error that a call ends with."""
    try:
        call()
    except (ValueError, FloatingPointError, LostWorkerError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def place_of_lines(tensor: Tensor) -> None:
    place_of([torch.zeros(len(tensor), 1), tensor], "embeddings")


def unlike() -> dict[str, str]:
    """Tensors that cannot be shared. The group is of use again after each of them."""
    is_first = rank() == 0
    broken = torch.ones(2, 3)
    broken[1, 2] = torch.nan if rank() == 1 else 1.0
    return broken_model() | {
        "size": told(lambda: place_of_lines(torch.ones(2, 3 if is_first else 4))),
        "axes": told(lambda: place_of_lines(torch.ones(2, 3) if is_first else torch.ones(2, 3, 1))),
        "dtype": told(lambda: place_of_lines(torch.ones(2, 3, dtype=torch.float32 if is_first else torch.bfloat16))),
        "NaN": told(lambda: place_of_lines(broken)),
        "infinity": told(lambda: place_of_lines(torch.full((2, 3), torch.inf))),
        "number": told(lambda: place_of([torch.ones(2)] * (1 if is_first else 2), "embeddings")),
        "lines": told(lambda: place_of_lines(torch.ones(rank(), 3))),
    }


def exchanged() -> dict[str, Any]:
    """Of workers that bring 0, 1 and 2 lines: those of all, and what is passed back to them."""
    own = (torch.arange(rank() * 2.0).view(rank(), 2) + 10 * rank()).requires_grad_()
    narrow = torch.full((rank(), 1), 1.0, dtype=torch.bfloat16).requires_grad_()
    place = place_of([own, narrow], "embeddings")
    lines, narrow_lines = gather([own, narrow], place)
    constants, rows = gather_constants([own, torch.arange(rank()) + 10 * rank()], place)
    (lines.sum() * 10 ** rank()).backward(retain_graph=True)
    passed_back = own.grad.clone()
    own.grad = None
    (constants.sum() * 10 ** rank()).backward()
    # 1 + 1/256 has no bfloat16: a sum that was rounded after each worker would stay 1.
    (narrow_lines.float() * torch.tensor([1.0, 2**-8, 2**-8])[rank()]).sum().backward()
    return {
        "place": tuple(place),
        "lines": lines.tolist(),
        "rows": rows.tolist(),
        "passed back": passed_back.tolist(),
        "of constants": own.grad.tolist(),
        "narrow": narrow.grad.tolist(),
        "shifted": shifted(),
    }


def shifted() -> list[list[int]]:
    """Of workers with 1, 2 and 3 lines, what the one before had."""
    own = torch.arange(rank() + 1)
    return [lines.tolist() for lines in shift_on_ring([own, own > 0], (rank() - 1) % 3 + 1)]


def broken_model() -> dict[str, str]:
    """What each worker says of a step in which worker 1 has a weight that is not finite."""
    said = {}
    for side, form, name in product(("query", "item"), [*FORMS, *BASELINES], ("towers dot", "towers mixture")):
        case = Case(name, form=form)
        model = model_of(case)
        step = step_of(case, model, {**FORMS, **BASELINES}[form], mean_over_workers)
        if rank() == 1:
            components = model.query_components if side == "query" else model.item_components
            components.project.bias.data[0] = torch.nan
        batch = sampler_of(case, model, rank(), 2).batch(0)
        said[f"{side} {form} {name}"] = told(partial(step, batch))
    return said


CALLS: dict[str, Callable[[], Any]] = {
    "sharing": lambda: place_of([torch.ones(2, 3)], "embeddings"),
    "passing on": lambda: shift_on_ring([torch.ones(2)], 2),
}


def one_dies(call: str, file: Path) -> None:
    """Leave in a file what the other one says. They are connected first, or joining the group would fail."""
    connected = file.with_suffix(".connected")
    if rank() == 1:
        while not connected.exists():
            time.sleep(0.01)  # the two processes share nothing but this file
        os._exit(0)  # not another code: what starts the processes would end the others for it
    connected.touch()
    file.write_text(told(CALLS[call]))


def one_is_late() -> str:
    if rank() == 1:
        time.sleep(6)  # longer than the group waits
        return ""
    return told(CALLS["sharing"])
