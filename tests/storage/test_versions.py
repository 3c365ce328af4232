import dataclasses
import json
from pathlib import Path

import pytest

from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage import manifest, versions
from rails_ray.storage.described import Encoded, Manifest
from rails_ray.storage.filesystem import Storage
from support.examples import encode


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def publish(storage: Storage, version: str, shard_items: list[int] | None = None) -> Manifest:
    return versions.publish(storage, encode(storage, version, shard_items or [2]), "2026-01-01T00:00:00Z")


def republish(storage: Storage, version: str) -> Manifest:
    return versions.publish(storage, manifest.read_encoded(storage, version), "later")


def damage(storage: Storage, path: str, change) -> None:
    storage.write(path, change(storage.read(path)))


def test_a_version_comes_back_as_it_was_published(storage: Storage) -> None:
    steps = []
    encoded = encode(storage, "v1", [3, 2])
    made = versions.publish(storage, encoded, "now", on_file=lambda done, total: steps.append((done, total)))
    assert versions.read_manifest(storage) == versions.read_manifest(storage, "v1") == made
    assert {field.name: getattr(made, field.name) for field in dataclasses.fields(Encoded)} == vars(encoded)
    assert made.created_at == "now"
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_last_published_is_current_and_the_former_stays(storage: Storage) -> None:
    publish(storage, "v1")
    publish(storage, "v2")
    assert versions.current_version(storage) == "v2"
    assert versions.read_manifest(storage, "v1").version == "v1"


def test_publishing_again_goes_back_to_the_version_as_it_was(storage: Storage) -> None:
    first = publish(storage, "v1")
    publish(storage, "v2")
    assert republish(storage, "v1") == first == versions.read_manifest(storage)


@pytest.mark.parametrize("write_number", [1, 2, 3])
def test_an_interrupted_publish_leaves_the_former_version_current(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, write_number: int
) -> None:
    """Publishing writes an intent, the manifest, then the pointer; it is cut off before any of them."""
    publish(storage, "v1")
    encoded = encode(storage, "v2", [2])
    count = 0

    def cut_off(write):
        def counted(*arguments: object) -> None:
            nonlocal count
            count += 1
            if count == write_number:
                raise KeyboardInterrupt
            write(*arguments)

        return counted

    for name in ("write", "create", "swap"):
        monkeypatch.setattr(Storage, name, cut_off(getattr(Storage, name)))
    with pytest.raises(KeyboardInterrupt):
        versions.publish(storage, encoded, "now")
    monkeypatch.undo()
    assert versions.read_manifest(storage).version == "v1"
    versions.publish(storage, encoded, "now")  # and nothing stands in the way of another try
    assert versions.read_manifest(storage).version == "v2"


