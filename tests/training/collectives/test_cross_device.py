"""The proof: several workers, each with its slice, have the loss and the gradient of one process with the whole batch.

For two and three gloo processes, by each of the three forms, with and without DistributedDataParallel, for batches that
divide evenly, unevenly and leave one worker empty, in float32 and bfloat16; for every parameter.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

from rails_ray.training.collectives.processes import in_processes
from support.cross_device_worker import BASELINES, FORMS, Case, Proof, by_slices, cases, descend, prove, whole

Found = tuple[float, dict[str, Tensor]]
SMALLEST = 1e-9  # of a gradient's norm: below it, it is zero but for rounding
NUM_WORKERS = [2, pytest.param(3, marks=pytest.mark.long)]


@cache
def on_workers(num_workers: int, backend: str = "gloo") -> list[Proof]:
    return in_processes(prove, num_workers, backend=backend)


@cache
def expected(case: Case, num_workers: int) -> Found:
    return whole(case) if case.precision == torch.float32 else by_slices(case, num_workers)


def distance(one: Tensor, other: Tensor) -> tuple[float, float]:
    """1 - cosine, and how far the ratio of norms is from 1."""
    a, b = one.double().flatten(), other.double().flatten()
    return 1 - float(a @ b / (a.norm() * b.norm())), abs(float(b.norm() / a.norm()) - 1)


@pytest.mark.parametrize("num_workers", NUM_WORKERS)
@pytest.mark.parametrize("case", [case for case in cases() if case.form in FORMS], ids=str)
def test_workers_have_the_gradient_of_one_process(case: Case, num_workers: int) -> None:
    loss, gradients = expected(case, num_workers)
    found = [of_rank.gradients[case] for of_rank in on_workers(num_workers)]
    assert sum(part for part, _ in found) / num_workers == pytest.approx(
        loss, rel=1e-5, abs=1e-7
    )  # logits are up to 20
    for _, of_rank in found:
        assert of_rank.keys() == gradients.keys()
        for name, gradient in gradients.items():
            if gradient.norm() < SMALLEST:
                assert of_rank[name].norm() < SMALLEST, name
            else:
                angle, ratio = distance(gradient, of_rank[name])
                assert angle < 1e-6, name
                assert ratio < 1e-4, name  # of the gates 2e-5 on some processors: L_MI is a difference of entropies
    learnt = {name.split(".")[1] for name in gradients if name.startswith("model")}
    wanted = {"encoder", "query_components", "item_components"} | ({"similarity"} if "mixture" in case.model else set())
    assert learnt == wanted
    assert any("temperature" in name for name in gradients) == (case.loss != "sampled_softmax")


@pytest.mark.parametrize("num_workers", NUM_WORKERS)
@pytest.mark.parametrize("form", BASELINES)
def test_the_baselines_have_another_gradient(form: str, num_workers: int) -> None:
    case = Case("towers mixture", form=form)
    loss, gradients = expected(case, num_workers)
    found = [of_rank.gradients[case] for of_rank in on_workers(num_workers)]
    mean = sum(part for part, _ in found) / num_workers
    if form == "constants":  # it is the same number, whose gradient stops at the others' items
        assert mean == pytest.approx(loss, rel=1e-5)
    else:
        assert mean != pytest.approx(loss, rel=0.1)
    of_items = "model.item_components.project.weight"
    assert distance(gradients[of_items], found[0][1][of_items])[0] > 1e-3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs, which communicate by nccl")
def test_gpus_have_the_gradient_of_one_process() -> None:
    found = on_workers(2, "nccl")
    for case in cases():
        if case.form in FORMS and case.precision == torch.float32:
            loss, gradients = expected(case, 2)
            assert sum(of_rank.gradients[case][0] for of_rank in found) / 2 == pytest.approx(loss, rel=1e-4)
            for of_rank in found:
                for name, gradient in gradients.items():
                    if gradient.norm() >= SMALLEST:  # another processor sums in another order
                        angle, ratio = distance(gradient, of_rank.gradients[case][1][name])
                        assert angle < 1e-5, name
                        assert ratio < 1e-3, name


def test_bfloat16_rounds_and_is_proved_where_it_does() -> None:
    """One process on the whole batch at once sums in another order: so far apart are two right answers."""
    case = next(case for case in cases() if case.precision == torch.bfloat16)
    name = "model.encoder.blocks.0.network.0.weight"
    _, at_once = whole(case)
    _, of_slices = by_slices(case, 3)
    assert 1e-7 < distance(at_once[name], of_slices[name])[0] < 1e-2


@pytest.mark.parametrize("num_workers", NUM_WORKERS)
def test_descent_with_and_without_clipping_goes_the_same_way(num_workers: int) -> None:
    of_first = on_workers(num_workers)[0].weights
    for (form, is_clipped), weights in of_first.items():
        alone = descend(form, is_clipped)
        for name, expected in alone.items():
            assert torch.allclose(weights[name], expected, rtol=1e-9, atol=1e-11), (form, is_clipped, name)
    clipped, plain = of_first["gather", True], of_first["gather", False]
    assert not torch.allclose(clipped["objective.offset"], plain["objective.offset"], rtol=1e-3)
