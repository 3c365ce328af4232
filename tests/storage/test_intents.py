"""Changes of a storage announce themselves, and wait for a collection."""

import json
from pathlib import Path

import pytest

from rails_ray.errors import ConflictError, DamagedError
from rails_ray.storage import expiring, intents, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.intents import FOLDER, LOCK, intent
from support.clocks import Clock
from support.examples import encode


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path) if request.param == "local" else request.getfixturevalue("s3"))


def publish(storage: Storage, version: str) -> None:
    versions.publish(storage, encode(storage, version, [2]), f"2026-01-01T00:00:0{version[-1]}Z")


def test_an_intent_is_there_while_a_change_is_under_way(storage: Storage) -> None:
    publish(storage, "v1")
    assert storage.list(FOLDER) == []
    with intent(storage, "a change", versions.CURRENT) as before:
        assert before == storage.read_tagged(versions.CURRENT)
        [found] = expiring.listed(storage, FOLDER)
        assert found.what == "a change"
        assert str(found).startswith("a change by ")
    assert storage.list(FOLDER) == []
    with pytest.raises(ZeroDivisionError), intent(storage, "a change"):
        raise ZeroDivisionError
    assert storage.list(FOLDER) == []


def test_a_long_change_renews_its_intent(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "RENEWED_S", 0.01)
    with intent(storage, "a change"):
        [path] = storage.walk(FOLDER)
        before, renewed = storage.read(path), storage.read(path)
        while renewed == before:
            renewed = storage.read(path)
    assert storage.list(FOLDER) == []


def test_a_change_waits_for_a_collection_and_then_begins_again(storage: Storage) -> None:
    """The pointer is read after it, as a collection may write it."""
    publish(storage, "v1")
    clock = Clock()
    storage.create(LOCK, expiring.to_json("collection", clock() + 3))
    begun, num_intents = clock(), set[int]()

    def sleep(seconds: float) -> None:
        num_intents.add(len(storage.list(FOLDER)))
        clock.sleep(seconds)
        if clock() > begun + 1:
            versions.renew_pointer(storage)

    with intent(storage, "a change", versions.CURRENT, clock=clock, sleep=sleep) as before:
        assert clock() >= begun + 3
        assert before == storage.read_tagged(versions.CURRENT)
    assert num_intents == {1}  # so that the collection knows that somebody waits


def test_a_pointer_that_was_written_anew_means_the_same(storage: Storage) -> None:
    publish(storage, "v1")
    publish(storage, "v2")
    before, pointed = storage.read_tagged(versions.CURRENT), versions.read_pointer(storage)
    versions.renew_pointer(storage)
    renewed = versions.read_pointer(storage)
    assert renewed == pointed._replace(nonce=renewed.nonce)
    assert before is not None
    with pytest.raises(ConflictError):
        storage.swap(versions.CURRENT, b"{}", before.tag)
    assert versions.rollback(storage).version == "v1"


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"what": "x", "expires_at": "soon"}'])
def test_an_intent_that_cannot_be_read(tmp_path: Path, data: bytes) -> None:
    storage = Storage(str(tmp_path))
    storage.write(f"{FOLDER}/a.json", data)
    with pytest.raises(DamagedError, match=r"intents/a\.json must (be|say)"):
        expiring.listed(storage, FOLDER)


def test_what_an_intent_says_is_json(tmp_path: Path) -> None:
    value = json.loads(expiring.to_json("a change", 0.5))
    assert (value["what"], value["expires_at"]) == ("a change", "1970-01-01T00:00:00.500+00:00")
    assert expiring.to_json("a change", 0.5) != expiring.to_json("a change", 0.5)  # as storage tells writes by bytes
