from dataclasses import replace

import pytest

import oracles
from examples import sampler_of, small_config
from rails_ray import build
from rails_ray.config import LossConfig
from rails_ray.training.step import in_one_process


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("kind", ["beta_nce", "sampled_softmax"])
def test_loss_is_the_sum_of_its_equations(similarity: str, kind: str) -> None:
    config = small_config(similarity)
    config = replace(config, loss=LossConfig(kind=kind, pointwise_weight=0.5, mutual_information_weight=0.25))
    model = build.model(config)
    step = build.training_step(model, config, in_one_process).eval()
    batch = sampler_of(model).batch(0)
    loss = step(batch).item()

    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    scores, gates = model.score(query, items)
    tau = config.similarity.temperature
    logits = [
        [oracles.beta_logit(score, tau_q) if kind == "beta_nce" else score / tau for score in line]
        for line, tau_q in zip(scores.tolist(), query.temperature.tolist(), strict=True)
    ]
    positive, hidden = batch.positive.tolist(), batch.is_hidden.tolist()
    expected = oracles.sampled_softmax(logits, positive, hidden)
    expected += 0.5 * oracles.pointwise(logits, positive, hidden, step.pointwise_offset.item())
    if gates is not None:
        own = [gates[line, column].tolist() for line, column in enumerate(positive)]
        expected += 0.25 * oracles.mutual_information(own)
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["beta_nce", "sampled_softmax"])
@pytest.mark.parametrize("pointwise_weight", [0.0, 0.5])
def test_every_trained_parameter_has_a_gradient(kind: str, pointwise_weight: float) -> None:
    """Data-parallel training refuses parameters that the loss does not reach."""
    config = replace(small_config(), loss=LossConfig(kind=kind, pointwise_weight=pointwise_weight))
    model = build.model(config)
    step = build.training_step(model, config, in_one_process)
    step(sampler_of(model).batch(0)).backward()
    for name, parameter in step.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert model.query_components.temperature.output.weight.requires_grad == (kind == "beta_nce")
