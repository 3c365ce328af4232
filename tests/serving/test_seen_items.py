"""Requests that do not say whether they exclude what was seen: they go by their version, here and over HTTP."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from rails_ray.cli.tuning import tune_cutoffs
from rails_ray.families.config import DataConfig
from rails_ray.families.version import Version
from rails_ray.serving import local
from rails_ray.serving.http import arrow
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.request_limits import Limits
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here
from support.sessions import NUM_ITEMS, NUM_REPEATED, NUM_SESSIONS, publish_repeating

HISTORY = ["item-3", "item-5", "item-7"]


def of_an_earlier_release(config: bytes) -> bytes:
    fields = json.loads(config)
    assert fields["data"].pop("exclude_seen", "none") is None
    return json.dumps(fields).encode()


VERSIONS: dict[str, tuple[dict[str, Any], bool]] = {  # how it is published, and whether requests exclude what was seen
    "not chosen": ({}, True),
    "excluded": ({"exclude_seen": True}, True),
    "allowed": ({"exclude_seen": False}, False),
    "of an earlier release": ({"stored": of_an_earlier_release}, True),
}


@pytest.fixture(scope="module", params=VERSIONS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalVersion, bool]:
    how, is_excluded = VERSIONS[request.param]
    folder = tmp_path_factory.mktemp("version")
    publish_repeating(folder, **how)
    return local.open(str(folder), limits=Limits()), is_excluded


def first(version: LocalVersion, query: dict[str, Any]) -> Any:
    return version.search([query], k=1, cutoff={"top_k": 1}).results[0].items[0]


def test_what_a_request_says_wins_over_the_version(case: tuple[LocalVersion, bool]) -> None:
    version, is_excluded = case
    assert version.facts["exclude_seen"] == is_excluded
    for query in ({"history": HISTORY}, {"user_id": 0}):
        last = HISTORY[-1] if "history" in query else first(version, {**query, "exclude_seen": False})
        assert first(version, {**query, "exclude_seen": False}) == last
        assert first(version, {**query, "exclude_seen": True}) != last
        for unsaid in (query, {**query, "exclude_seen": None}):
            assert (first(version, unsaid) == last) != is_excluded
            searched = version.search([unsaid], k=1, cutoff={"top_k": 1}).results[0].num_searched
            assert (searched == NUM_ITEMS) != is_excluded


def test_queries_of_one_request_say_it_each_for_itself(case: tuple[LocalVersion, bool]) -> None:
    version, is_excluded = case
    said: list[dict[str, bool | None]] = [{}, {"exclude_seen": False}, {"exclude_seen": True}, {"exclude_seen": None}]
    results = version.search([{"history": HISTORY, **own} for own in said], k=1, cutoff={"top_k": 1}).results
    has_last = [own.items == [HISTORY[-1]] for own in results]
    assert has_last == [not is_excluded, True, False, not is_excluded]


def over_http(version: LocalVersion, asked: Callable[[httpx.AsyncClient], Any]) -> Any:
    """What is answered by the application, in this process."""

    async def exchange() -> Any:
        transport = httpx.ASGITransport(api_of(lambda: SingleProcessServer(version)))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await asked(client)

    return asyncio.run(exchange())


def test_over_http(case: tuple[LocalVersion, bool]) -> None:
    version, is_excluded = case
    said: list[dict[str, bool]] = [{}, {"exclude_seen": False}, {"exclude_seen": True}]
    body = {"queries": [{"history": HISTORY, **own} for own in said], "k": 1, "cutoff": {"top_k": 1}}
    answer = over_http(version, lambda client: client.post("/v1/search", json=body)).json()
    has_last = [own["items"] == [HISTORY[-1]] for own in answer["results"]]
    assert has_last == [not is_excluded, True, False]
    assert over_http(version, lambda client: client.get("/v1/index")).json()["exclude_seen"] == is_excluded


def test_in_arrow_a_null_says_nothing(case: tuple[LocalVersion, bool]) -> None:
    version, is_excluded = case
    queries = pa.table({"history": [HISTORY] * 3, "exclude_seen": pa.array([None, False, True])})
    sink = pa.BufferOutputStream()
    options = {"search": json.dumps({"k": 1, "cutoff": {"top_k": 1}})}
    with pa.ipc.new_stream(sink, queries.schema.with_metadata(options)) as writer:
        writer.write_table(queries)
    content, headers = sink.getvalue().to_pybytes(), {"content-type": arrow.TYPE}
    answer = over_http(version, lambda client: client.post("/v1/search", content=content, headers=headers)).json()
    assert [own["items"] == [HISTORY[-1]] for own in answer["results"]] == [not is_excluded, True, False]


def test_feedback_judges_the_list_that_was_answered(case: tuple[LocalVersion, bool]) -> None:
    version, is_excluded = case
    search = {"queries": [{"history": HISTORY}], "k": 1, "cutoff": {"top_k": 1}}
    body = {"search": search, "relevant": [[HISTORY[-1]]]}
    answer = over_http(version, lambda client: client.post("/v1/feedback", json=body)).json()
    assert answer["kept"] == [[not is_excluded]]


def test_what_is_neither_true_nor_false_is_refused(case: tuple[LocalVersion, bool]) -> None:
    version, _ = case
    with pytest.raises(ValueError, match=r"queries\[0\]\.exclude_seen must be true or false, got 'no'"):
        first(version, {"history": HISTORY, "exclude_seen": "no"})


def test_a_version_without_histories_has_nothing_to_exclude(tmp_path: Path) -> None:
    publish_here(tmp_path)
    assert local.open(str(tmp_path)).facts["exclude_seen"] is None


def test_a_cut_off_is_tuned_on_the_lists_that_requests_get(tmp_path: Path) -> None:
    """What answers never hold, no cut-off keeps: its recall is bounded."""
    for name, (how, is_excluded) in VERSIONS.items():
        publish_repeating(tmp_path / name, **how)
        store = Storage(str(tmp_path / name))
        found = tune_cutoffs(store, version="v1", kinds=["top_k"])
        most = max(own.recall for own in found.tried)
        assert (most == 1) != is_excluded
        assert most == pytest.approx(1 - is_excluded * NUM_REPEATED / NUM_SESSIONS)
        sentence = "15 of the 50 relevant items of split valid (30.0%) are in the history of their own query"
        assert any(own.startswith(sentence) for own in found.left_out) == (
            Version(store, local.open(str(store)).manifest).config.data.exclude_seen is None
        )
        other = tune_cutoffs(store, version="v1", kinds=["top_k"], data=DataConfig(exclude_seen=is_excluded is False))
        assert (max(own.recall for own in other.tried) == 1) == is_excluded
