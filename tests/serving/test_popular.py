"""Queries of which a version knows nothing: refused, or answered by its most popular items."""

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.errors import UnsupportedError
from rails_ray.serving import local
from rails_ray.serving.http import arrow
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import manifest
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here
from support.sessions import NUM_ITEMS, publish_repeating

UNKNOWN: list[dict[str, Any]] = [{"history": []}, {"history": ["nowhere", "none"]}, {"user_id": 12345}]
KNOWN: dict[str, Any] = {"history": ["item-3"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("popular")
    publish_repeating(folder)
    return folder


@pytest.fixture(scope="module")
def version(root: Path) -> LocalVersion:
    return local.open(str(root))


@pytest.fixture(scope="module")
def ranked(root: Path) -> list[tuple[str, float]]:
    """Items with their shares of all interactions, most popular first, in the order of the corpus where equal."""
    order = pq.read_table(root / "data" / "items.parquet")["item_id"].to_pylist()
    counts = Counter(pq.read_table(root / "data" / "interactions.parquet")["item_id"].to_pylist())
    total = sum(counts.values())
    items = sorted((item for item in order if counts[item]), key=lambda item: -counts[item])
    return [(item, counts[item] / total) for item in items]


@pytest.mark.parametrize("query", UNKNOWN)
def test_an_unknown_query_gets_the_most_popular_items(
    query: dict[str, Any], version: LocalVersion, ranked: list[tuple[str, float]]
) -> None:
    answer = version.search([query], k=5, fallback="popular")
    [found] = answer.results
    assert found.items == [item for item, _ in ranked[:5]]
    assert found.scores == pytest.approx([share for _, share in ranked[:5]])
    assert (found.is_known, found.num_kept, found.threshold, found.is_truncated) == (False, 5, None, True)
    assert (answer.is_exact, answer.coverage.items_searched) == (False, NUM_ITEMS)
    assert found.certificate.reason == "the most popular items, as the query is not known"


def test_exclusions_hold_and_known_queries_of_the_request_are_as_ever(
    version: LocalVersion, ranked: list[tuple[str, float]]
) -> None:
    items = [item for item, _ in ranked]
    out = {"history": ["nowhere"], "exclude": items[:2]}
    answer = version.search([UNKNOWN[0], KNOWN, out, KNOWN], k=4, fallback="popular")
    plain = version.search([KNOWN], k=4).results[0]
    assert [own.items for own in answer.results] == [items[:4], plain.items, items[2:6], plain.items]
    assert [own.is_known for own in answer.results] == [False, plain.is_known, False, plain.is_known]
    assert version.search([KNOWN], k=4, fallback="popular") == version.search([KNOWN], k=4)
    everything = {"history": [], "exclude": items}
    assert version.search([everything], k=3, fallback="popular").results[0].items == []


@pytest.mark.parametrize(
    ("options", "num"),
    [
        ({}, 10),
        ({"cutoff": {"score": 0.9}}, 10),
        ({"cutoff": {"score": 0.9}, "k": 7}, 7),
        ({"cutoff": {"score": 0.9, "max_items": 3}}, 3),
        ({"cutoff": {"nucleus": 0.5}}, 10),
        ({"cutoff": {"top_k": 12}}, 12),
        ({"cutoff": {"top_k": 12}, "k": 4}, 4),
        ({"k": 500}, NUM_ITEMS),
    ],
)
def test_the_list_is_as_long_as_k_says_whatever_the_cut_off(
    options: dict[str, Any], num: int, version: LocalVersion
) -> None:
    assert len(version.search([{"history": []}], fallback="popular", **options).results[0].items) == num


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (UNKNOWN[0], r"^queries\[0\].history must have a length of at least 1, got \[\]$"),
        (UNKNOWN[1], r"^queries\[0\].history must hold an item that the index knows, got \['nowhere', 'none'\]$"),
        (UNKNOWN[2], r"^queries\[0\].user_id must be a user that the index knows, got 12345$"),
    ],
)
def test_without_a_fallback_it_is_refused(query: dict[str, Any], message: str, version: LocalVersion) -> None:
    with pytest.raises(ValueError, match=message):
        version.search([query], k=3)
    with pytest.raises(ValueError, match=message.replace("queries\\[0\\]", "query")):
        version.explain(query, ["item-1"])


