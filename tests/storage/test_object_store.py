"""Storage on Azure and on Google Cloud: what a server refuses, and a version from encoding to reading. What all storage
does is in `test_filesystem`."""

import multiprocessing
from pathlib import Path

import pytest

from rails_ray.errors import NotFoundError, StorageError
from rails_ray.families import shards
from rails_ray.modules.similarities.states import ItemState
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.azure_server import needs_azurite, use_azure
from support.examples import encode
from support.google_server import use_google
from support.ports import free_port


@pytest.fixture(params=[pytest.param("azure", marks=needs_azurite), "google"])
def storage(request: pytest.FixtureRequest) -> Storage:
    return Storage(request.getfixturevalue(request.param))


@pytest.fixture
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    from rails_ray.storage import object_store

    monkeypatch.setitem(object_store.RETRIES, "max_retries", 1)


def test_a_version_is_published_and_read(storage: Storage) -> None:
    storage.check_conditional()
    versions.publish(storage, encode(storage, "v1", [2, 2]), "now")
    versions.publish(storage, encode(storage, "v2", [3]), "later")
    published = versions.rollback(storage)
    assert published.version == versions.current(storage).version == "v1"
    assert shards.read_shards(storage, published, [0, 1], ItemState).item_ids == ["i0", "i1", "i2", "i3"]


@needs_azurite
@pytest.mark.parametrize("call", ["read", "exists", "list", "write", "create"])
def test_a_container_that_is_not_there(azure: str, call: str) -> None:
    storage = Storage("az://nowhere/x")
    calls = {
        "read": lambda: storage.read("a"),
        "exists": lambda: storage.exists("a"),
        "list": lambda: storage.list("a"),
        "write": lambda: storage.write("a", b""),
        "create": lambda: storage.create("a", b""),
    }
    with pytest.raises(NotFoundError, match=r"container 'nowhere' must exist for az://nowhere/x/?a?, got none: create"):
        calls[call]()


@needs_azurite
def test_a_key_of_another_account(azure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")
    with pytest.raises(
        StorageError, match=r"must write az://\S+/a, got AuthorizationFailure: check AZURE_\S+"
    ) as refused:
        Storage(azure).write("a", b"1")
    assert "aHVzaA" not in str(refused.value)


def test_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageError, match=r"storage az://c/x must be set up, got \w+: set AZURE_STORAGE_ACCOUNT_NAME"):
        Storage("az://c/x")


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, few_retries: None) -> None:
    use_azure(monkeypatch, f"http://127.0.0.1:{free_port()}/devstoreaccount1")
    with pytest.raises(StorageError, match=r"must write az://cont/a, got \w+: check the network and AZURE"):
        Storage("az://cont").write("a", b"1")


def test_a_file_that_changes_while_it_is_read(storage: Storage) -> None:
    storage.write("a", b"12345678")
    with storage.open("a") as opened:
        assert opened.file.read(4) == b"1234"
        storage.write("a", b"abcdefgh")
        with pytest.raises(StorageError, match=r"/a must stay as it is while it is read, got a change: run it again"):
            opened.file.read(4)


def test_a_large_file_is_sent_in_parts(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rails_ray.storage.object_store.BYTES_OF_PART", 5 * 2**20)
    data = bytes(range(256)) * 2**16
    storage.write("a", data)
    assert storage.read("a") == data
    assert storage.copy("a", "b") == len(data)
    assert storage.read("b") == data


@pytest.mark.parametrize("name", ["a b", "100%", "a#b", "a+b", "ü", "[x]", "a&b=c"])
def test_names_of_all_kinds(storage: Storage, name: str) -> None:
    storage.write(f"f/{name}", b"1")
    assert storage.list("f") == [name]
    assert storage.read(f"f/{name}") == b"1"


def _read(root: str) -> str:
    try:
        return str(Storage(root).read("a"))
    except StorageError as error:
        return str(error)


def test_a_fork_is_refused(storage: Storage, tmp_path: Path) -> None:
    """The threads that carry out its requests are not there: it would wait for ever."""
    storage.write("a", b"1")
    said = tmp_path / "said"
    child = multiprocessing.get_context("fork").Process(target=lambda: said.write_text(_read(str(storage))))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert "must be used by a process that is no fork of another that used such storage" in said.read_text()


def test_a_bucket_of_google_cloud_that_is_not_there(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_google(monkeypatch, s3_server)
    for call in (Storage("gs://nowhere/x").read, Storage("gs://nowhere/x").exists, Storage("gs://nowhere/x").list):
        with pytest.raises(NotFoundError, match=r"bucket 'nowhere' must exist for gs://nowhere/x\S*, got none: create"):
            call("a")
