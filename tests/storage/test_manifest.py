import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.families import shards
from rails_ray.modules.similarities.states import ItemState
from rails_ray.storage import manifest
from rails_ray.storage.described import WEIGHTS, Encoded, FileEntry, Manifest, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import StateEntry
from support.examples import encode


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def written(storage: Storage, shard_items: list[int]) -> Manifest:
    """The manifest of a version v1, written but not made current."""
    encoded = encode(storage, "v1", shard_items)
    fields = {field.name: getattr(encoded, field.name) for field in dataclasses.fields(Encoded)}
    made = Manifest(**fields, created_at="2026-01-01T00:00:00Z")
    storage.write("versions/v1/manifest.json", manifest.to_json(made))
    return made


def damage(storage: Storage, path: str, change) -> None:
    storage.write(path, change(storage.read(path)))


def sealed(value: dict) -> dict:
    """The same with the checksum of its fields, as of one that was written so."""
    fields = {name: field for name, field in value.items() if name != "sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return fields | {"sha256": hashlib.sha256(canonical.encode()).hexdigest()}


def test_manifest_and_record_of_encoding_come_back_as_they_were(storage: Storage) -> None:
    made = written(storage, [3, 2])
    assert manifest.read(storage, "v1") == made
    assert manifest.read_encoded(storage, "v1").parts == made.parts
    assert manifest.read_file(storage, "v1", made.file(WEIGHTS)) == b"{}"


def test_shards_hold_their_items(storage: Storage) -> None:
    made = written(storage, [3, 2])
    second = shards.read_shards(storage, made, [1], ItemState)
    assert (second.first_row, second.item_ids) == (3, ["i3", "i4"])
    both = shards.read_shards(storage, made, [0, 1], ItemState)
    assert both.item_ids == [f"i{row}" for row in range(5)]
    assert torch.equal(both.state.components[3:], second.state.components)


def test_a_version_says_how_its_items_are_stored(storage: Storage) -> None:
    """So that whoever reads it knows before it has read a part."""
    made = written(storage, [3, 2])
    assert made.state == StateEntry(
        kind="components",
        shapes={"components": [3, 4], "average": [4], "gate": [6]},
        dtypes=dict.fromkeys(("components", "average", "gate"), "float32"),
    )
    assert shards.read_shards(storage, made, [0], ItemState, 3).state.num_components == 3
    with pytest.raises(DamagedError, match="must have 2 components, as their similarity has, got 3: encode a new"):
        shards.read_shards(storage, made, [0], ItemState, 2)


def test_unknown_versions(storage: Storage) -> None:
    written(storage, [2])
    encode(storage, "v2", [2])
    with pytest.raises(NotFoundError, match="version must be one of v1, got 'v2'"):
        manifest.read(storage, "v2")
    with pytest.raises(NotFoundError, match=r"version must be one of v1, got '\.\./v1'"):
        manifest.read(storage, "../v1")
    with pytest.raises(NotFoundError, match=r"must be one that `rails-ray encode` has finished in .*, got 'v9'"):
        manifest.read_encoded(storage, "v9")


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]],
    ids=["a truncated part", "a flipped bit"],
)
def test_a_damaged_part_is_not_read(storage: Storage, change) -> None:
    made = written(storage, [3])
    path = made.parts[0].path
    damage(storage, path, change)
    with pytest.raises(DamagedError, match=f"{path} of version v1 must have the sha256 of its manifest, .*, got"):
        shards.read_shards(storage, made, [0], ItemState)


def test_a_part_is_missing(storage: Storage) -> None:
    made = written(storage, [3])
    storage.delete(made.parts[0].path)
    with pytest.raises(DamagedError, match=f"version v1 must hold {made.parts[0].path}, got no such file"):
        shards.read_shards(storage, made, [0], ItemState)


