"""What cannot be answered, by an application with the router's handlers and requests that only says what it read."""

import asyncio
import io
import json
import warnings
from typing import Any

import httpx
import pyarrow as pa
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.schema.queries import QueryInput
from rails_ray.schema.requests import ExplainRequest, SearchRequest
from rails_ray.schema.responses import ErrorResponse
from rails_ray.serving.http import refusals
from rails_ray.serving.http.refusals import read_json

TEXT = b'{"queries": [{"text": "red"}]}'


def application(*, is_direct: bool = True) -> FastAPI:
    """
    Args:
        is_direct: whether searches pass FastAPI by, as in a server.
    """
    api = FastAPI()

    async def echo(request: SearchRequest, http: Request) -> Response:
        if request.k == 7:
            raise refusals.HTTPException(429, "7 is refused", {"Retry-After": "3"})
        if request.k == 8:
            raise ZeroDivisionError("8")
        return JSONResponse(request.model_dump(exclude_defaults=True))

    if is_direct:
        question = refusals.Question(SearchRequest.model_validate, echo)
        api.add_middleware(refusals.DirectQuestions, questions={"/v1/search": question})
    refusals.install(api)
    api.post("/v1/search", responses={422: {"model": ErrorResponse}})(echo)

    @api.post("/v1/explain", responses={422: {"model": ErrorResponse}})
    async def explain(request: ExplainRequest) -> dict[str, Any]:
        return request.model_dump(exclude_defaults=True)

    @api.get("/v1/index")
    async def index() -> dict[str, str]:
        return {"version": "v1"}

    @api.get("/v1/health")
    async def health() -> None:
        raise refusals.HTTPException(503, "2 shards must answer, got none from shard 1")

    return api


