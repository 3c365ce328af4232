"""Filters, included items and attributes over HTTP: the answers and the sentences of a version in this process."""

import json
import re
from io import BytesIO
from typing import Any

import httpx
import pyarrow as pa
import pytest

from rails_ray.client import Client
from rails_ray.serving import local
from rails_ray.serving.http import arrow
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.request_limits import Limits
from rails_ray.storage.filesystem import Storage
from support.attributes import KINDS, random_items, with_attributes
from support.examples import publish_here

FILTER = {"price": {"$lt": 10}, "$or": [{"tags": "a"}, {"at": {"$gte": "2026-01-02T00:00:00Z"}}]}
OPTIONS: dict[str, Any] = {"k": 9, "filter": FILTER, "fields": ["at", "tags", "price", "new", "year"]}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> LocalVersion:
    folder = tmp_path_factory.mktemp("web")
    publish_here(folder)
    with_attributes(Storage(str(folder)), random_items(60))
    return local.open(str(folder), limits=Limits())


def test_the_answers_of_a_version_in_this_process(version: LocalVersion, url: str) -> None:
    queries = ["red", {"text": "hat", "include": ["item-1", "item-2", "item-3", "nowhere"]}]
    with Client(url) as client:
        assert client.index()["attributes"] == KINDS
        found = client.search(queries, **OPTIONS)
        assert found.model_dump() == version.search(queries, **OPTIONS).model_dump()
        assert found.results[1].num_unknown_included == 1
        assert found.results[0].num_searched > len(found.results[1].items)
        judged = client.feedback(["red"], [[*found.results[0].items[:2], "item-0"]], k=5, filter=FILTER)
        assert judged.kept[0][:2] == [True, True]


def test_bodies_in_arrow(version: LocalVersion, url: str) -> None:
    queries = pa.table({"text": ["red", "hat"], "include": [None, ["item-1", "item-2"]]})
    body = BytesIO()
    with pa.ipc.new_stream(body, queries.schema.with_metadata({"search": json.dumps(OPTIONS)})) as writer:
        writer.write_table(queries)
    headers = {"content-type": arrow.TYPE, "accept": arrow.TYPE}
    answer = httpx.post(f"{url}/v1/search", content=body.getvalue(), headers=headers).raise_for_status()
    table = pa.ipc.open_stream(answer.content).read_all()
    kinds = {field.name: field.type for field in table.schema.field("fields").type.value_type}
    assert kinds["price"] == pa.float64()
    assert kinds["tags"] == pa.list_(pa.string())
    expected = version.search(["red", {"text": "hat", "include": ["item-1", "item-2"]}], **OPTIONS)
    for found, own in zip(table.to_pylist(), expected.results, strict=True):
        assert (found["items"], found["fields"]) == (own.items, own.fields)
        assert (found["num_searched"], found["num_unknown_included"]) == (own.num_searched, own.num_unknown_included)


DEEP = re.compile(r'"nested (\d+)"')  # json itself refuses to write what is nested so deep


def to_json(body: dict[str, Any]) -> str:
    """A body in which `nested N` stands for a filter of N levels."""
    return DEEP.sub(lambda found: '{"$not": ' * int(found[1]) + '{"year": 1}' + "}" * int(found[1]), json.dumps(body))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"filter": "nested 100"}, "filter must nest at most 16 levels deep, got more"),
    ({"filter": "nested 400"}, "filter must nest at most 16 levels deep, got more"),
    ({"filter": "nested 900"}, "filter must nest at most 16 levels deep, got more"),
    ({"filter": "nested 950"}, "filter must nest at most 16 levels deep, got more"),
    ({"filter": "price < 3"}, "filter must be a JSON object, got 'price < 3'"),
    ({"filter": {"price": {"$lt": "a"}}}, "filter.price.$lt must be a number, as the column is of type float, got 'a'"),
    ({"filter": {"price": {"lt": "{0}"}}}, "filter.price must have operators among $eq, $ne, $gt, $gte, $lt, $lte, "),
    (
        {"filter": {"size": 1}},
        "filter must name attributes of the version, lang, price, year, new, at, tags, got 'size'",
    ),
    (
        {"fields": ["size"]},
        "fields[0] must be one of the version's attributes, lang, price, year, new, at, tags, got 's",
    ),
    ({"fields": [3]}, "fields[0] must be a string, got 3"),
    ({"queries": [{"text": "red", "include": [1.5]}]}, "queries[0].include[0] must be a string or an integer, got 1.5"),
]


@pytest.mark.parametrize(("wrong", "sentence"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(url: str, wrong: dict[str, Any], sentence: str) -> None:
    body = to_json({"queries": [{"text": "red"}], "k": 3} | wrong)
    answer = httpx.post(f"{url}/v1/search", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(sentence)


def test_a_sentence_about_a_report_names_the_place_in_it(url: str) -> None:
    body = {"search": {"queries": [{"text": "red"}], "filter": {"$or": []}}, "relevant": [["item-1"]]}
    answer = httpx.post(f"{url}/v1/feedback", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"] == "search.filter.$or must be a list of at least one filter, got []"
