"""Two gloo processes against one: the same loss, and the same gradient for every parameter."""

from typing import Any

import pytest
import torch

from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.training.collectives.first import from_first
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.collectives.processes import in_processes
from rails_ray.training.step import in_one_process
from support.examples import batches_of
from support.gloo_worker import CASES, NUM_WORKERS, config_of, work


@pytest.fixture(scope="module")
def left() -> list[dict[str, Any]]:
    """What each of the two processes left behind."""
    return in_processes(work, NUM_WORKERS)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_two_workers_equal_one(case: tuple[str, str], left: list[dict[str, Any]]) -> None:
    results = [of_rank["steps"][case] for of_rank in left]
    config = config_of(*case)
    model = DualEncoderTraining.of(config).model()
    step = DualEncoderTraining.of(config).training_step(model, in_one_process).double()
    loss = step(batches_of(model).batch(0))
    loss.backward()
    assert sum(result["loss"] for result in results) / NUM_WORKERS == pytest.approx(loss.item(), rel=1e-9)
    for name, parameter in step.named_parameters():
        if parameter.grad is not None:
            for result in results:
                assert torch.allclose(result["gradients"][name], parameter.grad, rtol=1e-7, atol=1e-10), name
    # Histories of different lengths make slices of different sizes, so that a plain mean would be wrong.
    assert (results[0]["num_queries"] != results[1]["num_queries"]) == (case[0] == "histories")


def test_a_mean_passes_back_the_mean_of_what_all_workers_want_of_it(left: list[dict[str, Any]]) -> None:
    assert [of_rank["mean"] for of_rank in left] == [1.5] * NUM_WORKERS
    assert [of_rank["slope"].item() for of_rank in left] == [(1 + 10) / 2] * NUM_WORKERS


def test_the_first_workers_value_is_told_to_all(left: list[dict[str, Any]]) -> None:
    assert [of_rank["first"] for of_rank in left] == [["said by", 0, b"\x00"]] * NUM_WORKERS


def test_each_workers_value_is_told_to_all_by_rank(left: list[dict[str, Any]]) -> None:
    assert [of_rank["each"] for of_rank in left] == [[0.5, 1.5]] * NUM_WORKERS


def test_without_a_group_a_value_is_its_own_mean_and_the_first() -> None:
    tensor = torch.ones(3)
    assert mean_over_workers(tensor) is tensor
    assert from_first(tensor) is tensor
