"""Kinds below kinds, and codebooks that a run trains, as a config says them."""

from collections.abc import Callable

import pytest

from rails_ray.families import config, recipes
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules.quantizers.dqn import DqnConfig
from rails_ray.modules.quantizers.jpq import JpqConfig
from support.examples import small_history_config, small_vector_config, trained_items


def test_kinds_below_kinds() -> None:
    made = recipes.by_name("text-dot").with_kinds(
        {"items.quantizer.method": "dqn", "items.quantizer": "trained", "items": "pq"}
    )
    expected = PqItems(quantizer=TrainedConfig(method=DqnConfig()))
    assert made == recipes.by_name("text-dot").with_family(items=expected)
    assert config.from_json(config.to_json(made)) == made


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        ({"items.quantizer": "trained"}, "items.quantizer.kind must be one of none, got 'trained'"),
        (
            {"items": "pq", "items.quantizer": "best"},
            "items.quantizer.kind must be one of pq, opq, trained, got 'best'",
        ),
        ({"nothing.at": "all"}, "nothing.at.kind must be one of none, got 'all'"),
        ({"items": "some"}, "items.kind must be one of full, pq, got 'some'"),
    ],
)
def test_kinds_that_there_are_not(kinds: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        recipes.by_name("text-dot").with_kinds(kinds)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TrainedConfig(revive_every=-1), "revive_every must be at least 0, got -1"),
        (lambda: TrainedConfig(encoder_rate=0.0), r"encoder_rate must be above 0, got 0\.0"),
        (
            lambda: TrainedConfig(method=JpqConfig(), when="jointly"),
            "when must be after for method.kind jpq, got jointly",
        ),
        (
            lambda: small_history_config().with_family(items=trained_items()),
            "items.quantizer.kind must be pq or opq for a model of histories, got trained",
        ),
        (
            lambda: small_vector_config("cosine").with_family(items=trained_items(when="jointly")),
            "items.quantizer.when must be after for loss.kind none, got jointly",
        ),
        (
            lambda: recipes.by_name("text-dot-glas").with_family(items=trained_items(when="jointly")),
            r"items.quantizer.when must be after for terms.glas_weight [\d.]+, got jointly",
        ),
    ],
)
def test_codebooks_that_cannot_be_trained(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
