"""The routes before a version in this process: embeddings by two protocols, health without a key, ids of requests."""

import asyncio
import base64
import io
import logging
import random
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rails_ray.errors import BusyError, UnavailableError
from rails_ray.schema.requests import BudgetInput, SearchRequest
from rails_ray.serving.http import logs, query_log
from rails_ray.serving.http.access import WITHOUT_KEY, Access
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.deadlines import within
from rails_ray.serving.http.instruments import PrometheusMetrics
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.traffic import Traffic
from rails_ray.serving.vector_queries import VectorQueries

KEY = "a-key-of-the-test-1"
NAMES = ["rails-ray", "v1"]


def ask(single: SingleProcessServer, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(api_of(lambda: single))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, json=body, headers=named)

    return asyncio.run(asked())


@pytest.fixture(scope="module")
def single(version: LocalVersion) -> SingleProcessServer:
    return SingleProcessServer(version)


def test_a_search_by_an_embedding_is_the_search_by_its_text(single: SingleProcessServer, version: LocalVersion) -> None:
    texts = ["red", "blue hat"]
    answer = ask(single, "POST", "/v1/embeddings", {"input": texts, "model": "rails-ray", "user": "somebody"}).json()
    assert [one["index"] for one in answer["data"]] == [0, 1]
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "v1", "embedding")
    by_text = version.search(texts, k=5, cutoff={"top_k": 5})
    by_embedding = version.search([one["embedding"] for one in answer["data"]], k=5, cutoff={"top_k": 5})
    assert [one.items for one in by_text.results] == [one.items for one in by_embedding.results]


