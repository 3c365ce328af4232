"""Requests that schemathesis derives from the OpenAPI: each gets an answer that the document describes, and no 500."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rails_ray.serving.http.admission import QUESTIONS
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.items import PATH
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from support.ports import free_port

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


def no_server() -> Any:
    raise AssertionError("a document needs no server")


SCHEMA = schemathesis.openapi.from_dict(api_of(no_server).openapi())
KEY = "a-key-of-the-test-1"
OPERATIONS = {own.ok().label: own.ok() for own in SCHEMA.get_all_operations()}


def tell(case: schemathesis.Case, item: Any) -> None:
    """Make a request ask for what there is: no document says which items and which fields a version has."""
    if "name" in case.path_parameters:
        case.path_parameters["name"] = "rails-ray"
    case.headers.pop("x-deadline-ms", None)
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if case.operation.path == PATH:
        body |= {"items": [{"id": "new", "text": "red"}]} if "items" in body else {"ids": ["nobody"]}
        return
    if "items" in body:
        body |= {"items": [item], "query": {"text": "red"}}
    if "queries" in body:
        body |= {"queries": [{"text": "red"}], "k": 3, "method": "brute_force", "cutoff": None, "budget": None}
    if isinstance(body.get("search"), dict):
        body |= {"relevant": [[item]], "search": {"queries": [{"text": "red"}]}}
    if isinstance(body.get("inputs"), list):
        for given_input in filter(lambda own: isinstance(own, dict), body["inputs"]):
            given_input |= {"shape": [1], "data": ["red"]}


def test_the_document_names_the_header_of_each_question() -> None:
    paths = api_of(no_server).openapi()["paths"]
    with_header = {
        path
        for path, methods in paths.items()
        for own in methods.values()
        if {"x-deadline-ms"} & {given["name"] for given in own.get("parameters", ())}
    }
    assert with_header == set(QUESTIONS)
    infer = paths["/v2/models/{name}/infer"]["post"]["parameters"]
    assert [own["name"] for own in infer] == ["name", "x-deadline-ms"]


@pytest.fixture(scope="module")
def url(version: LocalVersion, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys, port = tmp_path_factory.mktemp("keys") / "keys", free_port()
    keys.write_text(f"{KEY}\n")
    with listening(SingleProcessServer(version, str(keys), changes_items=True), port=port):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "label", [pytest.param(label, marks=() if label == "POST /v1/search" else pytest.mark.long) for label in OPERATIONS]
)
def test_every_answer_is_as_the_document_says(url: str, version: LocalVersion, label: str) -> None:
    item = version.search(["red"], k=1).results[0].items[0]
    strategy, statuses = OPERATIONS[label].as_strategy(), set[int]()

    num = 20 if PATH in label else 100  # each item that is stored makes a version

    @settings(max_examples=num, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=strategy, is_told=st.booleans())
    def check(case: schemathesis.Case, is_told: bool) -> None:
        if is_told:
            tell(case, item)
        answer = case.call(base_url=url, timeout=20, headers={"authorization": f"Bearer {KEY}"})
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    check()
    assert 500 not in statuses
    assert 200 in statuses, "a test of refusals alone would miss what is behind them"


def test_every_path_is_asked() -> None:
    document = api_of(no_server).openapi()
    asked = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert asked == set(OPERATIONS)
