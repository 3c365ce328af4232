"""Publishing on S3: through failures, against a server that cannot promise, and under the eyes of a reader."""

import threading
from collections.abc import Iterator

import pytest

from rails_ray.cli.main import main
from rails_ray.errors import ConflictError, DamagedError, NotFoundError, RailsRayError, StorageError
from rails_ray.families import shards
from rails_ray.modules.similarities.states import ItemState
from rails_ray.storage import manifest, versions
from rails_ray.storage.filesystem import Storage
from support.examples import encode
from support.s3_server import FaultyProxy, answer, delay, lose_answer


@pytest.fixture
def proxy(s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


@pytest.mark.long
@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("fault", [answer(500, "InternalError"), delay(0.3), lose_answer], ids=["500", "delay", "lost"])
def test_encoding_and_publishing_through_failures(s3: str, proxy: FaultyProxy, method: str, fault) -> None:
    storage = Storage(s3)
    proxy.fail(method, fault, times=2)
    encoded = encode(storage, "v1", [2, 2])
    proxy.fail(method, fault, times=2)
    versions.publish(storage, encoded, "now")
    published = versions.read_manifest(storage)
    assert shards.read_shards(storage, published, [0, 1], ItemState).item_ids == ["i0", "i1", "i2", "i3"]
    assert len(storage.list("objects")) == 2, "a part that was written twice must be named once"


@pytest.mark.parametrize("fault", [answer(500, "InternalError"), lose_answer], ids=["500", "lost"])
@pytest.mark.long
def test_a_damaged_manifest_is_mended_through_failures(s3: str, proxy: FaultyProxy, fault) -> None:
    storage = Storage(s3)
    encoded = encode(storage, "v1", [2, 2])
    versions.publish(storage, encoded, "now")
    versions.publish(storage, encode(storage, "v2", [2]), "now")
    path = "versions/v1/manifest.json"
    storage.write(path, storage.read(path).replace(b'"cutoff_mass": 0.9', b'"cutoff_mass": 0.1'))
    with pytest.raises(DamagedError, match="must name the sha256 of its other fields"):
        versions.rollback(storage)
    proxy.fail("PUT", fault, times=2)
    made = versions.publish(storage, encoded, "later")
    assert versions.read_manifest(storage) == made
    assert (made.version, made.created_at, made.cutoff_mass) == ("v1", "later", 0.9)
    assert versions.publish(storage, encoded, "again") == made
    assert versions.rollback(storage).version == "v2"
    assert versions.rollback(storage) == made


def test_nothing_is_published_where_conditions_are_ignored(s3: str, proxy: FaultyProxy) -> None:
    storage = Storage(s3)
    encoded = encode(storage, "v1", [2])
    proxy.ignores_conditions = True
    with pytest.raises(StorageError, match=r"must honour conditional writes \(If-None-Match, If-Match\), got a server"):
        versions.publish(storage, encoded, "now")
    with pytest.raises(NotFoundError, match="must hold a published version, got none"):
        versions.current_version(storage)


@pytest.mark.long
def test_a_reader_never_sees_half_a_version(s3: str) -> None:
    """Two publishers at once."""
    done = threading.Event()
    errors: list[str] = []
    seen: list[str] = []

    def publish(number: int) -> None:
        storage = Storage(s3)
        for turn in range(5):
            encoded = encode(storage, f"v-{number}-{turn}", [3, 2])
            while True:
                try:
                    versions.publish(storage, encoded, "now")
                    break
                except ConflictError:
                    continue

    def read() -> None:
        storage = Storage(s3)
        while not done.is_set():
            try:
                found = versions.read_manifest(storage)
                assert len(shards.read_shards(storage, found, [0, 1], ItemState).item_ids) == 5
                manifest.read_file(storage, found.version, found.file(manifest.CONFIG))
                seen.append(found.version)
            except NotFoundError as error:
                if seen:
                    errors.append(str(error))
            except (RailsRayError, AssertionError) as error:
                errors.append(str(error))

    reader = threading.Thread(target=read)
    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in (reader, *publishers):
        thread.start()
    for thread in publishers:
        thread.join()
    done.set()
    reader.join()
    assert not errors
    assert len(set(seen)) > 2, "the reader must have seen versions change"
    assert len([row for row in versions.listed(Storage(s3)) if row.state in ("current", "published")]) == 10


@pytest.mark.parametrize(
    ("root", "keys", "message"),
    [
        ("s3://no-such-bucket", True, "bucket 'no-such-bucket' must exist"),
        ("BUCKET", False, "must have credentials, got NoCredentialsError: set AWS_ACCESS_KEY_ID"),
        ("s3://key:secret@bucket/x", True, "storage must be s3://bucket/prefix without credentials, got some"),
    ],
)
def test_the_command_says_in_a_sentence_what_is_wrong_with_storage(
    s3: str, root: str, keys: bool, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if not keys:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main(["index", "list", "--storage", s3 if root == "BUCKET" else root]) in (1, 2)
    text = capfd.readouterr().err
    assert message in text
    assert text.startswith("rails-ray: ")
    assert text.count("\n") == 1
    assert "secret@" not in text
