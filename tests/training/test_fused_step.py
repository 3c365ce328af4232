"""Training steps of a mixture by the fused kernel, which stands in Triton's interpreter for a GPU's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from jobs.benches.gpu_step import CASES, SMALL, built, made_small
from rails_ray.kernels import checked_gradient, hashed_dropout, mol_gradient
from rails_ray.kernels.fused_gradient import FusedGradient
from rails_ray.kernels.hashed_dropout import Dropout
from rails_ray.kernels.mol_scan import Activation
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.training import contrast
from rails_ray.training.step import TrainingStep
from support.examples import random_states

pytest.importorskip("triton", reason="needs Triton")
SHARED = ["text, uniform", "text, gathered", "text, streamed"]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """States on a CPU have a kernel, in float32; where it is used is listed."""
    used = []

    class Counted(FusedGradient):
        def scores(self, *arguments: object) -> Tensor:
            used.append("fused")
            return super().scores(*arguments)

    def kernel_for(
        f: Tensor, num_components: tuple[int, int], hidden: int, activation: Activation
    ) -> FusedGradient | None:
        return Counted(num_components, f.shape[2], hidden, activation, (torch.float32, torch.float32))

    monkeypatch.setattr(checked_gradient, "fused_gradient", kernel_for)
    monkeypatch.setattr(contrast, "prefers_copies", lambda device: True)
    return used


def differentiated(name: str, *, is_training: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    training = built(name, made_small(CASES[name]), SMALL, torch.float32, "fused")
    assert isinstance(training.step, TrainingStep)
    loss = training.step.train(is_training)(training.batch_of(0))
    loss.backward()
    named = training.step.named_parameters()
    return loss.detach(), {name: own.grad for name, own in named if own.grad is not None}


@pytest.mark.parametrize("name", SHARED)
def test_its_loss_and_gradient_are_those_of_the_other_way(name: str, request: pytest.FixtureRequest) -> None:
    expected, gradients = differentiated(name)
    used = request.getfixturevalue("as_on_a_gpu")
    loss, found = differentiated(name)
    assert used
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert found.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        assert torch.allclose(found[parameter], gradient, rtol=1e-3, atol=1e-6), parameter


@pytest.mark.usefixtures("as_on_a_gpu")
def test_dropout_draws_alike_where_a_step_scores_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed, the way back scores each block again."""
    words, draw = list[list[int]](), hashed_dropout.drawn

    def recorded(*arguments: Any) -> Dropout | None:
        found = draw(*arguments)
        assert found is not None
        words.append([*found.query_words.tolist(), *found.item_words.tolist()])
        return found

    monkeypatch.setattr(hashed_dropout, "drawn", recorded)
    differentiated("text, streamed", is_training=True)
    num_blocks = len(words) // 2
    assert num_blocks > 1
    assert words[:num_blocks] == words[num_blocks:]
    assert words[0] != words[1]


def test_candidates_of_a_querys_own_and_float32_go_the_other_way(as_on_a_gpu: list[str]) -> None:
    differentiated("histories of 200, own negatives")
    assert not as_on_a_gpu
    query, items = random_states(3, 4, p_q=4, p_x=4)
    config = MixtureOfLogitsConfig(num_query_components=4, num_item_components=4)
    numbers = []
    for precision in ("float32", "bfloat16", "auto"):
        mixture = MixtureOfLogits(replace(config, gate_precision=precision))
        mixture.training_scores(query, items)
        numbers.append(mixture.numbers_per_pair(query, is_shared=True))
        assert mixture.numbers_per_pair(query, is_shared=False) == 128 + 4 * 16
    assert as_on_a_gpu == ["fused", "fused"]
    assert numbers == [128 + 4 * 16, 1, 1]


def test_a_step_keeps_one_number_a_pair(as_on_a_gpu: list[str]) -> None:
    """For the way back, beside its inputs: nothing of B X P or B X H."""
    query, items = random_states(40, 50, p_q=4, p_x=4)
    config = MixtureOfLogitsConfig(num_query_components=4, num_item_components=4, gate_precision="auto")
    mixture = MixtureOfLogits(config)
    kept = dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    for tensor in (query.components, items.components):
        tensor.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mixture.training_scores(query, items)
    assert as_on_a_gpu
    assert sum(kept.values()) <= sum(len(state.gate) * (16 + 4 * 4) for state in (query, items)) + 2 * 16 * 128 + 144
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mol_gradient.scores(query.components, query.gate, items.components, items.gate, mixture.gate_weights())
    assert sum(kept.values()) > 2000 * 128