def test_vectors_of_a_body_stay_one_array_until_they_are_searched(
    version: LocalVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = version.embed(["red", "blue hat"])
    body = {"queries": [{"embedding": vector} for vector in vectors], "k": 3}
    expected = version.search(vectors, k=3)

    def alone(self: VectorQueries, number: Any) -> Any:
        raise AssertionError("a query must not become an object")

    monkeypatch.setattr(VectorQueries, "__getitem__", alone)
    seen = list[SearchRequest]()
    answer = ask(
        SingleProcessServer(version, on_search=lambda _, request: seen.append(request)), "POST", "/v1/search", body
    )
    assert answer.json() == expected.model_dump(mode="json")
    assert isinstance(seen[0].queries, VectorQueries)


def test_a_document_is_embedded_as_an_item(
    single: SingleProcessServer, version: LocalVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder: Any = version.engine.encoder.model.encoder
    monkeypatch.setattr(encoder, "items", lambda features: 2 * encoder.queries(features))  # untrained, both are equal

    def vectors(**named: str) -> np.ndarray:
        answer = ask(single, "POST", "/v1/embeddings", {"input": ["red", "blue hat"], **named}).json()
        return np.array([one["embedding"] for one in answer["data"]])

    assert np.array_equal(vectors(), vectors(input_type="query"))
    for kind in ("document", "passage"):
        assert np.allclose(vectors(input_type=kind), 2 * vectors(), atol=1e-6)


def test_an_embedding_in_base64_and_of_one_text(single: SingleProcessServer) -> None:
    plain = ask(single, "POST", "/v1/embeddings", {"input": "red"}).json()["data"]
    coded = ask(single, "POST", "/v1/embeddings", {"input": ["red"], "encoding_format": "base64"}).json()["data"]
    found = np.frombuffer(base64.b64decode(coded[0]["embedding"]), "<f4")
    assert np.allclose(found, plain[0]["embedding"])
    assert len(plain) == len(coded) == 1


def test_models_as_openais_api_lists_them(single: SingleProcessServer) -> None:
    listed = ask(single, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    assert listed["data"] == [ask(single, "GET", f"/v1/models/{name}").json() for name in NAMES]
    assert listed["data"][0] == {"id": "rails-ray", "object": "model", "created": 0, "owned_by": "rails-ray"}
    assert ask(single, "POST", "/v1/embeddings", {"input": "red", "model": listed["data"][1]["id"]}).status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_inference_by_kserves_protocol(single: SingleProcessServer, name: str) -> None:
    told = ask(single, "GET", f"/v2/models/{name}").json()
    assert (told["versions"], told["inputs"][0]["name"], told["outputs"][0]["name"]) == (["v1"], "text", "embedding")
    assert ask(single, "GET", f"/v2/models/{name}/ready").json() == {"name": name, "ready": True}
    given = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["red", "blue hat"]}
    answer = ask(single, "POST", f"/v2/models/{name}/infer", {"id": "7", "inputs": [given]}).json()
    [output] = answer["outputs"]
    plain = ask(single, "POST", "/v1/embeddings", {"input": ["red", "blue hat"]}).json()["data"]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", name, "v1")
    assert output["shape"] == [2, len(plain[0]["embedding"])]
    assert np.allclose(np.reshape(output["data"], output["shape"]), [one["embedding"] for one in plain])
    assert ask(single, "GET", "/v2").json() == {"name": "rails-ray", "version": "v1", "extensions": []}


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        (
            "/v1/embeddings",
            {"input": "red", "model": "gpt"},
            404,
            "model must be rails-ray or the version that is served",
        ),
        ("/v1/embeddings", {"input": []}, 422, "input"),
        (
            "/v1/embeddings",
            {"input": [[1, 2]]},
            422,
            "input must be a text or a list of texts, got token ids, [[1, 2]]: make the client send texts (LangChain's "
            "OpenAIEmbeddings: check_embedding_ctx_length=False)",
        ),
        (
            "/v1/embeddings",
            {"input": [1, 2]},
            422,
            "input must be a text or a list of texts, got token ids, [1, 2]: make the client send texts (LangChain's "
            "OpenAIEmbeddings: check_embedding_ctx_length=False)",
        ),
        ("/v1/models/gpt", None, 404, "model must be rails-ray or the version that is served, v1, got 'gpt'"),
        ("/v1/embeddings", {}, 422, "input must be given, got none"),
        ("/v1/embeddings", {"input": "red", "dimensions": 3}, 422, "dimensions must be the model's "),
        (
            "/v1/embeddings",
            {"input": "red", "input_type": "title"},
            422,
            "input_type must be 'query', 'document' or 'passage'",
        ),
        (
            "/v1/embeddings",
            {"input": "red", "encoding_format": "hex"},
            422,
            "encoding_format must be 'float' or 'base64'",
        ),
        ("/v1/embeddings", {"input": ["red"] * 2000}, 422, "input must have a length of at most 1024, got 2000"),
        ("/v2/models/other/infer", {"inputs": []}, 422, "inputs must have a length of at least 1"),
        (
            "/v2/models/v1/infer",
            {"inputs": [{"name": "text", "shape": [3], "datatype": "BYTES", "data": ["red"]}]},
            422,
            "inputs[0].shape must be [1], the number of texts in data, got [3]",
        ),
        (
            "/v2/models/other/infer",
            {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["red"]}]},
            404,
            "model must be rails-ray or the version that is served, v1, got 'other'",
        ),
    ],
)
def test_what_is_refused(single: SingleProcessServer, path: str, body: Any, status: int, told: str) -> None:
    answer = ask(single, "GET" if body is None else "POST", path, body)
    assert answer.status_code == status
    assert told in answer.json()["error"]


