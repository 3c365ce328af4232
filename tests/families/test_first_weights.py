"""What a dual encoder is before any training."""

from dataclasses import replace

import pytest
import torch

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from support.examples import (
    small_config,
    small_history_config,
)


@pytest.mark.parametrize("made", [small_config(), small_history_config()], ids=["texts", "histories"])
def test_initial_weights_are_the_seeds(made: RunConfig) -> None:
    first, second = (DualEncoderTraining.of(made).model() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_an_item_begins_near_a_query_of_the_same_words(similarity: str) -> None:
    model = DualEncoderTraining.of(small_config(similarity)).model().eval()
    features = model.query_features(["red car", "blue hat", "gold lamp"])
    query, items = model.encode_queries(features), model.encode_items(features)
    assert torch.allclose(query.components, items.components, atol=1e-6)


def test_a_mixture_begins_as_a_dot_product() -> None:
    """Its gates lie on the pairs p_x = p_q, alike: the mean of their cosines is one of longer vectors."""
    config = small_config()
    similarity = replace(config.family.similarity, num_query_components=4)
    model = DualEncoderTraining.of(config.with_family(similarity=similarity)).model().eval()
    query = model.encode_queries(model.query_features(["red car", "blue hat", "gold lamp"]))
    items = model.encode_items(model.item_features(["rose", "red car", "a lamp of gold", "hat"]))
    gates = model.score(query, items).gates.unflatten(2, (4, 2))
    is_open = torch.eye(4, 2).bool()
    assert (gates[:, :, ~is_open] < 0.02).all()
    assert torch.allclose(gates[:, :, is_open], torch.tensor(0.5), atol=0.2)


def test_a_gate_reads_what_its_config_says() -> None:
    config = small_config()
    similarity = replace(config.family.similarity, gate_inputs=("item",))
    model = DualEncoderTraining.of(config.with_family(similarity=similarity)).model()
    query = model.encode_queries(model.query_features(["red", "blue sky"]))
    items = model.encode_items(model.item_features(["rose", "heaven"]))
    assert (query.gate == 1).all()
    assert not (items.gate == 1).any()
