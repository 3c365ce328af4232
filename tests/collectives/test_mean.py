"""Two gloo processes against one: the same loss, and the same gradient for every parameter."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from examples import sampler_of
from gloo_worker import NUM_WORKERS, config_of, one_step
from rails_ray import build
from rails_ray.collectives.mean import mean_over_workers
from rails_ray.training.step import in_one_process


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_two_workers_equal_one(similarity: str, tmp_path: Path) -> None:
    mp.spawn(one_step, args=(str(tmp_path), similarity), nprocs=NUM_WORKERS)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(NUM_WORKERS)]

    config = config_of(similarity)
    model = build.model(config)
    step = build.training_step(model, config, in_one_process)
    loss = step(sampler_of(model).batch(0))
    loss.backward()
    assert sum(result["loss"] for result in results) / NUM_WORKERS == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in step.named_parameters():
        if parameter.grad is not None:
            for result in results:
                found = result["gradients"][name]
                assert torch.allclose(found, parameter.grad, rtol=1e-4, atol=1e-6), name


def test_without_a_group_the_mean_is_the_tensor() -> None:
    tensor = torch.ones(3)
    assert mean_over_workers(tensor) is tensor
