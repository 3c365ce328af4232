import dataclasses
import json
from pathlib import Path

import pytest
import torch

from examples import part_of, random_states
from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import manifest, shards
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Encoded, PartEntry
from rails_ray.storage.parquet import to_bytes


def encode(storage: Storage, version: str, shard_items: list[int]) -> Encoded:
    """A version of random items, one part per shard, ready to publish."""
    parts = []
    first = 0
    for shard, size in enumerate(shard_items):
        data = to_bytes(part_of(random_states(1, size, seed=shard)[1], first))
        entry = manifest.describe(f"shard-{shard:03d}/part.parquet", data)
        storage.write(f"versions/{version}/{entry.path}", data)
        parts.append(PartEntry(**dataclasses.asdict(entry), shard=shard, first_row=first, num_items=size))
        first += size
    for name in ("config.json", "model.safetensors"):
        storage.write(f"versions/{version}/{name}", b"{}")
    encoded = Encoded(
        version=version,
        run="r",
        num_items=first,
        shard_items=shard_items,
        columns={"item_row": "int64"},
        parts=parts,
        files=[manifest.describe(name, b"{}") for name in ("config.json", "model.safetensors")],
        cutoff_mass=0.9,
    )
    manifest.write_encoded(storage, encoded)
    return encoded


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def publish(storage: Storage, version: str, shard_items: list[int]) -> manifest.Manifest:
    return manifest.publish(storage, encode(storage, version, shard_items), "2026-01-01T00:00:00Z")


def test_a_version_comes_back_as_it_was_published(storage: Storage) -> None:
    made = publish(storage, "v1", [3, 2])
    assert manifest.read_manifest(storage) == made
    assert manifest.read_manifest(storage, "v1") == made
    assert manifest.read_encoded(storage, "v1").parts == made.parts
    second = shards.read_shards(storage, made, [1])
    assert (second.first_row, second.item_ids) == (3, ["i3", "i4"])
    both = shards.read_shards(storage, made, [0, 1])
    assert both.item_ids == [f"i{row}" for row in range(5)]
    assert torch.equal(both.state.components[3:], second.state.components)


def test_the_last_published_is_current_and_the_former_stays(storage: Storage) -> None:
    publish(storage, "v1", [2])
    publish(storage, "v2", [2])
    assert manifest.current_version(storage) == "v2"
    assert manifest.read_manifest(storage, "v1").version == "v1"


def test_publishing_again_goes_back_to_the_version_as_it_was(storage: Storage) -> None:
    first = publish(storage, "v1", [2])
    publish(storage, "v2", [2])
    again = manifest.publish(storage, manifest.read_encoded(storage, "v1"), "2026-01-01T00:00:00Z")
    assert again == first == manifest.read_manifest(storage)


@pytest.mark.parametrize("write_number", [1, 2])
def test_an_interrupted_publish_leaves_the_former_version_current(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, write_number: int
) -> None:
    """Publishing writes the manifest, then the pointer; it is cut off before either."""
    publish(storage, "v1", [2])
    encoded = encode(storage, "v2", [2])
    real, count = Storage.write, 0

    def cut_off(self: Storage, path: str, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == write_number:
            raise KeyboardInterrupt
        real(self, path, data)

    monkeypatch.setattr(Storage, "write", cut_off)
    with pytest.raises(KeyboardInterrupt):
        manifest.publish(storage, encoded, "now")
    monkeypatch.undo()
    assert manifest.read_manifest(storage).version == "v1"
    manifest.publish(storage, encoded, "now")  # and nothing stands in the way of another try
    assert manifest.read_manifest(storage).version == "v2"


def test_nothing_published(storage: Storage) -> None:
    with pytest.raises(NotFoundError, match=r"must hold a published version, got none in .*: run `rails-ray publish`"):
        manifest.read_manifest(storage)


def test_unknown_versions(storage: Storage) -> None:
    publish(storage, "v1", [2])
    encode(storage, "v2", [2])
    with pytest.raises(NotFoundError, match="version must be one of v1, got 'v2'"):
        manifest.read_manifest(storage, "v2")
    with pytest.raises(NotFoundError, match=r"version must be one of v1, got '\.\./v1'"):
        manifest.read_manifest(storage, "../v1")
    with pytest.raises(NotFoundError, match=r"must be one that `rails-ray encode` has finished in .*, got 'v9'"):
        manifest.read_encoded(storage, "v9")


def damage(storage: Storage, path: str, change) -> None:
    storage.write(path, change(storage.read(path)))


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]],
    ids=["a truncated part", "a flipped bit"],
)
def test_a_damaged_part_is_neither_published_nor_read(storage: Storage, change) -> None:
    made = publish(storage, "v1", [3])
    damage(storage, "versions/v1/shard-000/part.parquet", change)
    with pytest.raises(
        DamagedError, match=r"part\.parquet of version v1 must have the sha256 of its manifest, \w+, got"
    ):
        shards.read_shards(storage, made, [0])
    encoded = encode(storage, "v2", [3])
    damage(storage, "versions/v2/shard-000/part.parquet", change)
    with pytest.raises(DamagedError, match="of version v2 must have the sha256"):
        manifest.publish(storage, encoded, "now")
    assert manifest.current_version(storage) == "v1"


