import pytest
import torch

from rails_ray.modules.encoders.two_tower import TwoTower, TwoTowerConfig

CONFIG = TwoTowerConfig(width=8, hidden=6, num_buckets=100)


def test_representation_is_that_of_the_mean_bag() -> None:
    torch.manual_seed(0)
    encoder = TwoTower(CONFIG)
    features = encoder.query_features(["red car"])
    bag = encoder.norm(encoder.embeddings.weight[features.tokens].mean(0))
    assert torch.allclose(encoder.queries(features)[0], bag + encoder.query_tower(bag), atol=1e-6)
    assert torch.allclose(encoder.items(features)[0], bag + encoder.item_tower(bag), atol=1e-6)


def test_both_towers_begin_equal_and_are_two() -> None:
    encoder = TwoTower(CONFIG)
    features = encoder.query_features(["red car", "blue hat"])
    assert torch.equal(encoder.queries(features), encoder.items(features))
    assert encoder.query_tower[0].weight is not encoder.item_tower[0].weight


def test_a_text_without_words_has_a_finite_representation() -> None:
    encoder = TwoTower(CONFIG)
    assert encoder.queries(encoder.query_features(["...", ""])).isfinite().all()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", 0, "width must be at least 1, got 0"),
        ("ngram_sizes", (1,), r"ngram_sizes must be at least 2, got \(1,\)"),
    ],
)
def test_config_out_of_range(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TwoTowerConfig(**{field: value})
