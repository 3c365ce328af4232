"""Pages of other origins: none by default, and those that are named."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.origins import checked
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion

PAGE, OTHER, KEY = "https://shop.example", "https://evil.example", "a-key-of-the-test-1"
BODY = {"queries": [{"text": "red"}], "k": 2}


def ask(single: SingleProcessServer, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    async def answered() -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.ASGITransport(api_of(lambda: single))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, json=body, headers=named)

    return asyncio.run(answered())


def preflight(single: SingleProcessServer, origin: str) -> httpx.Response:
    wanted = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, x-deadline-ms"}
    return ask(single, "OPTIONS", "/v1/search", origin=origin, **wanted)


def shared_with(answer: httpx.Response) -> str | None:
    return answer.headers.get("access-control-allow-origin")


def test_no_page_of_another_origin_may_ask_by_default(version: LocalVersion) -> None:
    single = SingleProcessServer(version)
    assert shared_with(ask(single, "POST", "/v1/search", BODY, origin=PAGE)) is None
    refused = preflight(single, PAGE)
    assert (refused.status_code, shared_with(refused)) == (405, None)


def test_a_named_origin_may_ask_with_its_key_and_reads_refusals_too(version: LocalVersion, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    single = SingleProcessServer(version, str(keys), allowed_origins=[PAGE, "http://localhost:3000"])
    first = preflight(single, PAGE)
    assert (first.status_code, shared_with(first)) == (200, PAGE)
    assert "authorization" in first.headers["access-control-allow-headers"].lower()
    answer = ask(single, "POST", "/v1/search", BODY, origin=PAGE, authorization=f"Bearer {KEY}")
    assert (answer.status_code, shared_with(answer)) == (200, PAGE)
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    for status, headers in ((401, {}), (403, {"authorization": "Bearer another-key-of-a-test"})):
        refused = ask(single, "POST", "/v1/search", BODY, origin=PAGE, **headers)
        assert (refused.status_code, shared_with(refused)) == (status, PAGE)
    wrong = ask(single, "POST", "/v1/search", {}, origin=PAGE, authorization=f"Bearer {KEY}")
    assert (wrong.status_code, shared_with(wrong)) == (422, PAGE)


def test_another_origin_is_told_nothing(version: LocalVersion) -> None:
    single = SingleProcessServer(version, allowed_origins=[PAGE])
    assert (preflight(single, OTHER).status_code, shared_with(preflight(single, OTHER))) == (400, None)
    assert shared_with(ask(single, "POST", "/v1/search", BODY, origin=OTHER)) is None
    assert ask(single, "POST", "/v1/search", BODY).status_code == 200, "a program has no origin"


def test_a_star_stands_for_any_origin(version: LocalVersion) -> None:
    single = SingleProcessServer(version, allowed_origins=["*"])
    assert shared_with(ask(single, "POST", "/v1/search", BODY, origin=OTHER)) == "*"


@pytest.mark.parametrize(
    "origin", ["shop.example", "https://shop.example/", "https://shop.example/a", "null", "", "ftp://a", "https://*.a"]
)
def test_what_no_browser_sends_is_refused(
    version: LocalVersion, capsys: pytest.CaptureFixture[str], origin: str
) -> None:
    sentence = f"an allowed origin must be as https://shop.example or http://localhost:3000, got {origin!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        checked([PAGE, origin])
    with pytest.raises(ValueError, match=re.escape(sentence)):
        SingleProcessServer(version, allowed_origins=[origin])
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ServeArgs(storage="s", allow_anonymous=True, allow_origins=[origin])
    assert main(["serve", "--single", "--allow-anonymous", "--allow-origins", PAGE, origin]) == EXIT_BAD_ARGUMENT
    assert capsys.readouterr().err == f"rails-ray: {sentence}\n"
