import json
from pathlib import Path

import pytest
import torch

from examples import small_config, write_text_data
from rails_ray import build, config, recipes
from rails_ray.config import DataConfig
from rails_ray.storage.filesystem import Storage


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_config_comes_back_from_its_json(recipe) -> None:
    assert config.from_json(config.to_json(recipe())) == recipe()


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_recipe_is_found_by_its_own_name(recipe) -> None:
    assert recipes.by_name(recipe().name) == recipe()


def test_an_unknown_recipe() -> None:
    with pytest.raises(ValueError, match="recipe must be one of emoji-mol, emoji-dot, got 'emoji'"):
        recipes.by_name("emoji")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"speed": 9}, "unexpected keyword argument 'speed'"),
        (lambda value: {key: v for key, v in value.items() if key != "loss"}, "'loss'"),
        (lambda value: value | {"training": {"num_steps": 0}}, "num_steps must be at least 1, got 0"),
        (lambda value: value | {"encoder": {"ngram_sizes": [1]}}, "ngram_sizes must be at least 2"),
    ],
)
def test_a_config_that_is_none(change, message: str) -> None:
    value = change(json.loads(config.to_json(small_config())))
    with pytest.raises(ValueError, match=message):
        config.from_json(json.dumps(value).encode())


def test_initial_weights_are_the_seeds() -> None:
    first, second = (build.model(small_config()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_an_item_begins_near_a_query_of_the_same_words(similarity: str) -> None:
    model = build.model(small_config(similarity)).eval()
    features = model.features(["red car", "blue hat", "gold lamp"])
    query, items = model.encode_queries(features), model.encode_items(features)
    assert torch.allclose(query.components, items.components, atol=1e-6)


def test_packaged_data_is_written_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    settings = DataConfig(num_valid=20, num_test=20)
    first = build.data(settings, storage)
    (folder,) = (tmp_path / "data").iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(written) == {"items.parquet", "queries.parquet", "relevance.parquet"}
    assert build.data(settings, storage).queries["test"].texts == first.queries["test"].texts
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written


def test_data_of_the_user(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "mine")
    data = build.data(DataConfig(folder=str(folder)), Storage(str(tmp_path / "storage")))
    assert len(data.item_ids) == 60
