"""What is refused in front of a server while a crowd asks."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from rails_ray.serving.http.access import Access
from rails_ray.serving.http.admission import QUESTIONS, AdmissionControl
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.request_ids import HEADER

PATHS = [
    (3, "/v1/search", "/v1/search"),
    (2, "/prefix/v1/explain", "/v1/explain"),
    (64, "/v1/feedback", "/v1/feedback"),
    (1, "/v1/embeddings", "/v1/embeddings"),
    (1, "/v2/models/emoji/infer", "/v2/models/{name}/infer"),
]


@pytest.mark.parametrize(("places", "path", "route"), PATHS)
def test_more_questions_than_there_are_places_are_refused_and_the_others_passed_on(
    places: int, path: str, route: str
) -> None:
    asked, ids, told = list[str](), list[str](), list[tuple[str, int]]()

    async def until_asked(count: int) -> None:
        async with asyncio.timeout(30):
            while len(asked) < count:
                await asyncio.sleep(0.01)

    async def scenario() -> tuple[list[httpx.Response], list[httpx.Response]]:
        may_answer = asyncio.Event()

        async def router(scope: Any, receive: Any, send: Any) -> None:
            asked.append(scope["path"])
            ids.append(dict(scope["headers"]).get(HEADER, b"").decode())
            assert (await receive())["body"] == b"a question"
            await may_answer.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"an answer"})

        crowd = AdmissionControl(
            router, lambda: Access(None, 100, places), lambda path, status: told.append((path, status))
        )
        transport = httpx.ASGITransport(crowd)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            first = [asyncio.create_task(client.post(path, content=b"a question")) for _ in range(places)]
            await until_asked(places)
            refused = [await client.post(path, content=b"a question") for _ in range(2)]
            other = asyncio.create_task(client.post("/another/application", content=b"a question"))
            await until_asked(places + 1)
            may_answer.set()
            answers = [await own for own in [*first, other]]
            answers.append(await client.post(path, content=b"a question"))  # a place is free again
        return answers, refused

    answers, refused = asyncio.run(scenario())
    assert [answer.text for answer in answers] == ["an answer"] * (places + 2)
    assert [answer.status_code for answer in refused] == [429, 429]
    assert refused[0].json()["error"].startswith(f"at most {places} requests are answered at once, got one more")
    assert int(refused[0].headers["retry-after"]) >= 1
    assert all(answer.headers["x-request-id"] for answer in refused)
    assert [answer.headers.get("x-request-id", "") for answer in answers] == ids  # one id, whoever gives it
    assert told == [(route, 429)] * 2
    assert asked == [*[path] * places, "/another/application", path]


def test_a_body_without_end_is_not_kept() -> None:
    """Told to be short, or of no length at all."""
    sent, told = list[int](), list[tuple[str, int]]()

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was passed on")

    async def endless() -> Any:
        sent.append(50)
        return {"type": "http.request", "body": b" " * 50, "more_body": True}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 413

    crowd = AdmissionControl(never, lambda: Access(None, 100, 2), lambda path, status: told.append((path, status)))
    scope = {"type": "http", "method": "POST", "path": "/v1/search", "headers": []}
    asyncio.run(crowd(scope, endless, send))
    assert sum(sent) <= 200
    assert told == [("/v1/search", 413)]


def test_every_question_that_the_api_answers_is_guarded() -> None:
    """A POST route that nobody guards would pass a crowd on."""
    nobody: Any = None
    api = api_of(lambda: nobody)
    asked = {route.path for route in api.routes if isinstance(route, APIRoute) and "POST" in route.methods}
    assert asked == set(QUESTIONS)
