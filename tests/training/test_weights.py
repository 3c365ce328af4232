"""Weights in the loss of a step: sum_i w_i l_i / sum_i w_i, for every loss and every way to compare."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles.losses
from rails_ray.data.batch import TrainingBatch, relative
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.vector_items.storing import Method as Methods
from rails_ray.modules.losses.config import ContrastiveConfig, TermsConfig
from rails_ray.modules.losses.negatives import BatchRelevance
from rails_ray.modules.quantizers.learned import Method
from rails_ray.training.contrast import Contrast, Gathered, PrimaryAndImage, Streamed, WithinBatch
from rails_ray.training.step import TrainingStep, in_one_process
from support.examples import EVERY_LOSS, NO_TERMS, batches_of, sampler_of, small_config, small_history_config
from support.quantizers import a_step

WEIGHTS = [2.0, 0.0, 1.0, 3.0, 1.0, 0.0]
Found = tuple[float, dict[str, Tensor]]


def weighted(batch: TrainingBatch, weights: Sequence[float]) -> TrainingBatch:
    return replace(batch, weights=relative(np.array(weights)))


def chosen(batch: TrainingBatch, lines: Sequence[int]) -> TrainingBatch:
    """Some queries of a batch, as often as they are named, against the same items."""
    query, item_row = batch.relevance
    places = [(number, int(row)) for number, line in enumerate(lines) for row in item_row[query == line]]
    return replace(
        batch,
        queries=batch.queries.take(torch.tensor(lines)),
        positive=batch.positive[torch.tensor(lines)],
        relevance=BatchRelevance(*(torch.tensor(column) for column in zip(*places, strict=True))),
        weight=1 / len(lines),
    )


def found(step: TrainingStep, batch: TrainingBatch) -> Found:
    step.zero_grad()
    torch.manual_seed(0)
    loss = step(batch)
    loss.backward()
    return loss.item(), {name: own.grad.clone() for name, own in step.named_parameters() if own.grad is not None}


def check_equal(one: Found, other: Found) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5, abs=1e-6)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-3, atol=1e-5, msg=name)


def step_of(config: RunConfig, contrast: Contrast | None = None) -> TrainingStep:
    family = DualEncoderTraining.of(config)
    step = family.training_step(family.model(), in_one_process)
    step.contrast = contrast or step.contrast
    return step.eval()


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=str)
def test_the_loss_is_the_weighted_mean_of_its_queries(loss) -> None:
    config = small_config().with_family(loss=loss, terms=TermsConfig(mutual_information_weight=0.25))
    step = step_of(config)
    model, batch = step.model, sampler_of(step.model).batch(0)
    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    scores, gates = model.score(query, items)
    losses = step.objective(scores, query, batch.roles()).tolist()
    own = [gates[line, column].tolist() for line, column in enumerate(batch.positive.tolist())]
    expected = oracles.losses.weighted_mean(losses, WEIGHTS)
    expected += 0.25 * oracles.losses.mutual_information(own, WEIGHTS)
    assert step(weighted(batch, WEIGHTS)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "contrast", [WithinBatch(), Gathered(), PrimaryAndImage(), Streamed(2)], ids=lambda own: type(own).__name__
)
def test_a_weight_is_how_often_a_query_is_there(contrast: Contrast) -> None:
    config = small_config().with_family(
        loss=ContrastiveConfig(pointwise_weight=0.5), terms=TermsConfig(mutual_information_weight=0.5)
    )
    step = step_of(config, contrast)
    batch = sampler_of(step.model).batch(0)
    repeated = chosen(batch, [line for line, weight in enumerate(WEIGHTS) for _ in range(int(weight))])
    check_equal(found(step, weighted(batch, WEIGHTS)), found(step, repeated))


def test_gradient_caching_weighs_too() -> None:
    step = step_of(small_config())
    batch = weighted(sampler_of(step.model).batch(0), WEIGHTS)
    whole = found(step, batch)
    step.encode_size = 2
    check_equal(whole, found(step, batch))
    assert whole[0] != pytest.approx(found(step, replace(batch, weights=None))[0], rel=1e-3)


def test_gates_of_others_are_weighed_as_their_queries_are() -> None:
    config = small_config().with_family(terms=NO_TERMS)
    terms = TermsConfig(mutual_information_weight=0.5, mutual_information_of="all")
    plain, step = step_of(config), step_of(config.with_family(terms=terms))
    model, batch = step.model, weighted(sampler_of(step.model).batch(0), WEIGHTS)
    query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
    gates = model.score(query, items).gates
    torch.manual_seed(3)
    others = torch.randint(len(items), (len(query), 1))[:, 0].tolist()
    read = [
        gates[line, column].tolist()
        for columns in (batch.positive.tolist(), others)
        for line, column in enumerate(columns)
    ]
    expected = plain(batch).item() + 0.5 * oracles.losses.mutual_information(read, WEIGHTS * 2)
    torch.manual_seed(3)
    assert step(batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", [made() for made in get_args(Methods)], ids=lambda own: own.kind)
def test_what_a_quantizer_adds_is_weighed(method: Method) -> None:
    step = a_step(method, revive_every=0).eval()
    batch = sampler_of(step.model).batch(0)
    repeated = chosen(batch, [line for line, weight in enumerate(WEIGHTS) for _ in range(int(weight))])
    check_equal(found(step, weighted(batch, WEIGHTS)), found(step, repeated))


def test_positions_of_histories_are_weighed() -> None:
    for shared_by in ("batch", "history", "query"):
        step = step_of(small_history_config().with_family(terms=NO_TERMS))
        batch = batches_of(step.model, **({"shared_by": shared_by})).batch(0)
        num = len(batch.positive)
        losses = []
        for line in range(num):  # a weight that is alone selects its loss
            alone = weighted(batch, [float(other == line) for other in range(num)])
            losses.append(step(alone).item())
        weights = [float(line % 4) for line in range(num)]
        expected = oracles.losses.weighted_mean(losses, weights)
        assert step(weighted(batch, weights)).item() == pytest.approx(expected, rel=1e-4)
        assert step(batch).item() == pytest.approx(sum(losses) / num, rel=1e-4)


def test_a_batch_without_weight_has_no_gradient() -> None:
    step = step_of(small_config().with_family(terms=NO_TERMS))
    loss, gradients = found(step, weighted(sampler_of(step.model).batch(0), [0.0] * 6))
    assert loss == 0
    assert all(not gradient.any() for gradient in gradients.values())
