"""The life of a version whose queries and items are several vectors by name: encoded, asked, and changed."""

import ast
import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray import local
from rails_ray.data.queries import DenseRows
from rails_ray.families import changing, encoding
from rails_ray.families.config import DataConfig, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.in_process import InProcess
from rails_ray.families.json_items import items_in
from rails_ray.families.read_items import read_items
from rails_ray.families.recipes import vectors_gated
from rails_ray.families.training_family import training_family
from rails_ray.schema.items import ItemInput
from rails_ray.serving.http import arrow
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import runs, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.training.piece import Given, fit
from support.command_line import code_blocks
from support.data_folders import write_named_data
from support.examples import small_named_config, write_untrained_run

K = 5


def published(folder: Path) -> LocalVersion:
    """A version of an untrained gate over 60 items of two vectors."""
    data, storage = write_named_data(folder / "data"), Storage(str(folder / "storage"))
    config = replace(small_named_config(), data=DataConfig(folder=str(data)))
    config = for_data(config, read_data(config, storage))
    write_untrained_run(storage, "r", config, cutoff_mass=0.9)
    encoded = encoding.encode(InProcess(), str(storage), "r", encoding.EncodeOptions(version="v1"))
    versions.publish(storage, encoded, "2026-01-01T00:00:00Z")
    return local.open(str(storage))


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> LocalVersion:
    return published(tmp_path_factory.mktemp("named"))


@pytest.fixture(scope="module")
def asked(version: LocalVersion) -> list[dict[str, Any]]:
    rows = pq.read_table(f"{version.version.storage}/../data/queries.parquet").slice(120, 4).to_pylist()
    return [{"embeddings": {name: row[name] for name in ("body", "title")}} for row in rows]


def post(version: LocalVersion, content: bytes, **headers: str) -> httpx.Response:
    async def posted() -> httpx.Response:
        transport = httpx.ASGITransport(api_of(lambda: SingleProcessServer(version)))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post("/v1/search", content=content, headers=headers)

    return asyncio.run(posted())


@torch.no_grad()
def test_a_search_finds_what_scoring_every_item_does(version: LocalVersion, asked: list[dict[str, Any]]) -> None:
    """An item that lacks a vector among them; whatever the order of the names."""
    rows = pq.read_table(f"{version.version.storage}/../data/items.parquet").to_pylist()
    items = [(row["title"] or [0.0] * 4) + (row["body"] or [0.0] * 7) for row in rows]
    queries = [query["embeddings"]["title"] + query["embeddings"]["body"] for query in asked]
    model = version.version.model
    states = [
        encode(features(DenseRows(np.array(own, np.float32))))
        for encode, features, own in (
            (model.encode_queries, model.query_features, queries),
            (model.encode_items, model.item_features, items),
        )
    ]
    scores = model.similarity.scores(*states)
    best = scores.topk(K)
    for method in ("brute_force", "two_pass"):
        answer = version.search(asked, k=K, method=method)
        assert [own.items for own in answer.results] == [[f"item-{row}" for row in own] for own in best.indices]
        assert np.allclose([own.scores for own in answer.results], best.values, atol=1e-5)
    assert answer.results[0].titles[0] == f"text of {answer.results[0].items[0]}"
    assert version.facts["query"] == {"embeddings": "vectors"}


def test_every_way_to_ask_is_answered_alike(version: LocalVersion, asked: list[dict[str, Any]]) -> None:
    expected = version.search(asked, k=K)
    body = {"queries": asked, "k": K}
    answers = [post(version, json.dumps(body).encode()).json()]
    column = pa.array(
        [list(query["embeddings"].items()) for query in asked], pa.map_(pa.string(), pa.list_(pa.float64()))
    )
    for embeddings in (column, [query["embeddings"] for query in asked]):  # a map, and what Arrow makes of dicts
        table = pa.table({"embeddings": embeddings}).replace_schema_metadata({"search": json.dumps({"k": K})})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        answers.append(post(version, sink.getvalue().to_pybytes(), **{"content-type": arrow.TYPE}).json())
    for answer in answers:
        for result, own in zip(answer["results"], expected.results, strict=True):
            assert result["items"] == own.items
            assert np.allclose(result["scores"], own.scores, atol=1e-6)