@pytest.mark.parametrize("path", WITHOUT_KEY)
def test_health_needs_no_key_and_nothing_else_comes_without(version: LocalVersion, path: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    locked = SingleProcessServer(version, str(keys))
    assert ask(locked, "GET", path).status_code == 200
    assert ask(locked, "HEAD", path).status_code == 200
    assert ask(locked, "POST", path).status_code == 401
    for other in api_of(lambda: locked).openapi()["paths"]:
        if other not in WITHOUT_KEY:
            assert ask(locked, "GET", other).status_code == 401, other
    for other in ("/docs", "/redoc", "/openapi.json", "/console", "/v1/health/live/", "/v1/health/live/../index"):
        assert ask(locked, "GET", other).status_code == 401, other


def test_a_server_that_is_not_ready(version: LocalVersion) -> None:
    class Broken(SingleProcessServer):
        async def health(self) -> dict[str, Any]:
            raise UnavailableError("2 shards must answer, got none from shard 0")

    broken = Broken(version)
    assert ask(broken, "GET", "/v1/health/live").status_code == 200
    for path in ("/v1/health", "/v1/health/ready", "/v2/health/ready"):
        answer = ask(broken, "GET", path)
        assert (answer.status_code, answer.json()["error"]) == (503, "2 shards must answer, got none from shard 0")
        assert answer.headers["retry-after"] == "1"


def test_an_answer_has_the_id_of_its_request_or_a_new_one(single: SingleProcessServer) -> None:
    given = ask(single, "GET", "/v1/index", x_request_id="mine-1")
    assert given.headers["x-request-id"] == "mine-1"
    ids = {ask(single, "GET", "/v1/index", x_request_id=bad).headers["x-request-id"] for bad in ("", "a b", "x" * 129)}
    assert len(ids) == 3
    assert all(len(one) == 32 for one in ids)
    assert ask(single, "GET", "/v1/nothing", x_request_id="mine-2").headers["x-request-id"] == "mine-2"


def test_new_ids_do_not_repeat_where_random_is_seeded(single: SingleProcessServer) -> None:
    def new_id() -> str:
        random.seed(7)
        return ask(single, "GET", "/v1/index").headers["x-request-id"]

    assert new_id() != new_id()


def test_a_failure_is_logged_with_the_id_and_without_the_query(
    version: LocalVersion, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(request: SearchRequest) -> Any:
        raise UnavailableError("too few shards")

    broken = SingleProcessServer(version)
    broken.traffic = Traffic(fails, version.engine, PrometheusMetrics())
    with caplog.at_level(logging.WARNING, "rails_ray.serving.http"):
        ask(broken, "POST", "/v1/search", {"queries": [{"text": "a secret"}]}, x_request_id="mine-3")
        ask(broken, "GET", "/v1/index", x_request_id="mine-6")
    assert caplog.messages == ["POST '/v1/search' got 503 (request mine-3)"]


def test_each_answer_is_logged_with_the_id_at_the_level_info(
    single: SingleProcessServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rails_ray.serving.http"):
        ask(single, "POST", "/v1/search", {"queries": [{"text": "a secret"}]}, x_request_id="mine-7")
        ask(single, "GET", "/v1/nothing", x_request_id="mine-8")
    told = ["POST '/v1/search' got 200 (request mine-7)", "GET '/v1/nothing' got 404 (request mine-8)"]
    assert caplog.messages == told


def test_a_search_that_no_shard_has_a_place_for_is_one_to_ask_again_later(version: LocalVersion) -> None:
    async def is_full(request: SearchRequest) -> Any:
        raise BusyError(
            "100% of 9 items must be searched (min_coverage), got 0 from 0 of 2 shards: try again or ask for less"
        )

    full = SingleProcessServer(version)
    full.traffic = Traffic(is_full, version.engine, PrometheusMetrics())
    answer = ask(full, "POST", "/v1/search", {"queries": [{"text": "red"}]})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"].endswith("try again or ask for less")


def test_queries_are_logged_if_that_is_asked_for(version: LocalVersion, caplog: pytest.LogCaptureFixture) -> None:
    asked = {"queries": [{"text": "a secret"}], "k": 3}
    with caplog.at_level(logging.INFO, query_log.log.name):
        ask(SingleProcessServer(version), "POST", "/v1/search", asked, x_request_id="mine-4")
        assert not caplog.messages
        ask(SingleProcessServer(version, on_search=query_log.note), "POST", "/v1/search", asked, x_request_id="mine-5")
        by_vector = {"queries": [{"embedding": [0.5] * 8}], "k": 3}
        ask(SingleProcessServer(version, on_search=query_log.note), "POST", "/v1/search", by_vector)
    of_text, of_vector = caplog.messages
    assert of_text == 'version v1, request mine-5: {"queries":[{"text":"a secret"}],"k":3}'
    assert f'"queries":[{{"embedding":[{",".join(["0.5"] * 8)}]}}]' in of_vector


def test_a_line_of_the_log_has_the_time_and_comes_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though Serve puts a stream of its own in the place of standard error."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(logs.log, "handlers", [])
    logs.to_stderr()
    assert query_log.noting(is_wanted=False) is None
    [note] = {query_log.noting(is_wanted=True) for _ in range(2)}
    assert note is not None
    try:
        note("v1", SearchRequest.model_validate({"queries": [{"text": "a secret"}]}))
        assert re.fullmatch(
            r'[0-9: ,-]+ version v1, request : \{"queries":\[\{"text":"a secret"\}\]\}\n', capfd.readouterr().err
        )
    finally:
        query_log.log.setLevel(logging.NOTSET)
        logs.log.setLevel(logging.NOTSET)


def test_a_variable_says_how_much_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.log, "handlers", [])
    monkeypatch.setattr(logs.log, "level", logging.NOTSET)
    for level in ("INFO", "WARNING"):
        monkeypatch.setenv(logs.VARIABLE, level)
        logs.to_stderr()
        assert logging.getLogger("rails_ray.serving.http").isEnabledFor(logging.INFO) == (level == "INFO")
    monkeypatch.setenv(logs.VARIABLE, "loud")
    told = "RAILS_RAY_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, got 'loud': unset it or choose one"
    with pytest.raises(ValueError, match=told):
        logs.to_stderr()


class Patient:
    """A server that answers when it may, and notes what it was asked."""

    access = Access(None, 10_000, 4)
    version_name = "v1"

    def __init__(self, version: LocalVersion) -> None:
        self.asked = list[SearchRequest]()
        self.num_cancelled = 0
        self.traffic = Traffic(self.explain, version.engine, PrometheusMetrics())

    async def explain(self, request: Any, **options: Any) -> Any:
        self.asked.append(request)
        try:
            await asyncio.sleep(30)
        finally:
            self.num_cancelled += 1

    embed = explain


def test_an_answer_that_comes_too_late_is_dropped_and_told(version: LocalVersion) -> None:
    server: Any = Patient(version)
    bodies = {
        "/v1/search": {"queries": [{"text": "red"}], "budget": {"calls": 5}},
        "/v1/explain": {"query": {"text": "red"}, "items": ["i1"]},
        "/v1/feedback": {"search": {"queries": [{"text": "red"}]}, "relevant": [["i1"]]},
        "/v1/embeddings": {"input": "red"},
        "/v2/models/v1/infer": {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["red"]}]},
    }
    for path, body in bodies.items():
        answer = ask(server, "POST", path, body, x_deadline_ms="40")
        told = "an answer must be there within 40 ms, got none: allow more by x-deadline-ms, or ask for less"
        assert (answer.status_code, answer.json()) == (504, {"error": told})
    assert server.num_cancelled == len(bodies)
    assert server.asked[0].budget.deadline_ms == 36, "the heavy ranker has less, so that its answer is in time"


@pytest.mark.parametrize(
    ("given", "must"),
    [
        *(("0", "greater than 0"), ("-1", "greater than 0"), ("soon", "a number"), ("", "a number")),
        *(("nan", "a number"), ("inf", "a number")),
    ],
)
def test_a_deadline_must_be_a_number_above_0(single: SingleProcessServer, given: str, must: str) -> None:
    answer = ask(single, "POST", "/v1/search", {"queries": [{"text": "red"}]}, x_deadline_ms=given)
    assert (answer.status_code, answer.json()) == (
        422,
        {"error": f"header x-deadline-ms must be {must}, got {given!r}"},
    )


def test_a_budget_keeps_the_shorter_of_two_deadlines() -> None:
    assert within(None, 50) is None
    assert within(BudgetInput(calls=3, deadline_ms=20), None) == BudgetInput(calls=3, deadline_ms=20)
    assert within(BudgetInput(calls=3, deadline_ms=20), 50) == BudgetInput(calls=3, deadline_ms=20)
    assert within(BudgetInput(calls=3, deadline_ms=200), 50) == BudgetInput(calls=3, deadline_ms=45)
