"""Ask a running server, over HTTP."""

from collections.abc import Sequence
from typing import Any

import httpx

from rails_ray.errors import UnavailableError

TIMEOUT_S = 30.0


def search(url: str, queries: Sequence[dict[str, Any]], k: int, **options: Any) -> dict[str, Any]:
    """The answer of `POST /v1/search`.

    Args:
        queries: as in the request's JSON: {"text": "pizza"}, {"history": [1193, 661]}, {"user_id": 42}.
        options: further fields of the request, such as method and cutoff.

    Raises:
        ValueError: if the server refuses the request; the server's sentence.
        UnavailableError: if no server answers, or it cannot search now.
    """
    return _request("POST", url, "/v1/search", {"queries": list(queries), "k": k} | options)


def index(url: str) -> dict[str, Any]:
    """The answer of `GET /v1/index`.

    Raises:
        UnavailableError: if no server answers.
    """
    return _request("GET", url, "/v1/index", None)


def _request(method: str, url: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    try:
        is_local = httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")  # where no proxy can lead
        response = httpx.request(method, f"{url}{path}", json=body, timeout=TIMEOUT_S, trust_env=not is_local)
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
        raise UnavailableError(f"{url} must be a rails-ray server, got an answer of another program") from None
    if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        raise ValueError(sentence)
    raise UnavailableError(sentence)