ONES = {"title": [1.0] * 4, "body": [1.0] * 7}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"embeddings": {"title": [1.0] * 4}}, "queries[0].embeddings must have a vector for title, body, got title"),
        ({"embeddings": ONES | {"image": [1.0]}}, "must have a vector for title, body, got title, body, image"),
        ({"embeddings": ONES | {"body": [1.0] * 6}}, "queries[0].embeddings.body must have 7 numbers, got 6"),
        ({"embeddings": ONES | {"body": [1e39] * 7}}, "queries[0].embeddings.body must hold numbers up to 3.40282e+38"),
        (
            {"embeddings": {"title": [0.0] * 4, "body": [0.0] * 7}},
            "queries[0].embeddings must hold a number other than 0, got 11 zeros",
        ),
        ({"embedding": [1.0] * 11}, "queries[0] must be given by embeddings for this index, got embedding"),
        ({"text": "red"}, "queries[0] must be given by embeddings for this index, got text"),
        ({"embeddings": {}}, "embeddings"),
        ({"embeddings": ONES | {"body": [None] * 7}}, "queries[0].embeddings.body[0]"),
        ({"embeddings": ONES | {"body": "x"}}, "queries[0].embeddings.body"),
        ({"embeddings": ONES, "text": "red"}, "must have exactly one of text, embedding, embeddings, features"),
    ],
)
def test_a_query_that_cannot_be_read(version: LocalVersion, query: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        version.search([query], k=K)
    answer = post(version, json.dumps({"queries": [query], "k": K}).encode())
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_a_query_of_one_zero_vector_is_read(version: LocalVersion) -> None:
    assert len(version.search([{"embeddings": ONES | {"title": [0.0] * 4}}], k=K).results[0].items) == K


def test_vectors_in_an_array_are_no_queries_of_such_a_version(version: LocalVersion) -> None:
    with pytest.raises(ValueError, match=r"queries\[0\] must be given by embeddings for this index, got embedding"):
        version.search(np.ones((2, 11), np.float32), k=K)


def given(name: str, **fields: Any) -> ItemInput:
    return ItemInput(id=name, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"embeddings": {"image": [1.0]}}, "items[1].embeddings must have a vector for some of title, body, got image"),
        ({"embeddings": {"body": [1.0]}}, "items[1].embeddings.body must have 7 numbers, got 1"),
        ({"embedding": [1.0] * 11}, "items[1] must be given by embeddings for version v1, got embedding"),
        ({"text": "red"}, "items[1] must be given by embeddings for version v1, got text"),
    ],
)
def test_an_item_of_a_request_that_cannot_be_read(version: LocalVersion, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        items_in(version.version, [given("new", embeddings=ONES), given("other", **fields)])


def test_items_are_added_from_a_request_from_a_folder_and_from_memory(tmp_path: Path) -> None:
    version = published(tmp_path)
    storage = version.version.storage
    alike = {"title": [1.0, 0, 0, -1], "body": [1.0, -8] * 3 + [5.0]}
    part = given("part", embeddings={"title": alike["title"]})
    changing.add(storage, items_in(version.version, [given("request", embeddings=alike), part]))
    version.refresh()
    best = version.search([{"embeddings": alike}], k=60).results[0]
    assert best.items[0] == "request"
    assert "part" in best.items
    later = tmp_path / "later"
    later.mkdir()
    bodies = [[-number for number in alike["body"]], None]
    table = {"item_id": ["folder", "lacks"], "title": [alike["title"]] * 2, "body": bodies}
    pq.write_table(pa.table(table), later / "items.parquet")
    items, notes = read_items(version.version, DataConfig(folder=str(later)))
    assert "items: 1 of 2 values of column 'body' are null, read as no vectors" in notes
    changing.add(storage, items)
    version.refresh()
    opposite = {"embeddings": {"title": alike["title"], "body": bodies[0]}}
    assert version.search([opposite], k=1).results[0].items == ["folder"]
    version.add(np.array([[*alike["title"], *alike["body"]]], np.float32) * [[-1]], ["memory"])
    against = {"embeddings": {name: [-number for number in own] for name, own in alike.items()}}
    assert version.search([against], k=1).results[0].items == ["memory"]
    with pytest.raises(ValueError, match=r"vectors to add to version \S+ must have 11 numbers an item, got 12"):
        version.add(np.ones((1, 12), np.float32), ["wide"])
    with pytest.raises(ValueError, match=r"got zeros for 1 of 1, the first of them 'none'"):
        changing.add(storage, items_in(version.version, [given("none", embeddings={"title": [0.0] * 4})]))


def test_gates_and_the_temperature_of_cutoffs_are_all_that_is_trained(tmp_path: Path) -> None:
    config = replace(small_named_config(), data=DataConfig(folder=str(write_named_data(tmp_path))))
    family = DualEncoderTraining.of(for_data(config, read_data(config, Storage(str(tmp_path)))))
    trained = {name for name, own in family.model().named_parameters() if own.requires_grad}
    assert trained
    assert {name for name in trained if "gate" not in name and ".temperature." not in name} == set()


def test_the_recipe_makes_no_components() -> None:
    family = vectors_gated("folder").family
    assert family.components.queries == family.components.items == "given"
    assert family.num_components == (2, 2)
    with pytest.raises(ValueError, match="width must be left out for vectors-gated, which makes no components, got 8"):
        vectors_gated("folder", width=8)


def test_data_of_other_widths_than_a_config_has(tmp_path: Path) -> None:
    config = replace(small_named_config(), data=DataConfig(folder=str(write_named_data(tmp_path / "data"))))
    config = config.with_family(encoder=replace(config.family.encoder, item_widths=(4, 8)))
    message = r"encoder\.item_widths must be the 4 and 7 of the vectors of .*data, or left out, got 4 and 8"
    with pytest.raises(ValueError, match=message):
        for_data(config, read_data(config, Storage(str(tmp_path))))


def test_the_example_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands, in this process, lie between its two blocks of code."""
    monkeypatch.chdir(tmp_path)
    tables, search = code_blocks("docs/vectors.md", "python", "Several vectors of each item")
    names: dict[str, Any] = {}
    exec(compile(tables, "docs/vectors.md", "exec"), names)
    storage, config = Storage("rails-ray-data"), vectors_gated("named-vectors", num_steps=20, batch_size=20)
    read = read_data(config, storage)
    config = for_data(config, read)
    [piece] = training_family(config).pieces()
    fitted = fit(piece, Given(read=read, storage=storage, run="gated"))
    assert fitted is not None
    validation = json.dumps(fitted.validation).encode()
    runs.write(
        storage,
        "gated",
        weights=fitted.weights,
        validation=validation,
        training=fitted.training,
        config=to_json(config),
    )
    options = encoding.EncodeOptions(version="gated-1")
    versions.publish(storage, encoding.encode(InProcess(), str(storage), "gated", options), "2026-01-01T00:00:00Z")
    exec(compile(search, "docs/vectors.md", "exec"), names)
    printed = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert printed[0] == 0
    assert len(printed) == 3