@pytest.mark.parametrize("before", [[], ["v1"]], ids=["the first version", "a later version"])
def test_of_two_publishers_at_once_one_wins_and_the_other_is_told(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    for version in before:
        publish(storage, version)
    encoded = encode(storage, "v2", [2])

    def meanwhile(*arguments: object) -> None:
        monkeypatch.undo()
        publish(storage, "v3")
        versions.check_file(*arguments)

    monkeypatch.setattr(versions, "check_file", meanwhile)
    with pytest.raises(
        ConflictError, match="while v2 is published, got v3: v2 is stored but not current; publish it again"
    ):
        versions.publish(storage, encoded, "now")
    assert versions.current_version(storage) == "v3"
    assert versions.read_manifest(storage, "v2").version == "v2"
    assert set(versions.damages(storage, encoded)) == {None}
    republish(storage, "v2")
    assert versions.current_version(storage) == "v2"
    assert versions.rollback(storage).version == "v3"


def test_a_rollback_does_not_undo_what_was_published_meanwhile(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(storage, "v1")
    publish(storage, "v2")
    encode(storage, "v3", [2])

    def meanwhile(storage: Storage, version: str) -> Manifest:
        monkeypatch.undo()
        republish(storage, "v3")
        return manifest.read(storage, version)

    monkeypatch.setattr(manifest, "read", meanwhile)
    with pytest.raises(ConflictError, match="no other version may become current while v1 is published, got v3"):
        versions.rollback(storage)
    assert versions.current_version(storage) == "v3"


def test_rollback_goes_to_the_version_before_and_back(storage: Storage) -> None:
    made = {version: publish(storage, version) for version in ("v1", "v2", "v3")}
    for expected in ("v2", "v3", "v2"):
        assert versions.rollback(storage) == made[expected] == versions.read_manifest(storage)
    assert versions.rollback(storage, "v1") == made["v1"] == versions.read_manifest(storage)
    assert versions.rollback(storage) == made["v2"]


def test_a_version_published_twice_does_not_hide_the_one_before(storage: Storage) -> None:
    publish(storage, "v1")
    publish(storage, "v2")
    republish(storage, "v2")
    assert versions.rollback(storage).version == "v1"


@pytest.mark.parametrize("published", [[], ["v1"], ["v1", "v1"]], ids=["none", "one", "one twice"])
def test_nothing_to_roll_back_to(storage: Storage, published: list[str]) -> None:
    encode(storage, "v1", [2])
    for version in published:
        republish(storage, version)
    with pytest.raises(NotFoundError, match="a version must have been current before to roll back to it, got none"):
        versions.rollback(storage)


def test_rollback_to_a_version_that_is_none(storage: Storage) -> None:
    publish(storage, "v1")
    encode(storage, "v2", [2])
    with pytest.raises(NotFoundError, match="version must be one of v1, got 'v2'"):
        versions.rollback(storage, "v2")
    assert versions.current_version(storage) == "v1"


def test_nothing_published(storage: Storage) -> None:
    with pytest.raises(NotFoundError, match=r"must hold a published version, got none in .*: run `rails-ray publish`"):
        versions.read_manifest(storage)


def test_publishing_again_mends_a_manifest_and_a_pointer_that_cannot_be_read(storage: Storage) -> None:
    publish(storage, "v1")
    storage.write("versions/v1/manifest.json", b"{")
    storage.write("CURRENT", b"{}")
    with pytest.raises(DamagedError, match="CURRENT must name a version, got None: publish again"):
        versions.read_manifest(storage)
    storage.write("CURRENT", b"nonsense")
    with pytest.raises(DamagedError, match="CURRENT must be JSON, got something else: write it again"):
        versions.read_manifest(storage)
    republish(storage, "v1")
    assert versions.read_manifest(storage).version == "v1"


def replace_manifest(storage: Storage, version: str, **fields: object) -> None:
    """By another that is whole in itself."""
    other = dataclasses.replace(manifest.read(storage, version), **fields)
    storage.write(f"versions/{version}/manifest.json", manifest.to_json(other))


def test_publishing_again_mends_a_manifest_in_which_a_number_was_changed(storage: Storage) -> None:
    publish(storage, "v1")
    before = publish(storage, "v2")
    damage(
        storage, "versions/v2/manifest.json", lambda data: data.replace(b'"cutoff_mass": 0.9', b'"cutoff_mass": 0.1')
    )
    for read in (versions.read_manifest, versions.read_described, lambda storage: versions.rollback(storage, "v2")):
        with pytest.raises(
            DamagedError, match=r"manifest\.json must name the sha256 .* `rails-ray publish --version v2`"
        ):
            read(storage)
    made = republish(storage, "v2")
    assert (made.created_at, made.cutoff_mass) == ("later", 0.9)
    assert made.sha256 != before.sha256
    assert made.contents_sha256 == before.contents_sha256  # what a server that runs asks its shards for
    assert versions.read_manifest(storage) == versions.read_manifest(storage, "v2") == made
    assert versions.rollback(storage).version == "v1"
    assert versions.rollback(storage) == made


@pytest.mark.parametrize("fields", [{"cutoff_mass": 0.1}, {"created_at": "never"}])
def test_a_manifest_in_place_of_the_one_that_was_made_current(storage: Storage, fields: dict[str, object]) -> None:
    publish(storage, "v1")
    made = publish(storage, "v2")
    replace_manifest(storage, "v2", **fields)
    other = manifest.read(storage, "v2")
    told = (
        rf"versions/v2/manifest\.json must be the manifest that CURRENT names, {made.sha256[:12]}, got "
        rf"{other.sha256[:12]}: rewrite it with `rails-ray publish --version v2`$"
    )
    for read in (
        versions.read_manifest,
        versions.current,
        lambda storage: versions.read_manifest(storage, "v2"),
        lambda storage: versions.read_described(storage, "v2"),
        lambda storage: versions.rollback(storage, "v2"),
    ):
        with pytest.raises(DamagedError, match=told):
            read(storage)
    assert [(entry.version, entry.state) for entry in versions.listed(storage)] == [
        ("v1", "published"),
        ("v2", "damaged"),
    ]
    assert republish(storage, "v2").cutoff_mass == made.cutoff_mass
    assert versions.read_manifest(storage).cutoff_mass == made.cutoff_mass


def test_the_pointer_carries_the_checksum_of_what_it_names(storage: Storage) -> None:
    made = {version: publish(storage, version) for version in ("v1", "v2")}
    assert json.loads(storage.read("CURRENT"))["sha256"] == made["v2"].sha256
    versions.rollback(storage)
    assert json.loads(storage.read("CURRENT"))["sha256"] == made["v1"].sha256
    republish(storage, "v2")
    assert json.loads(storage.read("CURRENT"))["sha256"] == made["v2"].sha256


def test_a_pointer_without_a_checksum_is_taken_as_it_is(storage: Storage) -> None:
    made = {version: publish(storage, version) for version in ("v1", "v2")}
    storage.write("CURRENT", b'{"version": "v2", "previous": "v1", "nonce": "0"}')
    assert versions.read_manifest(storage) == versions.read_manifest(storage, "v2") == made["v2"]
    assert versions.rollback(storage) == versions.read_manifest(storage) == made["v1"]


def test_a_version_is_read_by_its_name_where_the_pointer_cannot_be_read(storage: Storage) -> None:
    made = publish(storage, "v1")
    storage.write("CURRENT", b"{")
    assert versions.read_manifest(storage, "v1") == made
    storage.delete("CURRENT")
    assert versions.read_manifest(storage, "v1") == made


def test_what_is_announced_while_another_version_is_published_hinders_nobody(storage: Storage) -> None:
    former = publish(storage, "v1")
    encoded = encode(storage, "v2", [2])

    def announce(done: int, total: int) -> None:
        versions.announce(storage, "v1")
        assert versions.read_manifest(storage) == former

    versions.publish(storage, encoded, "today", announce)
    pointer = versions.read_pointer(storage)
    assert (pointer.version, pointer.previous) == ("v2", "v1")


def test_a_pointer_that_is_renewed_while_another_version_is_published_stays(storage: Storage) -> None:
    """A collection renews it, so that nobody makes current what it may have taken files from."""
    publish(storage, "v1")
    encoded = encode(storage, "v2", [2])
    with pytest.raises(
        ConflictError, match="no other version may become current while v2 is published, got v1: v2 is stored"
    ):
        versions.publish(storage, encoded, "today", lambda done, total: versions.renew_pointer(storage))
    assert versions.current_version(storage) == "v1"


def test_two_publishers_mend_a_manifest_at_once_and_agree(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(storage, "v1")
    storage.write("versions/v1/manifest.json", b"{")
    real = Storage.swap

    def meanwhile(self: Storage, *arguments: object) -> None:
        monkeypatch.undo()
        versions.publish(storage, manifest.read_encoded(storage, "v1"), "first")
        real(self, *arguments)

    monkeypatch.setattr(Storage, "swap", meanwhile)
    assert republish(storage, "v1").created_at == "first"
    assert versions.read_manifest(storage).created_at == "first"


@pytest.mark.parametrize("how", ["publish", "rollback"])
def test_a_publisher_that_loses_to_its_own_version_has_what_it_wanted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    publish(storage, "v1")
    publish(storage, "v2")
    encoded = manifest.read_encoded(storage, "v1")

    def meanwhile(*arguments: object) -> None:
        monkeypatch.undo()
        republish(storage, "v1") if how == "publish" else versions.rollback(storage, "v1")
        versions.check_file(*arguments)

    monkeypatch.setattr(versions, "check_file", meanwhile)
    made = versions.publish(storage, encoded, "later")
    assert made == versions.read_manifest(storage)
    assert made.version == "v1"
    assert versions.rollback(storage).version == "v2"


@pytest.mark.parametrize("file", ["a part", "model.safetensors"])
def test_a_damaged_file_is_not_published(storage: Storage, file: str) -> None:
    publish(storage, "v1")
    encoded = encode(storage, "v2", [2, 1])
    entry = encoded.parts[1] if file == "a part" else encoded.file(file)
    path = entry.path
    damage(storage, manifest.location("v2", entry), lambda data: data + b" ")
    with pytest.raises(DamagedError, match=f"{path} of version v2 must have the sha256"):
        versions.publish(storage, encoded, "now")
    assert versions.current_version(storage) == "v1"
    assert not storage.exists("versions/v2/manifest.json")


def test_rows_that_are_missing_are_not_published(storage: Storage) -> None:
    encoded = encode(storage, "v1", [2, 2])
    with pytest.raises(DamagedError, match="version v1 must hold 4 items, got 2"):
        versions.publish(storage, dataclasses.replace(encoded, parts=encoded.parts[:1]), "now")


def test_a_part_with_fewer_rows_than_its_entry_says(storage: Storage) -> None:
    encoded = encode(storage, "v1", [3])
    wrong = dataclasses.replace(encoded.parts[0], num_items=4)
    encoded = dataclasses.replace(encoded, parts=[wrong], num_items=4, shard_items=[4])
    with pytest.raises(
        DamagedError, match=f"{wrong.path} of version v1 must hold 4 items, got 3: encode a new version"
    ):
        versions.publish(storage, encoded, "now")


def test_each_version_is_listed_with_its_state(storage: Storage) -> None:
    assert versions.listed(storage) == []
    made = [publish(storage, version) for version in ("v1", "v2", "v3")]
    encoded = encode(storage, "v4", [2])
    storage.write("versions/v5/begun.json", b"{}")
    encode(storage, "v6", [2])
    damage(storage, "versions/v1/manifest.json", lambda data: data[:-9])
    damage(storage, "versions/v6/encoded.json", lambda data: b"{}")
    assert [(entry.version, entry.state, entry.described) for entry in versions.listed(storage)] == [
        ("v1", "damaged", None),
        ("v2", "published", made[1]),
        ("v3", "current", made[2]),
        ("v4", "encoded", encoded),
        ("v5", "encoding", None),
        ("v6", "damaged", None),
    ]
    storage.write("CURRENT", b"{")
    assert [entry.state for entry in versions.listed(storage)][1:3] == ["published", "published"]


def test_damages_are_told_file_by_file(storage: Storage) -> None:
    made = publish(storage, "v1", [2, 1])
    assert list(versions.damages(storage, made)) == [None] * 4
    damage(storage, made.parts[1].path, lambda data: data[:-1])
    storage.delete("versions/v1/config.json")
    part, config = made.parts[1].path, "version v1 must hold config.json, got no such file"
    found = list(versions.damages(storage, made))
    assert [damaged is None for damaged in found] == [True, False, False, True]
    assert found[1].startswith(f"{part} of version v1 must have the sha256 of its manifest")
    assert found[2].startswith(config)


def test_every_pointer_is_written_with_other_bytes(storage: Storage) -> None:
    """So that a publisher over a network can tell its own write from another's."""
    pointers = []
    for version in ("v1", "v2", "v1", "v2"):
        publish(storage, version) if len(pointers) < 2 else republish(storage, version)
        pointers.append(storage.read("CURRENT"))
    assert len(set(pointers)) == 4
    assert json.loads(pointers[3])["previous"] == "v1"


def test_a_rollback_is_one_write(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("v1", "v2"):
        versions.publish(storage, encode(storage, version, [2]), "now")
    written: list[str] = []
    for name in ("write", "create", "swap"):
        real = getattr(Storage, name)

        def noted(self: Storage, path: str, *rest, real=real) -> None:
            written.append(path)
            real(self, path, *rest)

        monkeypatch.setattr(Storage, name, noted)
    versions.rollback(storage)
    assert [path for path in written if not path.startswith("intents/")] == ["CURRENT"]