def part(shard: int, first_row: int, num_items: int) -> PartEntry:
    return PartEntry(
        path=f"p{first_row}", size_bytes=0, sha256="", shard=shard, first_row=first_row, num_items=num_items
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([part(0, 0, 2), part(1, 3, 1)], "version v must hold every item once, got item row 2 missing"),
        ([part(0, 0, 2), part(1, 1, 3)], "version v must hold every item once, got item row 1 there twice"),
        ([part(0, 1, 1), part(1, 2, 2)], "version v must hold every item once, got item row 0 missing"),
        ([part(0, 0, 2)], "version v must hold 4 items, got 2"),
        ([part(0, 0, 3), part(1, 3, 1)], "part p0 must end within shard 0, got item row 2"),
    ],
)
def test_every_item_row_must_be_there_once(parts: list[PartEntry], message: str) -> None:
    encoded = Encoded(
        version="v",
        run="r",
        num_items=4,
        shard_items=[2, 2],
        query={},
        columns={},
        state=StateEntry(kind="components", shapes={}, dtypes={}),
        parts=[part(1, 2, 2), part(0, 1, 1), part(0, 0, 1)],
        files=[],
        cutoff_mass=None,
    )
    manifest.check_rows(encoded)
    with pytest.raises(DamagedError, match=message):
        manifest.check_rows(dataclasses.replace(encoded, parts=parts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda value: sealed(value | {"format": 1}),
            r"manifest\.json must be of format 5 or 6, got 1: encode and publish it again",
        ),
        (
            lambda value: sealed({name: value[name] for name in value if name != "state"} | {"format": 3}),
            r"manifest\.json must be of format 5 or 6, got 3: encode and publish it again",
        ),
        (
            lambda value: sealed(value | {"state": {"kind": "codes"}}),
            "must have the fields of Manifest, got: .*'shapes'",
        ),
        (lambda value: sealed({"format": 5, "version": "v1"}), r"must have the fields of Manifest, got: 'parts'"),
        (lambda value: sealed({name: value[name] for name in value if name != "query"}), "got: .* argument: 'query'"),
        (lambda value: sealed(value | {"files": [{"path": "x"}]}), "got: .*'size_bytes'"),
        (
            lambda value: sealed(value | {"version": "v2"}),
            r"manifest\.json must be of version v1, got 'v2': rewrite it with `rails-ray publish --version v1`$",
        ),
        (lambda value: [value], "must be a JSON object, got list"),
    ],
)
def test_a_manifest_of_another_kind(storage: Storage, change, message: str) -> None:
    written(storage, [2])
    damage(storage, "versions/v1/manifest.json", lambda data: json.dumps(change(json.loads(data))).encode())
    with pytest.raises(DamagedError, match=message):
        manifest.read(storage, "v1")


@pytest.mark.parametrize("file", ["manifest", "encoded"])
@pytest.mark.parametrize(
    "change",
    [
        lambda value: value | {"cutoff_mass": 0.19},
        lambda value: value | {"run": "R"},
        lambda value: value | {"parts": value["parts"][:1]},
        lambda value: value | {"sha256": "0" * 64},
        lambda value: value | {"sha256": None},
        lambda value: {name: value[name] for name in value if name != "sha256"},
    ],
    ids=["a number", "a letter", "a part", "the checksum", "a checksum that is none", "no checksum"],
)
def test_a_field_that_was_changed_is_seen(storage: Storage, file: str, change) -> None:
    written(storage, [3, 2])
    damage(storage, f"versions/v1/{file}.json", lambda data: json.dumps(change(json.loads(data))).encode())
    read, remedy = manifest.read, "rewrite it with `rails-ray publish --version v1`"
    if file == "encoded":
        read, remedy = manifest.read_encoded, "encode a new version"
    message = (
        rf"{file}\.json must name the sha256 of its other fields, [0-9a-f]{{12}}, got ([0-9a-f]{{12}}|none): {remedy}$"
    )
    with pytest.raises(DamagedError, match=message):
        read(storage, "v1")


def test_the_same_fields_in_another_order_and_spacing_are_the_same(storage: Storage) -> None:
    made = written(storage, [3, 2])
    damage(
        storage,
        "versions/v1/manifest.json",
        lambda data: json.dumps(dict(reversed(json.loads(data).items())), indent=4).encode(),
    )
    assert manifest.read(storage, "v1") == made


def test_the_checksum_is_that_of_the_fields(storage: Storage) -> None:
    made = written(storage, [3, 2])
    fields = json.loads(manifest.to_json(made))
    assert made.sha256 == fields.pop("sha256") == sealed(fields)["sha256"]
    assert made.sha256 == json.loads(storage.read("versions/v1/manifest.json"))["sha256"]
    again = manifest.read(storage, "v1")
    assert again.sha256 == made.sha256
    assert dataclasses.replace(made, created_at="later").sha256 != made.sha256
    encoded = manifest.read_encoded(storage, "v1")
    assert encoded.sha256 == json.loads(storage.read("versions/v1/encoded.json"))["sha256"] != made.sha256


def test_a_record_of_encoding_that_is_of_another_version(storage: Storage) -> None:
    written(storage, [3])
    storage.write("versions/v2/encoded.json", storage.read("versions/v1/encoded.json"))
    with pytest.raises(DamagedError, match=r"encoded\.json must be of version v2, got 'v1': encode a new version$"):
        manifest.read_encoded(storage, "v2")


def test_a_manifest_that_is_no_json(storage: Storage) -> None:
    written(storage, [2])
    damage(storage, "versions/v1/manifest.json", lambda data: data[:10])
    with pytest.raises(DamagedError, match=r"manifest\.json must be JSON"):
        manifest.read(storage, "v1")


def test_a_file_is_described_by_its_bytes() -> None:
    assert manifest.describe("a/b", b"abc") == FileEntry(
        path="a/b", size_bytes=3, sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_a_summary_tells_what_a_query_may_be(storage: Storage) -> None:
    summary = manifest.summary(written(storage, [2, 1]))
    assert (summary["query"], summary["num_items"], summary["num_shards"]) == ({"text": "string"}, 3, 2)


def test_an_unknown_shard(storage: Storage) -> None:
    with pytest.raises(ValueError, match="shard must be at least 0 and below 1, got 1"):
        shards.read_shards(storage, written(storage, [2]), [1], ItemState)
