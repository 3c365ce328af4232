"""Blocks of an encoder that are compiled."""

import subprocess
import sys
from pathlib import Path

import pytest

from rails_ray.families.dual_encoder import model
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.training.step import in_one_process
from support.examples import small_history_config

ROOT = Path(__file__).parents[2]
# In a process of its own, as the tests' hook for shapes breaks what is compiled.
COMPILED = """
import torch
from jobs.benches.gpu_checks import without_dropout
gradients = []
for way in ("plain", "compiled"):
    torch.manual_seed(0)
    training = without_dropout("histories of 200", way)
    loss = training.step(training.batch_of(0))
    loss.backward()
    gradients.append([loss.detach(), *(own.grad for own in training.step.parameters() if own.grad is not None)])
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
for one, other in zip(*gradients, strict=True):
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.long
def test_a_compiled_step_has_the_gradient_of_one_that_is_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's imports
def test_the_step_of_a_run_compiles_its_blocks_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_blocks_compiled in (False, True):
        family = DualEncoderTraining.of(small_history_config().with_family(compile_blocks=has_blocks_compiled))
        trained = family.model()
        monkeypatch.setattr(model.shutil, "which", lambda name: name)
        family.training_step(trained, in_one_process)
        assert all((block._compiled_call_impl is not None) == has_blocks_compiled for block in trained.encoder.blocks)
    monkeypatch.setattr(model.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=r"compile_blocks needs a C\+\+ compiler on the PATH, one of g\+\+, clang\+\+"):
        family.training_step(family.model(), in_one_process)
