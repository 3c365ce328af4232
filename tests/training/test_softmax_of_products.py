"""A step whose loss is the softmax of inner products, by the kernel of a CPU and by the scores of all pairs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rails_ray.data.batch import TrainingBatch
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.training import contrast
from rails_ray.training.step import in_one_process
from support.examples import COLOURED, NO_TERMS, THINGS, sampler_of, small_config, small_history_config, window_sampler

SOFTMAX = ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0)
OTHERS = {
    "exp_nce": ContrastiveConfig(kind="exp_nce", pointwise_weight=0.0),
    "beta_nce": ContrastiveConfig(kind="beta_nce", pointwise_weight=0.0),
    "with the pointwise loss": ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.5),
}


def of_texts(similarity: str, loss: ContrastiveConfig = SOFTMAX, **how: Any) -> RunConfig:
    config = small_config(similarity)
    warm = replace(config.family.similarity, temperature=1.0)  # or the gradients are all but 0
    return config.with_family(loss=loss, terms=NO_TERMS, similarity=warm, **how)


def of_histories() -> RunConfig:
    return small_history_config("dot product").with_family(
        loss=SOFTMAX, terms=NO_TERMS, similarity=DotProductConfig(temperature=1.0)
    )


def differentiated(config: RunConfig, batch_of: Any) -> tuple[Tensor, list[Tensor]]:
    family = DualEncoderTraining.of(config)
    model = family.model()
    step = family.training_step(model, in_one_process)
    loss = step(batch_of(model))
    trained = [parameter for parameter in step.parameters() if parameter.requires_grad]
    return loss, [own for own in torch.autograd.grad(loss, trained, allow_unused=True) if own is not None]


def weighted(batch: TrainingBatch) -> TrainingBatch:
    num, num_items = len(batch.positive), len(batch.items)
    batch = TrainingBatch(**{**vars(batch), "weights": torch.linspace(0.1, 2, num)})
    return TrainingBatch(**{**vars(batch), "log_weights": torch.linspace(-1, 1, num_items)})


def in_batch(model: Any) -> TrainingBatch:
    features = model.query_features(COLOURED.inputs), model.item_features(THINGS)
    batch: TrainingBatch = InBatchSampler(COLOURED, *features, batch_size=6, seed=0).batch(0)
    return batch


CASES: dict[str, tuple[RunConfig, Any]] = {
    "drawn": (of_texts("dot product"), lambda model: sampler_of(model).batch(0)),
    "weighted": (of_texts("dot product"), lambda model: weighted(sampler_of(model).batch(0))),
    "in_batch": (of_texts("dot product"), in_batch),
    "cross_device": (of_texts("dot product", negatives=CrossDeviceNegatives()), in_batch),
    "histories": (of_histories(), lambda model: window_sampler().batch(0)),
    "histories, weighted": (of_histories(), lambda model: weighted(window_sampler().batch(0))),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_all_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_calls(monkeypatch)
    loss, gradients = differentiated(*CASES[name])
    assert counted == [1]
    monkeypatch.setattr(contrast, "is_softmax_of_products", lambda *how: False)
    expected, others = differentiated(*CASES[name])
    assert counted == [1]
    assert loss.item() > 0.01
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len(gradients) == len(others) > 3
    for own, other in zip(gradients, others, strict=True):
        assert (own - other).norm() <= 1e-4 * other.norm()


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_read_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_calls(monkeypatch)
    differentiated(of_texts("dot product", OTHERS[name]), lambda model: sampler_of(model).batch(0))
    differentiated(of_texts("mixture"), lambda model: sampler_of(model).batch(0))
    grouped = of_histories(), lambda model: window_sampler(shared_by="history").batch(0)
    differentiated(*grouped)
    assert not counted


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted, kernel = list[int](), contrast.product_softmax

    def called(*how: Any) -> Tensor:
        counted.append(1)
        return kernel(*how)

    monkeypatch.setattr(contrast, "product_softmax", called)
    return counted
