"""A step's looks at what it computes, counted on a CPU: for each a GPU would have to be waited for."""

import pytest
import torch

from jobs.benches.gpu_measuring import Operators
from jobs.benches.gpu_step import CASES, SMALL, built, made_small
from rails_ray.modules.encoders import histories
from rails_ray.training import contrast
from rails_ray.training.collectives import ring


@pytest.mark.parametrize("name", CASES)
def test_a_step_looks_at_nothing_before_its_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on the way back. Histories are encoded and compared as they are on a GPU; a seed is the CPU's."""
    monkeypatch.setattr(contrast, "prefers_copies", lambda device: True)
    monkeypatch.setattr(histories, "GROUP", 10**6)
    monkeypatch.setattr(ring, "new_seed", lambda: 1)
    training = built(name, made_small(CASES[name]), SMALL, torch.float32)
    batch = training.batch_of(0)
    with Operators() as seen:
        training.step(batch).backward()
    assert seen.num_reads == 0
    assert seen.num_operators > 20
