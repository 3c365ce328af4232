"""Query a running server over HTTP."""

import os
from collections.abc import Sequence
from typing import Any

import httpx

from rails_ray.errors import AccessError, UnavailableError, UnsupportedError

TIMEOUT_S = 30.0
KEY_VARIABLE = "RAILS_RAY_API_KEY"


def search(
    url: str, queries: Sequence[dict[str, Any]], k: int | None = None, *, key: str | None = None, **options: Any
) -> dict[str, Any]:
    """The answer of `POST /v1/search`.

    Args:
        queries: as in the JSON of a request: {"text": "pizza"}, {"history": [1193, 661]}, {"user_id": 42}.
        k: most items per query; by default the cut-off decides.
        key: API key; by default the environment variable RAILS_RAY_API_KEY.
        options: other fields of the request, such as method and cutoff.

    Raises:
        ValueError: if the server refuses the request. The message is the server's.
        AccessError: if the server refuses the key.
        UnsupportedError: if the served version cannot do what the request asks.
        UnavailableError: if no server answers, or the server cannot search now.
    """
    return _request("POST", url, "/v1/search", {"queries": list(queries), "k": k} | options, key)


def explain(url: str, query: dict[str, Any], items: Sequence[str | int], *, key: str | None = None) -> dict[str, Any]:
    """The answer of `POST /v1/explain`: component cosines and gates of a query with each item; raises as `search`."""
    return _request("POST", url, "/v1/explain", {"query": query, "items": list(items)}, key)


def index(url: str, *, key: str | None = None) -> dict[str, Any]:
    """The answer of `GET /v1/index`.

    Raises:
        AccessError: if the server refuses the key.
        UnavailableError: if no server answers.
    """
    return _request("GET", url, "/v1/index", None, key)


def _request(method: str, url: str, path: str, body: dict[str, Any] | None, key: str | None) -> dict[str, Any]:
    key = (key or os.environ.get(KEY_VARIABLE, "")).strip()  # a key read from a file may end with a newline
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"an API key must be of printable ASCII characters, got others: look at {KEY_VARIABLE}")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        address = httpx.URL(url)
        is_local = address.host in ("127.0.0.1", "localhost", "::1")  # no proxy leads there
        verify = address.scheme == "https" or not is_local  # reading the certificates takes longer than a search
        with httpx.Client(
            base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=not is_local, verify=verify
        ) as client:
            response = _asked(client, method, path, body) or client.request(method, path, json=body)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UnavailableError(
            f"a rails-ray server must answer at {url}, got: {error}; `rails-ray serve` starts one"
        ) from None
    try:
        answer: dict[str, Any] = response.json()
        if response.is_success:
            return answer
        sentence = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        raise UnavailableError(
            f"{url} must answer as a rails-ray server, got status {response.status_code} of another program or proxy"
        ) from None
    if response.status_code in (httpx.codes.UNPROCESSABLE_ENTITY, httpx.codes.REQUEST_ENTITY_TOO_LARGE):
        raise ValueError(sentence)
    if response.status_code == httpx.codes.CONFLICT:
        raise UnsupportedError(sentence)
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise AccessError(f"{sentence}: set {KEY_VARIABLE}")
    raise UnavailableError(sentence)


def _asked(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response | None:
    """The answer; None if the router died during the request. A request changes nothing, so it is safe to repeat."""
    try:
        response = client.request(method, path, json=body)
    except (httpx.ReadError, httpx.RemoteProtocolError):
        return None
    # Ray's proxies report a dead router as text; our own answers are JSON.
    died = response.is_server_error and response.headers.get("content-type") != "application/json"
    return None if died else response
