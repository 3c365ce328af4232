"""Items over HTTP: who may change them, what is refused, and that what was stored is found."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rails_ray import local
from rails_ray.client import Client
from rails_ray.errors import ConflictError, StorageError
from rails_ray.families.version import Version
from rails_ray.schema.items import MOST_CHANGES, DeleteItemsRequest, ItemsRequest
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.item_changes import ItemChanges, WaitingChanges
from rails_ray.serving.request_limits import Limits
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here
from support.ports import free_port
from support.processes import wait_for

ADMIN, SEARCHER = "an-admins-key-11", "a-key-to-search-1"
WIDTH = 4
VECTORS = np.eye(WIDTH, dtype=np.float32)


class Door:
    """A server at which holders of keys ask."""

    def __init__(self, url: str, server: SingleProcessServer) -> None:
        self.url, self.server = url, server

    def ask(self, method: str, body: Any, key: str = ADMIN, path: str = "/v1/items") -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=30)

    def found(self, query: dict[str, Any], k: int = 3) -> list[Any]:
        answer = self.ask("POST", {"queries": [query], "k": k}, path="/v1/search").json()
        items: list[Any] = answer["results"][0]["items"]
        return items


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """Of a version of four items whose ids are strings, followed closely."""
    local.build(VECTORS, ["a", "b", "c", "d"], titles=["A", "B", "C", "D"], folder=str(tmp_path / "storage"))
    with served(tmp_path / "storage", tmp_path / "keys", follow_s=0.05) as found:
        yield found


@contextmanager
def served(storage: Path, keys: Path, **options: Any) -> Iterator[Door]:
    keys.write_text(f"{SEARCHER} scope=search\n{ADMIN}\n")
    opened, port = local.open(str(storage), limits=Limits()), free_port()
    server = SingleProcessServer(opened, str(keys), **{"changes_items": True, **options})
    with listening(server, port=port):
        yield Door(f"http://127.0.0.1:{port}", server)


def item(name: str, vector: Any = (1, 1, 0, 0), **fields: Any) -> dict[str, Any]:
    return {"id": name, "embedding": [float(own) for own in vector], **fields}


def test_items_that_are_stored_are_found_replaced_and_deleted(door: Door) -> None:
    query = {"embedding": [1.0, 1, 0, 0]}
    answer = door.ask("POST", {"items": [item("new", title="N"), item("a", (0, 0, 0, -1))]}).json()
    version = answer.pop("version")
    assert answer == {
        "num_added": 1, "num_replaced": 1, "num_deleted": 0, "num_unknown": 0, "found_within_s": 0.05,
    }  # fmt: skip
    assert versions.current_version(Storage(str(door.server.served.storage))) == version
    wait_for(lambda: door.server.version_name == version)
    assert door.found(query, k=2) == ["new", "b"]
    answer = door.ask("DELETE", {"ids": ["new", "nobody"]}).json()
    assert (answer["num_deleted"], answer["num_unknown"]) == (1, 1)
    wait_for(lambda: door.server.version_name == answer["version"])
    assert door.found(query, k=1) == ["b"]
    again = door.ask("DELETE", {"ids": ["new"]}).json()
    assert (again["version"], again["num_deleted"], again["num_unknown"]) == (answer["version"], 0, 1)


def test_the_client_stores_and_deletes(door: Door) -> None:
    with Client(door.url, key=ADMIN) as server:
        stored = server.upsert([{"id": "new", "embedding": VECTORS[0] + VECTORS[1], "title": "N"}])
        assert (stored.num_added, stored["num_replaced"]) == (1, 0)
        with pytest.raises(ValueError, match="items to add must be new to version"):
            server.upsert([item("new")], mode="add")
        assert server.delete(["new", "a"]).num_deleted == 2
        message = r"items\[0\] must have exactly one of text, embedding, embeddings, got none"
        with pytest.raises(ValueError, match=message):
            server.upsert([{"id": "new"}])


@pytest.mark.parametrize(("key", "status"), [("", 401), ("a-key-of-nobody-1", 403), (SEARCHER, 403)])
@pytest.mark.parametrize(("method", "body"), [("POST", {"items": [item("x")]}), ("DELETE", {"ids": ["a"]})])
def test_without_the_scope_nobody_changes_anything(door: Door, key: str, status: int, method: str, body: Any) -> None:
    refused = door.ask(method, body, key)
    assert refused.status_code == status
    assert "key" in refused.json()["error"].lower()
    assert versions.current_version(door.server.served.storage) == "v1"


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        ("POST", {}, "items must be given, got none"),
        ("POST", {"items": []}, "items must have a length of at least 1"),
        ("POST", {"items": [{"embedding": [1.0, 0, 0, 0]}]}, "items[0].id must be given, got none"),
        ("POST", {"items": [{"id": 1.5, "embedding": [1.0] * 4}]}, "items[0].id must be a string or an integer"),
        (
            "POST",
            {"items": [item("x", text="y")]},
            "items[0] must have exactly one of text, embedding, embeddings, got text and",
        ),
        ("POST", {"items": [item("x"), {"id": "y", "text": "y"}]}, "items[1] must be given by embedding for version"),
        ("POST", {"items": [item("x", (1, 2))]}, "items[0].embedding must have 4 numbers, got 2"),
        ("POST", {"items": [item("x"), item("y", (1, 2))]}, "items[1].embedding must have 4 numbers, got 2"),
        ("POST", {"items": [item("x", (1e39, 0, 0, 0))]}, "items[0].embedding must hold numbers up to 3.40282e+38"),
        ("POST", {"items": [item("x", (0, 0, 0, 0))]}, "other than 0"),
        ("POST", {"items": [item("x"), item("x")]}, "ids must be distinct, got 'x' twice or more"),
        ("POST", {"items": [item("x"), {**item("y"), "id": 3}]}, "ids must be all integers or all strings"),
        ("POST", {"items": [{**item("y"), "id": 3}]}, "item_id must be of type string, as those of version v1 are"),
        ("POST", {"items": [item("x", attributes={"price": 1})]}, "items[0].attributes must be left out, as version"),
        ("POST", {"items": [item("x", attributes=[1])]}, "items[0].attributes must be a JSON object"),
        ("POST", {"items": [item("x", colour="red")]}, "items[0].colour must not be given"),
        ("POST", {"items": [item("a")], "mode": "add"}, "items to add must be new to version v1, got 1 of 1"),
        ("POST", {"items": [item("a")], "mode": "merge"}, "mode must be 'upsert' or 'add', got 'merge'"),
        ("DELETE", {"ids": []}, "ids must have a length of at least 1"),
        ("DELETE", {"ids": ["a", "b", "c", "d"]}, "an item of version v1 must be left, got all 4 to delete"),
        ("DELETE", {"ids": "a"}, "ids must be a list"),
        ("DELETE", None, "the body must be given, got none"),
    ],
)  # fmt: skip
def test_what_is_refused(door: Door, method: str, body: Any, message: str) -> None:
    refused = door.ask(method, body)
    assert refused.status_code == 422, refused.text
    assert message in refused.json()["error"]
    assert versions.current_version(door.server.served.storage) == "v1"
    assert door.server.version_name == "v1"


def test_a_body_that_is_too_large(door: Door) -> None:
    refused = door.ask("POST", {"items": [item("x", title="t" * 9_000_000)]})
    assert refused.status_code == 413


def test_others_who_write_all_the_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def outrun(*_: Any) -> Any:
        raise ConflictError("no other version may become current while v1.1 is published, got v2")

    monkeypatch.setattr(versions, "publish_change", outrun)
    refused = door.ask("POST", {"items": [item("x")]})
    assert (refused.status_code, "no other version may become current" in refused.json()["error"]) == (409, True)
    with (
        Client(door.url, key=ADMIN) as server,
        pytest.raises(ConflictError, match="no other version may become current"),
    ):
        server.delete(["a"])


def test_a_storage_that_cannot_be_written(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise StorageError("storage must take the file, got no space left")

    monkeypatch.setattr(Storage, "write", away)
    refused = door.ask("POST", {"items": [item("x")]})
    assert (refused.status_code, refused.json()["error"]) == (503, "storage must take the file, got no space left")
    assert door.found({"embedding": [1.0, 0, 0, 0]}, k=1) == ["a"]


def test_changes_come_one_after_the_other_and_few_wait(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, running, most = threading.Event(), list[int](), list[int]()
    upsert = ItemChanges.upsert

    def slow(*given: Any) -> Any:
        running.append(1)
        most.append(len(running))
        may_go_on.wait()
        try:
            return upsert(*given)
        finally:
            running.pop()

    monkeypatch.setattr(ItemChanges, "upsert", slow)
    statuses = list[int]()

    def change(number: int) -> None:
        statuses.append(door.ask("POST", {"items": [item(f"x{number}")]}).status_code)

    changes = [threading.Thread(target=change, args=(number,)) for number in range(MOST_CHANGES + 3)]
    for own in changes:
        own.start()
    wait_for(lambda: statuses == [429] * 3)
    assert door.found({"embedding": [1.0, 0, 0, 0]}, k=1) == ["a"], "searches go on"
    may_go_on.set()
    for own in changes:
        own.join()
    assert sorted(statuses) == [200] * MOST_CHANGES + [429] * 3
    assert set(most) == {1}
    assert local.open(str(door.server.served.storage)).facts["num_items"] == 4 + MOST_CHANGES


def test_a_client_that_goes_away_stops_no_change(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, upsert = threading.Event(), ItemChanges.upsert

    def slow(*given: Any) -> Any:
        may_go_on.wait()
        return upsert(*given)

    monkeypatch.setattr(ItemChanges, "upsert", slow)
    headers = {"authorization": f"Bearer {ADMIN}", "x-deadline-ms": "50"}
    late = httpx.post(f"{door.url}/v1/items", json={"items": [item("x")]}, headers=headers)
    assert late.status_code == 504
    may_go_on.set()
    wait_for(lambda: door.found({"embedding": [1.0, 1, 0, 0]}, k=1) == ["x"])


def test_a_server_that_was_not_started_for_it(tmp_path: Path) -> None:
    local.build(VECTORS, folder=str(tmp_path / "storage"))
    with served(tmp_path / "storage", tmp_path / "keys", changes_items=False) as door:
        for method, body in (("POST", {"items": [item("x")]}), ("DELETE", {"ids": [1]})):
            refused = door.ask(method, body)
            assert refused.status_code == 409
            assert "items must be changed by a server that was started with --change-items" in refused.json()["error"]


def test_nobody_changes_items_of_a_server_without_keys(tmp_path: Path) -> None:
    version = local.build(VECTORS, folder=str(tmp_path))
    with pytest.raises(ValueError, match="--change-items must be given with a file of API keys, got a server"):
        SingleProcessServer(version, changes_items=True)


def test_a_server_that_does_not_follow_says_so(tmp_path: Path) -> None:
    local.build(VECTORS, [1, 2, 3, 4], folder=str(tmp_path / "storage"))
    with served(tmp_path / "storage", tmp_path / "keys") as door:
        answer = door.ask("POST", {"items": [{**item("x"), "id": 9}]}).json()
        assert (answer["num_added"], answer["found_within_s"]) == (1, None)
        assert door.server.version_name == "v1"
        assert door.ask("DELETE", {"ids": ["9", 2]}).json()["num_deleted"] == 2


def test_texts_are_read_by_the_models_own_encoder(tmp_path: Path) -> None:
    """An item of a text is scored as one of a data set with the same text."""
    publish_here(tmp_path / "storage", num_shards=2)  # of which item-0 is a red car
    with served(tmp_path / "storage", tmp_path / "keys", follow_s=0.05) as door:
        name = door.ask("POST", {"items": [{"id": "copy", "text": "red car"}]}).json()["version"]
        wait_for(lambda: door.server.version_name == name)
        body = {"queries": [{"text": "red"}], "k": 100}
        [found] = door.ask("POST", body, path="/v1/search").json()["results"]
        scores = dict(zip(found["items"], found["scores"], strict=True))
        assert len(scores) == 61
        assert scores["copy"] == pytest.approx(scores["item-0"], abs=1e-6)
        refused = door.ask("POST", {"items": [item("x")]})
        assert refused.status_code == 422
        assert "items[0] must be given by text for version" in refused.json()["error"]


def test_attributes_come_with_items_and_filters_know_them(tmp_path: Path) -> None:
    prices, tags = [1.0, 2.0, 3.0, None], [["new"], [], None, ["old", "red"]]
    local.build(
        VECTORS, ["a", "b", "c", "d"], folder=str(tmp_path / "storage"), attributes={"price": prices, "tags": tags}
    )
    with served(tmp_path / "storage", tmp_path / "keys", follow_s=0.05) as door:
        stored = door.ask(
            "POST",
            {"items": [item("x", attributes={"price": 9, "tags": ["red"]}), item("a", (1, 0, 0, 0))]},
        ).json()
        assert (stored["num_added"], stored["num_replaced"]) == (1, 1)
        wait_for(lambda: door.server.version_name == stored["version"])

        def found(filter: dict[str, Any]) -> set[Any]:
            body = {"queries": [{"embedding": [1.0, 0, 0, 0]}], "k": 9, "filter": filter}
            return {*door.ask("POST", body, path="/v1/search").json()["results"][0]["items"]}

        assert found({"price": {"$gt": 2.5}}) == {"c", "x"}
        assert found({"tags": "red"}) == {"d", "x"}
        assert found({"price": 1}) == set(), "the item that replaced it has no price"
        refused = door.ask("POST", {"items": [item("y", attributes={"price": "9"})]})
        assert refused.status_code == 422
        assert refused.json()["error"] == "items[0].attributes.price must be a finite number, got '9'"


def counted_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the versions whose weights are read from now on."""
    opened, weights = list[str](), Version.weights

    def counted(self: Version) -> Any:
        opened.append(self.name.partition(".")[0])
        return weights(self)

    monkeypatch.setattr(Version, "weights", counted)
    return opened


