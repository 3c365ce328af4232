"""Ask a running server, over HTTP."""

from collections.abc import Sequence
from typing import Any

import httpx

from rails_ray.errors import UnavailableError

TIMEOUT_S = 30.0


def search(url: str, texts: Sequence[str], k: int, **options: Any) -> dict[str, Any]:
    """The answer of `POST /v1/search` to text queries.

    Args:
        options: further fields of the request, such as method and cutoff.

    Raises:
        ValueError: if the server refuses the request; the server's sentence.
        UnavailableError: if no server answers, or it cannot search now.
    """
    body = {"queries": [{"text": text} for text in texts], "k": k} | options
    try:
        response = httpx.post(f"{url}/v1/search", json=body, timeout=TIMEOUT_S)
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