def test_damaged_weights_are_not_published(storage: Storage) -> None:
    encoded = encode(storage, "v1", [3])
    damage(storage, "versions/v1/model.safetensors", lambda data: data + b" ")
    with pytest.raises(DamagedError, match=r"model\.safetensors of version v1 must have the sha256"):
        manifest.publish(storage, encoded, "now")


def test_publishing_again_mends_a_manifest_and_a_pointer_that_cannot_be_read(storage: Storage) -> None:
    publish(storage, "v1", [2])
    storage.write("versions/v1/manifest.json", b"{")
    storage.write("CURRENT", b"{}")
    with pytest.raises(DamagedError, match="CURRENT must name a version, got None: publish again"):
        manifest.read_manifest(storage)
    manifest.publish(storage, manifest.read_encoded(storage, "v1"), "now")
    assert manifest.read_manifest(storage).version == "v1"


def test_a_part_is_missing(storage: Storage) -> None:
    made = publish(storage, "v1", [3])
    Path(str(storage), "versions/v1/shard-000/part.parquet").unlink()
    with pytest.raises(DamagedError, match=r"version v1 must hold shard-000/part\.parquet, got no such file"):
        shards.read_shards(storage, made, [0])


@pytest.mark.parametrize(
    ("first_rows", "message"),
    [
        ([0, 3], "got item row 2 missing"),
        ([0, 1], "got item row 1 there twice"),
        ([1, 3], "got item row 0 missing"),
    ],
)
def test_every_item_row_must_be_there_once(storage: Storage, first_rows: list[int], message: str) -> None:
    encoded = encode(storage, "v1", [2, 2])
    parts = [dataclasses.replace(part, first_row=first) for part, first in zip(encoded.parts, first_rows, strict=True)]
    with pytest.raises(DamagedError, match=message):
        manifest.publish(storage, dataclasses.replace(encoded, parts=parts), "now")


def test_too_few_items(storage: Storage) -> None:
    encoded = encode(storage, "v1", [2, 2])
    with pytest.raises(DamagedError, match="version v1 must hold 4 items, got 2"):
        manifest.publish(storage, dataclasses.replace(encoded, parts=encoded.parts[:1]), "now")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"format": 9}, r"manifest\.json must be of format 1, got 9"),
        (lambda value: {"format": 1, "version": "v1"}, r"must have the fields of a manifest, got: 'parts'"),
        (lambda value: [value], "must be a JSON object, got list"),
    ],
)
def test_a_manifest_of_another_kind(storage: Storage, change, message: str) -> None:
    publish(storage, "v1", [2])
    damage(storage, "versions/v1/manifest.json", lambda data: json.dumps(change(json.loads(data))).encode())
    with pytest.raises(DamagedError, match=message):
        manifest.read_manifest(storage)


def test_a_manifest_that_is_no_json(storage: Storage) -> None:
    publish(storage, "v1", [2])
    damage(storage, "versions/v1/manifest.json", lambda data: data[:10])
    with pytest.raises(DamagedError, match=r"manifest\.json must be JSON"):
        manifest.read_manifest(storage)


def test_names_that_cannot_be(storage: Storage) -> None:
    encode(storage, "v1", [2])
    with pytest.raises(ValueError, match="version must be a new name, got 'v1'"):
        manifest.check_new(storage, "v1")
    with pytest.raises(ValueError, match=r"version must be made of letters, digits, .*, got 'a/b'"):
        manifest.check_new(storage, "a/b")


def test_even_shards() -> None:
    assert manifest.even_shards(7, 3) == [3, 2, 2]
    assert manifest.even_shards(2, 2) == [1, 1]


def test_an_unknown_shard(storage: Storage) -> None:
    made = publish(storage, "v1", [2])
    with pytest.raises(ValueError, match="shard must be at least 0 and below 1, got 1"):
        shards.read_shards(storage, made, [1])
