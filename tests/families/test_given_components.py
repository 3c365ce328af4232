"""Components that are given: the representation of a history, and the embedding of an item, as they are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.errors import UnsupportedError
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.losses.config import (
    ContrastiveConfig,
    NoneConfig,
)
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from support.examples import (
    small_config,
    small_history_config,
    small_named_config,
    small_vector_config,
)

HISTORIES = small_history_config()
NAMED = small_named_config()
AS_THEY_ARE = ComponentsConfig(queries="given", items="given")
SOFTMAX = ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0)
PLAIN_HISTORIES = small_history_config("dot product").with_family(
    components=replace(AS_THEY_ARE, lengths="at_most_one"), loss=SOFTMAX
)
MIXED_HISTORIES = small_history_config().with_family(
    similarity=MixtureOfLogitsConfig(num_query_components=4, num_item_components=1, gate_hidden=5),
    components=ComponentsConfig(items="given", lengths="at_most_one", query_hidden=0, gate_hidden=5),
    loss=SOFTMAX,
)


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (
            small_history_config("dot product"),
            {"components": ComponentsConfig(items="given")},
            r"components\.queries must be given where components\.items are given for a dot product of hist.*, got",
        ),
        (
            small_history_config("dot product"),
            {"components": AS_THEY_ARE},
            r"components\.queries and components\.items must be projected for loss\.kind beta_nce, got given: each q",
        ),
        (
            HISTORIES,
            {"components": ComponentsConfig(items="given")},
            r"similarity\.num_item_components must be 1 where components\.items are given .*, got 2: an item has one",
        ),
        (
            HISTORIES,
            {"components": AS_THEY_ARE},
            r"components\.queries and components\.items must be projected for similarity\.kind mixture_of_logits, got",
        ),
        (
            PLAIN_HISTORIES,
            {"components": replace(AS_THEY_ARE, width=12)},
            r"components\.width must be left out, or the 8 of encoder\.width, .*, got 12: set encoder\.width",
        ),
        (
            NAMED,
            {"components": replace(AS_THEY_ARE, lengths="at_most_one")},
            r"components\.lengths must be one for vectors as they are, got at_most_one",
        ),
        (HISTORIES, {"loss": NoneConfig()}, r"loss\.kind must not be none for a model of histories, .* got none"),
        (
            small_config("dot product"),
            {"components": AS_THEY_ARE},
            r"components\.items must be projected for encoder\.kind two_tower, got given: only frozen vectors and hist",
        ),
        (
            small_vector_config("cosine"),
            {"components": ComponentsConfig(queries="given", items="given", lengths="at_most_one")},
            r"components\.lengths must be one for vectors as they are, got at_most_one: they are compared by cosines",
        ),
        (NAMED, {"loss": NoneConfig()}, r"loss\.kind must not be none for encoder\.kind named_vectors, .* got none"),
    ],
)
def test_components_that_cannot_be_given(made: RunConfig, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.with_family(**fields)


def test_a_history_is_its_only_component_as_it_is() -> None:
    """Neither side has a projection, an item's component is its embedding, and the encoder's width is a component's."""
    config = PLAIN_HISTORIES
    assert config.family.numbers_of_item == 8
    assert config.with_width(12).family.encoder.width == config.with_width(12).family.numbers_of_item == 12
    family = DualEncoderTraining.of(config)
    assert family.cutoff_support.has_bounded_scores
    with pytest.raises(UnsupportedError, match=r"needs scores that are cosines, got components\.lengths at_most_one:"):
        family.cutoff_support.background("sphere", None)
    assert family.cutoff_support.uncalibrated == "uniform"
    model = family.model().eval()
    items = model.encode_items(model.item_features(np.arange(9)))
    assert torch.equal(items.components[:, 0], model.encoder.embeddings.weight)  # shorter than 1
    query = model.encode_queries(model.query_features([[1, 2], [8]]))
    assert query.components.norm(dim=2).allclose(torch.ones(2, 1))  # of a LayerNorm, longer than 1
    names = {name for name, own in model.named_parameters() if own.requires_grad}
    assert not any(name.startswith(("query_components", "item_components")) for name in names)


def test_a_mixture_over_the_embeddings_of_items_begins_as_their_dot_product() -> None:
    """An item stores its embedding and its part of the gate, and a dot product of as many numbers has no projection."""
    mixture = MIXED_HISTORIES
    assert mixture.family.numbers_of_item == 8 + 4
    other = DualEncoderTraining.of(mixture).as_dot_product()
    assert other is not None
    assert other.family.numbers_of_item == other.family.encoder.width == 12
    assert other.family.components.queries == other.family.components.items == "given"
    model, plain = (DualEncoderTraining.of(own).model().eval() for own in (mixture, other.with_width(8)))
    items, of_plain = (own.encode_items(own.item_features(np.arange(9))) for own in (model, plain))
    assert torch.equal(items.components[:, 0], model.encoder.embeddings.weight)
    query = model.encode_queries(model.query_features([[1, 2], [8]]))
    assert query.components.shape == (2, 4, 8)
    assert torch.allclose(query.components, query.components[:, :1].expand(-1, 4, -1))
    dot_product = query.components[:, 0] @ items.components[:, 0].T
    assert torch.allclose(model.score(query, items).scores, dot_product, atol=1e-6)
    assert of_plain.components.shape == items.components.shape
    of_beta = DualEncoderTraining.of(mixture.with_family(loss=ContrastiveConfig())).as_dot_product()
    assert of_beta is not None
    assert of_beta.family.components.queries == of_beta.family.components.items == "projected"


@pytest.mark.parametrize("num_users", [0, 7])
@pytest.mark.parametrize("query_hidden", [0, 6])
def test_components_begin_as_the_history_where_nothing_lies_between(num_users: int, query_hidden: int) -> None:
    """The user of a history is a component of its own, which is no copy."""
    encoder, components = MIXED_HISTORIES.family.encoder, MIXED_HISTORIES.family.components
    config = MIXED_HISTORIES.with_family(
        encoder=replace(encoder, num_users=num_users), components=replace(components, query_hidden=query_hidden)
    )
    model = DualEncoderTraining.of(config).model().eval()
    features = model.query_features([[1, 2], [8]])
    history = model.encoder.queries(features)[:, :8]
    query = model.encode_queries(features)
    cosines = torch.cosine_similarity(query.components, history[:, None], dim=2)
    assert cosines.shape == (2, 4)
    num_copies = 0 if query_hidden else 4 - (num_users > 0)
    assert (cosines > 0.999).sum(dim=1).tolist() == [num_copies] * 2


def test_a_dot_product_of_as_many_numbers_is_projected_where_heads_do_not_divide_them() -> None:
    encoder = replace(MIXED_HISTORIES.family.encoder, num_heads=8)
    other = DualEncoderTraining.of(MIXED_HISTORIES.with_family(encoder=encoder)).as_dot_product()
    assert other is not None
    assert other.family.numbers_of_item == other.family.components.width == 12
    assert (other.family.components.items, other.family.encoder.width) == ("projected", 8)
