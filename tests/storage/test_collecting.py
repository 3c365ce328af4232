"""Collections while others work, and on storage that does not answer."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import ConflictError, StorageError
from rails_ray.storage import collecting, expiring
from rails_ray.storage import s3 as s3_files
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.intents import FOLDER, LOCK, intent
from support.clocks import Clock
from support.collected import assert_whole, build, delete_all
from support.s3_server import FaultyProxy, answer, lose_answer


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_one_collection_at_a_time(folder: Storage) -> None:
    build(folder, "v1")
    clock = Clock()
    folder.create(LOCK, expiring.to_json("collection", clock() + 50))
    with pytest.raises(
        ConflictError, match=r"one collection at a time may be under way in .*, got collection by .* UTC: "
    ):
        delete_all(folder, clock=clock)
    clock.now += 50  # that one has died
    delete_all(folder, clock=clock)
    delete_all(folder, clock=clock)


def test_it_waits_for_no_change(folder: Storage) -> None:
    build(folder, "v1")
    folder.write("objects/" + 64 * "0", b"")
    with (
        intent(folder, "encode r"),
        pytest.raises(ConflictError, match=r"no change may be under way in .*, got encode r by"),
    ):
        delete_all(folder)
    assert delete_all(folder).num_files == 1  # and nothing was left locked


def test_it_gives_way_to_a_change_that_waits(folder: Storage) -> None:
    build(folder, "v1")
    for number in range(100):
        folder.write(f"objects/{number:064x}", b"")
    clock = Clock()

    def on_file(done: int, total: int) -> None:
        clock.now += 0.3
        if done == 10:
            folder.create(f"{FOLDER}/a.json", expiring.to_json("a change", clock() + 100))

    done = delete_all(folder, clock=clock, on_file=on_file)
    assert not done.is_complete
    assert 10 + collecting.GIVES_WAY_S / 0.3 <= done.num_files < 40
    folder.delete(f"{FOLDER}/a.json")
    rest = delete_all(folder, clock=clock)
    assert rest.is_complete
    assert done.num_files + rest.num_files == 100


@pytest.mark.parametrize("pause_s", [30, 150])
def test_a_collection_that_stood_still_deletes_no_more(folder: Storage, pause_s: float) -> None:
    build(folder, "v1")
    for number in range(9):
        folder.write(f"objects/{number:064x}", b"")
    clock = Clock()
    deleted = list[float]()

    class Pausing(Storage):
        def delete(self, path: str) -> None:
            super().delete(path)
            deleted.append(clock())

        def list(self, path: str) -> Any:
            clock.now += pause_s if len(deleted) == 3 and path == FOLDER else 0
            return super().list(path)

    with pytest.raises(StorageError, match=r"a collection of .* must not stand still, got a pause: run it again"):
        delete_all(Pausing(str(folder)), clock=clock, on_file=lambda done, total: clock.sleep(2))
    assert len(deleted) == 3


@pytest.fixture
def proxy(s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(s3_files, "ATTEMPTS", 2)
    with FaultyProxy(s3_server) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(answer(500, "InternalError"), id="500", marks=pytest.mark.long),
        pytest.param(lose_answer, id="lost", marks=pytest.mark.long),
    ],
)
def test_a_deletion_without_an_answer(s3: str, proxy: FaultyProxy, fault: Any) -> None:
    """Read back: a file that is gone counts, one that is there is left; and the lock stays, as the server may still
    carry out what it was asked."""
    storage = Storage(s3)
    build(storage, "v1")
    for number in range(3):
        storage.write(f"objects/{number:064x}", b"")
    is_lost = fault is lose_answer

    def on_file(done: int, total: int) -> None:
        if done == 1:
            proxy.fail("DELETE", fault, times=s3_files.ATTEMPTS * (2 if is_lost else 1))  # aiohttp tries too

    if is_lost:
        assert delete_all(storage, on_file=on_file).num_files == 3
    else:
        with pytest.raises(StorageError, match=r"HTTP 500.*; the rest is left: run it again in 120 s"):
            delete_all(storage, on_file=on_file)
        assert len(storage.walk("objects")) == 3
    with pytest.raises(ConflictError, match="one collection at a time"):
        delete_all(storage)
    later = Clock()
    later.now = time.time() + 10 * collecting.LASTS_S
    delete_all(storage, clock=later)
    assert len(storage.walk("objects")) == 1
    assert_whole(storage, "v1")
