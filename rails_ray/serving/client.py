"""Query a running server over HTTP.

    with Client("http://127.0.0.1:8000") as server:
        server.search(["pizza"], k=10).results[0].items

`AsyncClient` is the same with `async with` and `await`; the functions ask one question each. A search changes nothing,
so it is safe to repeat; items that are stored or deleted again stay so; feedback that is repeated may count twice.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self, TypeVar

import httpx
from pydantic import ValidationError

from rails_ray.errors import AccessError, ConflictError, UnavailableError, UnsupportedError
from rails_ray.schema.fields import check_listed, listed, lists_of
from rails_ray.schema.queries import Query, listed_fields, query_fields
from rails_ray.schema.responses import ExplainResponse, FeedbackResponse, ItemsResponse, Response, SearchResponse

TIMEOUT_S = 30.0
KEY_VARIABLE = "RAILS_RAY_API_KEY"
RETRIES = 3
ITEMS = "/v1/items"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  # before a request is repeated; twice as long each time
BUSY = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)

_Given = TypeVar("_Given", bound=Response)


class Client:
    """A connection to a server.

    Args:
        key: API key; by default the environment variable RAILS_RAY_API_KEY.
        timeout_s: limit for an answer.
        retries: how often a request is repeated if the server is busy, restarts, or cannot be reached. The pause before
            is what the server says, or grows.

    Raises:
        ValueError: if the key cannot be sent.
        UnavailableError: if the URL is none.
    """

    def __init__(
        self, url: str, *, key: str | None = None, timeout_s: float = TIMEOUT_S, retries: int = RETRIES
    ) -> None:
        self._url, self._retries = url, retries
        with _valid(url):
            self._client = httpx.Client(**_options(url, key, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def search(self, queries: Iterable[Query], k: int | None = None, **options: Any) -> SearchResponse:
        """The answer of `POST /v1/search`.

        Args:
            k: most items per query, and without a cut-off just so many; by default the cut-off decides.
            options: other fields of the request, such as method and cutoff.

        Raises:
            ValueError: if the server refuses the request. The message is the server's.
            AccessError: if the server refuses the key.
            UnsupportedError: if the served version cannot do what the request asks.
            UnavailableError: if no server answers, or the server cannot search now.
        """
        return _read(SearchResponse, self._ask(*_search(queries, k, options)))

    def explain(self, query: Query, items: Sequence[str | int], **options: Any) -> ExplainResponse:
        """The answer of `POST /v1/explain`: component cosines and gates of a query with each item; options and errors
        as of `search`."""
        return _read(ExplainResponse, self._ask(*_explain(query, items, options)))

    def feedback(
        self, queries: Iterable[Query], relevant: Sequence[Sequence[str | int]], **options: Any
    ) -> FeedbackResponse:
        """The answer of `POST /v1/feedback`: which of the relevant items a search keeps. From it the server measures
        whether its cut-offs keep their promise; raises as `search`.

        Args:
            relevant: for each query, the items that turned out to be relevant, found or not.
            options: other fields of the search, such as method and cutoff.
        """
        return _read(FeedbackResponse, self._ask(*_feedback(queries, relevant, options)))

    def embed(self, texts: Sequence[str], input_type: Literal["query", "document"] = "query") -> list[list[float]]:
        """A vector for each text, which a search takes as `embedding`; raises as `search`.

        Args:
            input_type: `document` for the vectors of items.
        """
        return _vectors(self._ask(*_embed(texts, input_type)))

    def upsert(self, items: Sequence[Mapping[str, Any]], **options: Any) -> ItemsResponse:
        """The answer of `POST /v1/items`: items are stored, in place of those of the same ids.

        Args:
            items: each has `id`, and `text` or `embedding`; it may have `title` and `attributes`.
            options: further fields of the request: `mode="add"` refuses items that are there already, also where the
                answer to a first try was lost.

        Raises:
            ConflictError: if the server changes no items, or others changed them again and again in the meantime.
            ValueError, AccessError, UnavailableError: as `search`.
        """
        return _read(ItemsResponse, self._ask(*_upsert(items, options)))

    def delete(self, ids: Sequence[str | int]) -> ItemsResponse:
        """The answer of `DELETE /v1/items`: ids that no item has are counted; raises as `upsert`."""
        return _read(ItemsResponse, self._ask(*_delete(ids)))

    def index(self) -> dict[str, Any]:
        """The answer of `GET /v1/index`; raises as `search`."""
        return self._ask("GET", "/v1/index", None)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        exchange = _Exchange(self._url, self._retries)
        while True:
            time.sleep(exchange.pause_s)  # as the server said, or longer each time; 0 before the first try
            try:
                answer = exchange.take(self._client.request(method, path, **_content(body)))
            except httpx.TransportError as error:
                answer = exchange.take(error)
            if answer is not None:
                return answer


class AsyncClient:
    """Asyncio's `Client`; many requests may be under way at once."""

    def __init__(
        self, url: str, *, key: str | None = None, timeout_s: float = TIMEOUT_S, retries: int = RETRIES
    ) -> None:
        self._url, self._retries = url, retries
        with _valid(url):
            self._client = httpx.AsyncClient(**_options(url, key, timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def search(self, queries: Iterable[Query], k: int | None = None, **options: Any) -> SearchResponse:
        """As `Client.search`."""
        return _read(SearchResponse, await self._ask(*_search(queries, k, options)))

    async def explain(self, query: Query, items: Sequence[str | int], **options: Any) -> ExplainResponse:
        """As `Client.explain`."""
        return _read(ExplainResponse, await self._ask(*_explain(query, items, options)))

    async def feedback(
        self, queries: Iterable[Query], relevant: Sequence[Sequence[str | int]], **options: Any
    ) -> FeedbackResponse:
        """As `Client.feedback`."""
        return _read(FeedbackResponse, await self._ask(*_feedback(queries, relevant, options)))

    async def embed(
        self, texts: Sequence[str], input_type: Literal["query", "document"] = "query"
    ) -> list[list[float]]:
        """As `Client.embed`."""
        return _vectors(await self._ask(*_embed(texts, input_type)))

    async def upsert(self, items: Sequence[Mapping[str, Any]], **options: Any) -> ItemsResponse:
        """As `Client.upsert`."""
        return _read(ItemsResponse, await self._ask(*_upsert(items, options)))

    async def delete(self, ids: Sequence[str | int]) -> ItemsResponse:
        """As `Client.delete`."""
        return _read(ItemsResponse, await self._ask(*_delete(ids)))

    async def index(self) -> dict[str, Any]:
        """As `Client.index`."""
        return await self._ask("GET", "/v1/index", None)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        exchange = _Exchange(self._url, self._retries)
        while True:
            await asyncio.sleep(exchange.pause_s)
            try:
                answer = exchange.take(await self._client.request(method, path, **_content(body)))
            except httpx.TransportError as error:
                answer = exchange.take(error)
            if answer is not None:
                return answer


def search(
    url: str, queries: Iterable[Query], k: int | None = None, *, key: str | None = None, **options: Any
) -> SearchResponse:
    """`Client.search` on a connection of its own, which repeats a request only if the router died under it."""
    with Client(url, key=key, retries=0) as client:
        return client.search(queries, k, **options)


def explain(
    url: str, query: Query, items: Sequence[str | int], *, key: str | None = None, **options: Any
) -> ExplainResponse:
    """`Client.explain`, likewise."""
    with Client(url, key=key, retries=0) as client:
        return client.explain(query, items, **options)


def index(url: str, *, key: str | None = None) -> dict[str, Any]:
    """`Client.index`, likewise."""
    with Client(url, key=key, retries=0) as client:
        return client.index()


def _read(kind: type[_Given], answer: dict[str, Any]) -> _Given:
    """Raises:
    UnavailableError: if a field is missing, as in the answer of an earlier release.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        found = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UnavailableError(
            f"the server must answer as a rails-ray server of this release, got one whose {found}"
        ) from None


def _search(queries: Iterable[Query], k: int | None, options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/search", {"queries": listed_fields(queries), "k": k} | options


def _explain(query: Query, items: Sequence[str | int], options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return (
        "POST",
        "/v1/explain",
        {"query": query_fields(query), "items": listed(items, "items", in_order=False)} | options,
    )


def _feedback(
    queries: Iterable[Query], relevant: Sequence[Sequence[str | int]], options: dict[str, Any]
) -> tuple[str, str, dict[str, Any]]:
    search = {"queries": listed_fields(queries)} | options
    return "POST", "/v1/feedback", {"search": search, "relevant": lists_of(relevant, "relevant")}


def _content(body: dict[str, Any] | None) -> dict[str, Any]:
    """A body as `httpx` takes it. NaN is sent, for the server to refuse by its place."""
    if body is None:
        return {}
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return {"content": content, "headers": {"content-type": "application/json"}}


def _embed(texts: Sequence[str], input_type: str) -> tuple[str, str, dict[str, Any]]:
    return (
        "POST",
        "/v1/embeddings",
        {"input": listed(texts, "texts"), **({} if input_type == "query" else {"input_type": input_type})},
    )


def _upsert(items: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    check_listed(items, "items")
    given = [_with_numbers(item) for item in items]
    return "POST", ITEMS, {"items": given} | options


def _with_numbers(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as JSON has it: its vector as `query_fields` writes one."""
    vector = item.get("embedding")
    return dict(item) if vector is None else {**item, **query_fields(vector)}


def _delete(ids: Sequence[str | int]) -> tuple[str, str, dict[str, Any]]:
    return "DELETE", ITEMS, {"ids": listed(ids, "ids", in_order=False)}


def _vectors(answer: dict[str, Any]) -> list[list[float]]:
    return [one["embedding"] for one in answer["data"]]


def _options(url: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    """How to connect.

    Raises:
        ValueError: if the key cannot be sent.
    """
    key = (key or os.environ.get(KEY_VARIABLE, "")).strip()  # a key read from a file may end with a newline
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"an API key must be of printable ASCII characters, got others: look at {KEY_VARIABLE}")
    address = httpx.URL(url)
    is_local = address.host in ("127.0.0.1", "localhost", "::1")  # no proxy leads there
    return {
        "base_url": url,
        "headers": {"authorization": f"Bearer {key}"} if key else {},
        "timeout": timeout_s,
        "trust_env": not is_local,
        "verify": address.scheme == "https" or not is_local,  # reading the certificates takes longer than a search
    }


@contextmanager
def _valid(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.InvalidURL as error:
        raise _no_server(url, error) from None


def _no_server(url: str, error: object) -> UnavailableError:
    return UnavailableError(f"a rails-ray server must answer at {url}, got: {error}; `rails-ray serve` starts one")


class _Exchange:
    """A request and its tries, for the client and its asynchronous twin.

    pause_s: seconds to wait before the next try.
    """

    def __init__(self, url: str, retries: int) -> None:
        self._url = url
        self._is_patient = retries > 0  # else it is repeated only if the router died under it
        self._left = max(retries, 1)
        self._next_s = FIRST_PAUSE_S
        self.pause_s = 0.0

    def take(self, outcome: httpx.Response | httpx.TransportError) -> dict[str, Any] | None:
        """The answer, or None to try again; raises as `Client.search` if no try is left or none would help."""
        if self._left and (_has_died(outcome) or (self._is_patient and _may_pass(outcome))):
            self._left -= 1
            if self._is_patient:
                self.pause_s = _retry_pause_s(outcome, self._next_s)
                self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
            return None
        if isinstance(outcome, httpx.TransportError):
            raise _no_server(self._url, outcome) from None
        return _answer(self._url, outcome)


def _has_died(outcome: httpx.Response | httpx.TransportError) -> bool:
    """Return whether the router died under the request."""
    if isinstance(outcome, httpx.TransportError):
        return isinstance(outcome, httpx.ReadError | httpx.RemoteProtocolError)
    # Ray's proxies report a dead router as text; our own answers are JSON.
    return outcome.is_server_error and outcome.headers.get("content-type") != "application/json"


def _may_pass(outcome: httpx.Response | httpx.TransportError) -> bool:
    return isinstance(outcome, httpx.TransportError) or outcome.status_code in BUSY


def _retry_pause_s(outcome: httpx.Response | httpx.TransportError, otherwise_s: float) -> float:
    header = outcome.headers.get("retry-after", "") if isinstance(outcome, httpx.Response) else ""
    return min(float(header), LONGEST_PAUSE_S) if header.isdigit() else otherwise_s


def _answer(url: str, response: httpx.Response) -> dict[str, Any]:
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
        raise (ConflictError if response.url.path.endswith(ITEMS) else UnsupportedError)(sentence)
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise AccessError(f"{sentence}: set {KEY_VARIABLE}")
    raise UnavailableError(sentence)
