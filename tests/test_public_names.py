"""Names that users import, and where they lead."""

import importlib
import inspect
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rails_ray import client, local, on_ray, serve_app
from rails_ray.families import recipes
from rails_ray.families.config import RunConfig
from rails_ray.schema import responses
from rails_ray.serving import client as serving_client
from rails_ray.serving import local as serving_local


@pytest.mark.parametrize("name", on_ray.__all__)
def test_each_stage_is_found_by_its_name(name: str) -> None:
    stage = getattr(on_ray, name)
    assert callable(stage)
    assert stage is getattr(importlib.import_module(stage.__module__), name)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        on_ray.nope  # noqa: B018, as the access is what is tested


@pytest.mark.parametrize("module", [client, local, on_ray, recipes, serve_app])
def test_a_public_module_shows_what_it_offers_and_nothing_else(module: ModuleType) -> None:
    shown = dir(module)
    assert shown == sorted(module.__all__)
    assert len(shown) == len(set(shown))
    for name in shown:
        offered = getattr(module, name)
        assert callable(offered) or name == "Query", name  # a type of the request's, which is an alias
        assert inspect.getdoc(offered), name
    assert set(getattr(module, "MODULES", ())) <= set(shown)  # which a lazy module imports when they are named


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_recipe_takes_what_people_change_first(recipe: recipes.Recipe, tmp_path: Path) -> None:
    plain = recipe()
    assert recipe(seed=3).seed == 3
    assert recipe(tmp_path).data.folder == recipe(str(tmp_path)).data.folder == str(tmp_path)
    changed = recipe("texts", num_steps=7, batch_size=8, learning_rate=0.5)
    assert changed.family == plain.family
    assert (changed.training.num_steps, changed.training.batch_size, changed.training.learning_rate) == (7, 8, 0.5)
    assert changed.training.weight_decay == plain.training.weight_decay
    assert recipe().data == plain.data
    assert list(inspect.signature(recipe).parameters) == [
        "folder", "seed", "width", "num_steps", "batch_size", "learning_rate",
    ]  # fmt: skip
    assert "Args:" in (inspect.getdoc(recipe) or "")
    assert pickle.loads(pickle.dumps(recipe)) is recipe


def width_of(config: RunConfig) -> int:
    family: Any = config.family
    width: int = family.components.width
    return width


def test_a_recipe_takes_the_width_of_its_components_or_refuses_it() -> None:
    assert width_of(recipes.text_mol(width=8)) == 8
    assert width_of(recipes.text_mol()) == 64
    for recipe in (recipes.text_solar, recipes.baseline_bm25, recipes.text_rbe, recipes.vector_cosine):
        name = recipe.__name__.replace("_", "-")
        with pytest.raises(ValueError, match=f"^width must be left out for {name}, which makes no components, got 8$"):
            recipe(width=8)
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        recipes.vector_dot(width=0)
    text_mol: Any = recipes.text_mol
    with pytest.raises(TypeError, match="unexpected keyword argument 'foldr'"):
        text_mol(foldr="texts")


def test_a_version_is_opened_by_the_public_door() -> None:
    assert local.open is serving_local.open
    assert local.Version is serving_local.LocalVersion


def test_the_client_has_all_that_its_module_defines() -> None:
    own = {
        name
        for name, value in vars(serving_client).items()
        if getattr(value, "__module__", "") == serving_client.__name__ and not name.startswith("_")
    }
    answers = {"SearchResponse", "QueryResult", "ExplainResponse", "FeedbackResponse", "ItemsResponse"}
    assert {*own, *answers, "Query"} == set(client.__all__)
    assert all(getattr(client, name) is getattr(serving_client, name) for name in own)
    assert all(getattr(client, name) is getattr(responses, name) for name in answers)
