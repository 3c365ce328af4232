"""A loss in parts has the value and the gradient of the loss at once."""

import pytest
import torch
from torch import Tensor

from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.training import contrast, parts
from rails_ray.training.parts import NUMBERS_ON_CPU, equal_parts, sum_in_parts
from rails_ray.training.step import in_one_process
from support.examples import batches_of, small_config, small_history_config


def test_values_and_gradients_are_those_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    lines, shared, weight = (torch.randn(*shape, generator=generator).double() for shape in ((7, 3), (5, 3), (3,)))
    numbers = torch.arange(7)  # no gradient
    leaves = [lines.requires_grad_(), shared.requires_grad_(), weight.requires_grad_()]

    def loss_of(part: slice, own: list[Tensor], common: list[Tensor]) -> Tensor:
        assert torch.equal(own[1], numbers[part])
        return (own[1][:, None] * (own[0] * weight) @ common[0].T).logsumexp(1).sum()

    def gradients(cuts: list[slice]) -> tuple[Tensor, ...]:
        loss = sum_in_parts(loss_of, [lines, numbers], [shared], [weight], cuts)
        return loss, *torch.autograd.grad(3 * loss, leaves)

    whole = gradients([slice(0, 7)])
    for cuts in ([slice(0, 3), slice(3, 6), slice(6, 7)], [slice(0, 0), slice(0, 7)]):
        for one, other in zip(gradients(cuts), whole, strict=True):
            assert torch.allclose(one, other, atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(sum_in_parts(loss_of, [lines, numbers], [shared], [weight], cuts), whole[0])


@pytest.mark.parametrize(
    ("num_queries", "numbers", "sizes"), [(0, 9, [0]), (5, 9, [5]), (5, NUMBERS_ON_CPU // 2, [2, 2, 1])]
)
def test_parts_hold_so_many_numbers(num_queries: int, numbers: int, sizes: list[int]) -> None:
    found = equal_parts(num_queries, numbers, torch.device("cpu"))
    assert [part.stop - part.start for part in found] == sizes
    assert [part.start for part in found] == [sum(sizes[:number]) for number in range(len(sizes))]


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("form", ["text", "history", "own of a history", "own of a query"])
def test_a_step_in_parts_is_the_step_at_once(form: str, similarity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(similarity) if form == "text" else small_history_config(similarity)
    options = {"own of a history": {"shared_by": "history"}, "own of a query": {"shared_by": "query"}}.get(form, {})

    def gradients() -> list[Tensor]:
        model = DualEncoderTraining.of(config).model()
        step = DualEncoderTraining.of(config).training_step(model, in_one_process)
        loss = step(batches_of(model, **options).batch(1))
        learnt = [parameter for parameter in step.parameters() if parameter.requires_grad]
        return [loss.detach(), *torch.autograd.grad(loss, learnt)]

    at_once, cut = gradients(), []
    monkeypatch.setattr(parts, "NUMBERS_ON_CPU", 1)  # a part for each query
    monkeypatch.setattr(contrast, "sum_in_parts", lambda *given: cut.append(len(given[-1])) or sum_in_parts(*given))
    for one, other in zip(gradients(), at_once, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert cut[0] > 1


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_copies_of_a_groups_candidates_change_no_gradient(similarity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = DualEncoderTraining.of(small_history_config(similarity))

    def gradients() -> list[Tensor]:
        model = family.model()
        step = family.training_step(model, in_one_process)
        loss = step(batches_of(model, shared_by="history").batch(1))
        learnt = [parameter for parameter in step.parameters() if parameter.requires_grad]
        return [loss.detach(), *torch.autograd.grad(loss, learnt)]

    one_by_one, cut = gradients(), []
    monkeypatch.setattr(contrast, "prefers_copies", lambda device: True)
    monkeypatch.setattr(contrast, "sum_in_parts", lambda *given: cut.append(len(given[-1])) or sum_in_parts(*given))
    for one, other in zip(gradients(), one_by_one, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert cut == [1]
