"""Names that users import, and where they lead."""

import importlib

import pytest

from rails_ray import client, local, on_ray
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


def test_a_version_is_opened_by_the_public_door() -> None:
    assert local.open is serving_local.open
    assert local.Version is serving_local.LocalVersion


def test_the_client_has_all_that_its_module_defines() -> None:
    own = {
        name
        for name, value in vars(serving_client).items()
        if getattr(value, "__module__", "") == serving_client.__name__ and not name.startswith("_")
    }
    answers = {"SearchResponse", "QueryResult", "ExplainResponse", "FeedbackResponse"}
    assert {*own, *answers, "Query"} == set(client.__all__)
    assert all(getattr(client, name) is getattr(serving_client, name) for name in own)
    assert all(getattr(client, name) is getattr(responses, name) for name in answers)