def test_a_model_is_opened_once_for_many_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again for a version with another one, or once it was given back."""
    publish_here(tmp_path)
    changes, opened = ItemChanges(Storage(str(tmp_path))), counted_openings(monkeypatch)

    def text(name: str) -> ItemsRequest:
        return ItemsRequest(items=[{"id": name, "text": "red car"}])

    for name in ("a", "b", "a"):
        changes.upsert(text(name))
        changes.delete(DeleteItemsRequest(ids=["b"]))
    assert opened == ["v1"]
    [[one, other]] = [own.items[:2] for own in local.open(str(tmp_path)).search(["red car"], k=2).results]
    assert {one, other} == {"item-0", "a"}
    opened.clear()
    changes.forget()
    changes.upsert(text("c"))
    assert opened == ["v1"]
    opened.clear()
    local.build(VECTORS, ["a", "b", "c", "d"], folder=str(tmp_path), version="other")
    opened.clear()
    changes.upsert(ItemsRequest(items=[item("x")]))
    assert {*opened} == {"other"}
    opened.clear()
    changes.upsert(ItemsRequest(items=[item("y")]))
    assert not opened
    versions.rollback(Storage(str(tmp_path)), "v1")
    changes.upsert(text("d"))
    assert opened == ["v1"]


@pytest.mark.parametrize(("kept_s", "num_opened"), [(60.0, 1), (0.01, 2)])
def test_a_model_is_given_back_after_the_last_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_s: float, num_opened: int
) -> None:
    publish_here(tmp_path)
    changes, opened = WaitingChanges(ItemChanges(Storage(str(tmp_path))), kept_s), counted_openings(monkeypatch)

    async def scenario() -> None:
        for name in ("a", "b"):
            await changes.carry_out("upsert", ItemsRequest(items=[{"id": name, "text": "red car"}]))
            await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert len(opened) == num_opened
