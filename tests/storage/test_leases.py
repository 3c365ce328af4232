"""Leases: which versions servers read, as long as they live."""

import logging
from pathlib import Path

import pytest

from rails_ray.errors import StorageError
from rails_ray.storage import leases
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.intents import FOLDER
from rails_ray.storage.leases import Lease
from support.clocks import Clock


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path) if request.param == "local" else request.getfixturevalue("s3"))


def test_a_lease_is_renewed_and_moves_with_the_version(storage: Storage) -> None:
    clock, reads = Clock(), ["v1"]
    lease = Lease(storage, lambda: reads[0], clock)
    assert leases.readers(storage, clock()) == ({}, [])
    lease.look()
    assert leases.readers(storage, clock()) == ({"v1": 1}, [])
    [path] = storage.walk(leases.FOLDER)
    before = storage.read(path)
    clock.now += leases.RENEWED_S / 2
    lease.look()
    assert storage.read(path) == before  # it is not time yet
    for _ in range(10):
        clock.now += leases.RENEWED_S
        lease.look()
        assert leases.readers(storage, clock()) == ({"v1": 1}, [])
    reads[0] = "v2"
    lease.look()
    assert leases.readers(storage, clock()) == ({"v2": 1}, [])
    other = Lease(storage, lambda: "v2", clock)
    other.look()
    assert leases.readers(storage, clock())[0] == {"v2": 2}
    lease.end()
    lease.end()
    assert leases.readers(storage, clock())[0] == {"v2": 1}
    clock.now += leases.LASTS_S  # the other has died
    [path] = storage.walk(leases.FOLDER)
    assert leases.readers(storage, clock()) == ({}, [path])
    assert storage.list(FOLDER) == []


def test_a_server_goes_on_where_it_cannot_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line says so, and one more only after it has worked in between."""

    class ReadOnly(Storage):
        is_locked = True

        def create(self, path: str, data: bytes) -> None:
            if self.is_locked:
                raise StorageError("storage must take the file, got: Read-only file system")
            super().create(path, data)

        def delete(self, path: str) -> None:
            if self.is_locked:
                raise StorageError("storage must delete the file, got: Read-only file system")
            super().delete(path)

        def write(self, path: str, data: bytes) -> None:
            if self.is_locked:
                raise StorageError("storage must take the file, got: Read-only file system")
            super().write(path, data)

    storage, clock = ReadOnly(str(tmp_path)), Clock()
    lease = Lease(storage, lambda: "v1", clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            lease.look()
            clock.now += leases.RENEWED_S
        assert len(caplog.records) == 1
        assert caplog.messages[0].startswith(
            "version v1 is served without a lease, so that a collection may delete it: s"
        )
        storage.is_locked = False
        lease.look()
        assert leases.readers(storage, clock()) == ({"v1": 1}, [])
        storage.is_locked = True
        for _ in range(3):
            clock.now += leases.RENEWED_S
            lease.look()
        assert len(caplog.records) == 2
        lease.end()