def ask(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, api: FastAPI | None = None
) -> httpx.Response:
    """The answer; an exception that the application lets through is raised, as Ray would make it a 500."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(api or application())
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, content=body, headers=headers)

    return asyncio.run(send())


def search(body: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    return ask("POST", "/v1/search", body if isinstance(body, bytes) else json.dumps(body).encode(), headers)


def refusal(body: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> str:
    """The sentence that a search with this body is refused with."""
    response = search(body, headers)
    assert response.status_code == 422
    assert list(response.json()) == ["error"]
    return response.json()["error"]


@pytest.mark.parametrize(
    "body", [TEXT, b"", b"nothing", b'{"queries": [], "k": 0}', b'{"queries": [{"text": "red"}], "k": 7}']
)
@pytest.mark.parametrize("prefix", ["", "/shop"])
def test_a_question_that_passes_fastapi_by_is_answered_alike(body: bytes, prefix: str) -> None:
    answers = []
    for is_direct in (True, False):
        api = application(is_direct=is_direct)
        api.root_path = prefix
        answers.append(ask("POST", f"{prefix}/v1/search", body, api=api))
    direct, through = answers
    assert (direct.status_code, direct.json()) == (through.status_code, through.json())
    assert direct.headers == through.headers


def test_arrow_is_read_below_a_prefix() -> None:
    stream = io.BytesIO()
    queries = pa.table({"text": ["red"]}).replace_schema_metadata({"search": '{"k": 3}'})
    with pa.ipc.new_stream(stream, queries.schema) as writer:
        writer.write_table(queries)
    for prefix in ("", "/shop"):
        api = application()
        api.root_path = prefix
        headers = {"content-type": "application/vnd.apache.arrow.stream"}
        answer = ask("POST", f"{prefix}/v1/search", stream.getvalue(), headers, api)
        assert (answer.status_code, answer.json()["k"]) == (200, 3), answer.text


def test_an_error_of_ours_is_not_hidden_from_the_server() -> None:
    with pytest.raises(ZeroDivisionError):
        search({"queries": [{"text": "red"}], "k": 8})


def test_other_methods_are_refused_where_a_question_passes_fastapi_by() -> None:
    assert ask("GET", "/v1/search").status_code == 405
    assert ask("POST", "/v1/searching", TEXT).status_code == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body must be given, got none"),
        (b"null", "the body must be a JSON object, got null"),
        (b"[]", "the body must be a JSON object, got []"),
        (b"true", "the body must be a JSON object, got true"),
        (b'{"queries": [', "the body must be JSON, got something else: Expecting value: line 1 column 14"),
        (b'{"k": "\\x"}', "the body must be JSON, got something else: Invalid \\escape: line 1 column 8"),
        (b"queries=red", "the body must be JSON, got something else: Expecting value: line 1 column 1"),
        (b'{"queries": [{"text": "\xff"}]}', "the body must be JSON in UTF-8, got the byte 0xff"),
        (b'{"queries": [{"text": "\xed\xa0\x80"}]}', "the body must be JSON in UTF-8, got the byte 0xed"),
        (TEXT.decode().encode("utf-16"), "the body must be JSON in UTF-8, got the byte 0xff"),
        (b"[" * 100_000, "the body must nest a few levels deep, as a request does, got hundreds"),
        (b'{"k":' * 100_000, "the body must nest a few levels deep, as a request does, got hundreds"),
        (b'{"k": ' + b"9" * 5000 + b"}", "the body must hold integers of at most 4300 digits, got a longer one"),
        (
            b'{"queries": [{"text": "\\ud800"}]}',
            "the body must hold whole characters, got half of a surrogate pair, '\\ud800'",
        ),
        (
            b'{"queries": [{"user_id": "\\uDFFFa"}]}',
            "the body must hold whole characters, got half of a surrogate pair, '\\udfff'",
        ),
        (
            b'{"queries": [{"text": "a", "exclude": ["\\ude00\\ud83d"]}]}',
            "the body must hold whole characters, got half of a surrogate pair, '\\ude00'",
        ),
        (b'{"\\ud800": 1}', "the body must hold whole characters, got half of a surrogate pair, '\\ud800'"),
        (b'{"k": 1, "k": 2}', "an object of the body must have each field once, got 'k' twice"),
        (
            b'{"queries": [{"features": {"1": 1, "1": 2}}]}',
            "an object of the body must have each field once, got '1' twice",
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_body_that_cannot_be_read_is_told(body: bytes, message: str) -> None:
    assert refusal(body) == message


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip", "x" * 5000])
def test_a_compressed_body_is_refused_by_its_encoding(encoding: str) -> None:
    response = search(b"\x1f\x8b\x08", {"content-encoding": encoding})
    assert response.status_code == 415
    message = response.json()["error"]
    assert message.startswith(f"the body must be sent without content-encoding, got '{encoding[:20]}")
    assert search(TEXT, {"content-encoding": "Identity"}).status_code == 200


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/x-www-form-urlencoded",  # what curl -d says
        "application/json; charset=utf-16",
        "multipart/form-data; boundary=x",
        "text/plain",
        "nonsense",
        "",
    ],
)
def test_a_body_is_json_whatever_its_header_says(kind: str | None) -> None:
    response = search(TEXT, None if kind is None else {"content-type": kind})
    assert (response.status_code, response.json()) == (200, {"queries": [{"text": "red"}]})


def test_what_other_readers_take_is_read() -> None:
    assert read_json(b"\xef\xbb\xbf" + TEXT) == {"queries": [{"text": "red"}]}  # PowerShell begins so
    assert read_json(b'{"text": "\\ud83c\\udf55"}') == {"text": "🍕"}
    assert read_json(b'{"text": "C:\\\\ud800"}') == {"text": "C:\\ud800"}
    assert read_json(b'{"a": {"k": 1}, "b": {"k": 2}}') == {"a": {"k": 1}, "b": {"k": 2}}


LIMITS = st.builds(lambda limit, beyond: limit + beyond, st.sampled_from([-(2**63), 2**63, 2**64]), st.integers(-2, 2))
NUMBERS = st.integers() | LIMITS | st.floats(allow_nan=False)


@given(st.dictionaries(st.text(), st.recursive(st.none() | NUMBERS | st.text(), st.lists)))
def test_json_is_read_as_python_reads_it(value: dict[str, Any]) -> None:
    assert read_json(json.dumps(value).encode()) == value
    assert read_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_an_unknown_path_is_told_those_there_are() -> None:
    known = "the path must be one of /v1/explain, /v1/health, /v1/index, /v1/search"
    for path, came in [
        ("/v2/search", "'/v2/search'"),
        ("/v1/search/", "'/v1/search/'"),  # no redirect
        ("/v1/search%00", "'/v1/search\\x00'"),
        ("/v1/%2e%2e%0a", "'/v1/..\\n'"),
    ]:
        response = ask("GET", path)
        assert (response.status_code, response.json()) == (404, {"error": f"{known}, got {came}"})
    assert ask("GET", "/v1/index?k=1&k=%00").status_code == 200


@pytest.mark.parametrize("host", ["[", "a b", "x" * 60_000, ""])
def test_the_host_is_not_read(host: str) -> None:
    assert ask("GET", "/v2", headers={"host": host}).status_code == 404
    assert ask("GET", "/v1/search", headers={"host": host}).status_code == 405
    assert ask("GET", "/v1/index", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/search", "POST"),
        ("POST", "/v1/index", "GET, HEAD"),
        ("PROPFIND", "/v1/index", "GET, HEAD"),
        ("OPTIONS", "/v1/search", "POST"),
        ("DELETE", "/openapi.json", "GET, HEAD"),
    ],
)
def test_another_method_is_told_those_allowed(method: str, path: str, allowed: str) -> None:
    response = ask(method, path)
    message = f"'{path}' must be asked with {allowed.replace(', ', ' or ')}, got '{method}'"
    assert (response.status_code, response.json()) == (405, {"error": message})
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/v1/index", "/v1/health", "/v1/search", "/v2", "/openapi.json"])
def test_head_is_get_without_the_body(path: str) -> None:
    got, head = ask("GET", path), ask("HEAD", path)
    assert head.status_code == got.status_code
    assert head.headers == got.headers
    assert (got.content != b"", head.content) == (True, b"")


def test_head_is_not_in_the_description() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = application().openapi()["paths"]
    assert {path: list(methods) for path, methods in paths.items()} == {
        "/v1/search": ["post"],
        "/v1/explain": ["post"],
        "/v1/index": ["get"],
        "/v1/health": ["get"],
    }


def test_a_server_that_cannot_answer_says_when_to_ask_again() -> None:
    response = ask("GET", "/v1/health")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


LONG = "x" * 60_000
DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/{LONG}", None),
        ("GET", f"/v1/search?{LONG}", None),
        (LONG, "/v1/search", None),
        (LONG, f"/{LONG}", None),
        ("POST", "/v1/search", {LONG: 1}),
        ("POST", "/v1/search", {f"{LONG} {LONG}": LONG}),
        ("POST", "/v1/search", {"queries": [{LONG: LONG}]}),
        ("POST", "/v1/search", {"queries": [{"text": LONG}]}),
        ("POST", "/v1/search", {"queries": [{"features": {LONG: 1}}]}),
        ("POST", "/v1/search", {"queries": [{"features": {"1": LONG}}]}),
        ("POST", "/v1/search", {"queries": LONG}),
        ("POST", "/v1/search", {"queries": {LONG: DEEP}}),
        ("POST", "/v1/search", {"queries": [{"history": DEEP}]}),
        ("POST", "/v1/search", {"queries": [{"text": "a", "exclude": DEEP}]}),
        ("POST", "/v1/search", {"queries": [{"text": "a", "exclude": [{LONG: LONG}]}]}),
        ("POST", "/v1/search", {"queries": [1.5] * 100_000}),
        ("POST", "/v1/search", {"queries": [{"text": "a"}], "k": 10**4000}),
        ("POST", "/v1/search", {"queries": [{"text": "a"}], "method": LONG}),
        ("POST", "/v1/search", {"queries": [{"text": "a"}], "cutoff": {"mass": 10**4000}}),
        ("POST", "/v1/search", {"queries": [{"text": "a"}], "cutoff": {"score": 0, "background": LONG}}),
        ("POST", "/v1/explain", {"query": {"text": "a"}, "items": [LONG, None]}),
        ("POST", "/v1/explain", {"query": {"text": "a"}, "items": [LONG] * 1001}),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_sentence_repeats_little_of_what_came(method: str, path: str, body: dict[str, Any] | None) -> None:
    response = ask(method, path, b"" if body is None else json.dumps(body).encode())
    assert response.status_code in (404, 405, 422)
    assert 20 < len(response.json()["error"]) < 350


def test_a_sentence_from_elsewhere_is_cut() -> None:
    api = application()

    @api.get("/v1/long")
    async def long() -> None:
        raise refusals.HTTPException(422, f"items[0] must be an item of the index, got '{LONG}'")

    message = ask("GET", "/v1/long", api=api).json()["error"]
    assert message.startswith("items[0] must be an item of the index, got 'xxx")
    assert message.endswith("xxx...")
    assert len(message) == 1000


@pytest.mark.parametrize(
    "value", [None, True, "3", 3.5, 10**30, -(10**30), 2**63, -0.0, float("nan"), float("inf"), [], {}, [[]], ""]
)
@pytest.mark.parametrize("field", [*SearchRequest.model_fields, *QueryInput.model_fields, "unknown"])
def test_any_value_anywhere_is_read_or_refused(field: str, value: Any) -> None:
    for body in ({"queries": [{"text": "a"}]} | {field: value}, {"queries": [{field: value}], "k": 3}):
        response = search(body)
        assert response.status_code in (200, 422)
        if response.status_code == 422:
            assert " must " in response.json()["error"]
            assert ", got " in response.json()["error"]