def test_other_mistakes_are_refused_at_their_place(version: LocalVersion) -> None:
    wrong = {"history": ["item-3"], "timestamps": [1, 2]}
    with pytest.raises(ValueError, match=r"queries\[2\].timestamps must have one for each of the 1 items"):
        version.search([UNKNOWN[0], KNOWN, wrong], k=3, fallback="popular")
    with pytest.raises(ValueError, match="fallback must be 'popular', got 'random'"):
        version.search([KNOWN], k=3, fallback="random")
    with pytest.raises(UnsupportedError, match="cutoff coverage needs a version"):
        version.search([UNKNOWN[0]], cutoff={"coverage": 0.5}, fallback="popular")


def over_http(version: LocalVersion, **options: Any) -> httpx.Response:
    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(api_of(lambda: SingleProcessServer(version)))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post("/v1/search", **options)

    return asyncio.run(exchange())


def test_a_server_answers_alike_in_both_formats(version: LocalVersion) -> None:
    queries, rest = [UNKNOWN[0], KNOWN], {"k": 3, "fallback": "popular", "ids": "string"}
    here = version.search(queries, **rest)
    assert over_http(version, json={"queries": queries, **rest}).json() == here.model_dump()
    table = pa.table({"history": [query["history"] for query in queries]})
    sink = pa.BufferOutputStream()
    body = table.replace_schema_metadata({b"search": b'{"k": 3, "fallback": "popular"}'})
    with pa.ipc.new_stream(sink, body.schema) as writer:
        writer.write_table(body)
    answer = over_http(
        version, content=sink.getvalue().to_pybytes(), headers={"content-type": arrow.TYPE, "accept": arrow.TYPE}
    )
    assert pa.ipc.open_stream(answer.content).read_all()["items"].to_pylist() == [own.items for own in here.results]
    assert over_http(version, json={"queries": [UNKNOWN[0]]}).status_code == 422


def test_feedback_judges_popular_items_too(version: LocalVersion, ranked: list[tuple[str, float]]) -> None:
    items = [item for item, _ in ranked]
    answer = version.feedback([UNKNOWN[0]], [[items[0], items[-1]]], k=3, fallback="popular")
    assert answer.kept == [[True, False]]


def remove_popular(root: Path) -> None:
    """Make the version what an earlier release stored."""
    storage = Storage(str(root))
    found = manifest.read(storage, "v1")
    kept = [entry for entry in found.files if entry.path != manifest.POPULAR]
    storage.write("versions/v1/manifest.json", manifest.to_json(dataclasses.replace(found, files=kept)))
    (root / "versions" / "v1" / manifest.POPULAR).unlink()
    (root / "CURRENT").unlink()  # it names the former manifest


def test_a_version_that_stores_none_says_so_and_is_read_as_before(tmp_path: Path) -> None:
    publish_repeating(tmp_path / "histories")
    before = local.open(str(tmp_path / "histories")).search([KNOWN], k=3)
    remove_popular(tmp_path / "histories")
    publish_here(tmp_path / "texts")
    message = "fallback needs a version that stores its popular items, got version v1 without: encode a new one, of"
    for folder, query in (("histories", KNOWN), ("texts", "red")):
        version = local.open(str(tmp_path / folder), "v1")
        with pytest.raises(UnsupportedError, match=message):
            version.search([query], k=3, fallback="popular")
    assert local.open(str(tmp_path / "histories"), "v1").search([KNOWN], k=3) == before
