"""The codes of a batch's items in a training step: what is compared, what is added, and codewords that come alive."""

from dataclasses import replace

import pytest
import torch

from rails_ray.modules.quantizers.dqn import DqnConfig
from rails_ray.modules.quantizers.learned import Matched, Method
from rails_ray.modules.quantizers.mopq import MopqConfig
from rails_ray.modules.quantizers.product import ProductQuantizer
from support.examples import sampler_of
from support.quantizers import TAU, a_step


@pytest.mark.parametrize("method", [MopqConfig(codeword_weight=0.5), DqnConfig(reconstruction_weight=2.0)])
def test_the_loss_is_that_of_what_is_compared_and_the_methods_own(method: Method) -> None:
    """MoPQ compares what codes stand for, DQN the vectors."""
    step = a_step(method).eval()
    model, quantizing = step.model, step.quantizing
    assert quantizing is not None
    batch = sampler_of(model).batch(0)
    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    quantized = quantizing(items)
    components = items.components
    if isinstance(method, MopqConfig):
        quantizer = quantizing.learned.frozen()
        components = quantizer.decode(quantizer.encode(components.flatten(1))).unflatten(1, (2, -1))
    compared = replace(items, components=components, average=None)
    loss, _ = step.contrast(model, step.objective, query, compared, batch)
    beside = method.loss(Matched(query.components, quantized, batch.roles(), TAU)).sum()
    assert beside > 0
    assert step(batch).item() == pytest.approx(((loss + beside) * batch.weight).item(), rel=1e-5)


def test_the_gradient_reaches_codebooks_and_encoder() -> None:
    step = a_step(MopqConfig())
    step(sampler_of(step.model).batch(0)).backward()
    assert step.quantizing is not None
    for parameter in (step.quantizing.learned.codebooks, step.model.item_components.project.weight):
        assert parameter.grad is not None
        assert parameter.grad.norm() > 0


def test_codewords_that_no_item_has_come_alive_in_training_alone() -> None:
    step = a_step(MopqConfig(), revive_every=3)
    quantizing = step.quantizing
    assert quantizing is not None
    with torch.no_grad():
        quantizing.learned.codebooks[:, 3] = 1000.0
    batches = sampler_of(step.model)
    step.eval()
    for number in range(4):
        step(batches.batch(number))
    assert int(quantizing.num_steps) == 0
    step.train()
    for number in range(3):
        step(batches.batch(number))
    assert int(quantizing.num_revived) == 0
    step(batches.batch(3))
    assert int(quantizing.num_revived) >= 6
    assert quantizing.learned.codebooks.max() < 1000
    assert isinstance(quantizing.learned.frozen(), ProductQuantizer)
