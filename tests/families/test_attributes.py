"""Attributes from the data to the parts of a version, and of items that are added to it."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray import local
from rails_ray.cli.main import main
from rails_ray.families import changing, config
from rails_ray.families.compacting import compact
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions, ShardBy, encode
from rails_ray.families.in_process import InProcess
from rails_ray.families.read_items import read_items
from rails_ray.families.running import begin
from rails_ray.families.shards import read_shards
from rails_ray.families.version import Version
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import manifest, versions
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run

NUM_ITEMS = 60
KINDS = {"price": "float", "lang": "string", "tags": "strings", "seen": "timestamp"}


def facts_of(numbers: range) -> pa.Table:
    """Columns that items have further, by their numbers; every seventh lacks them."""
    has = [number % 7 != 0 for number in numbers]
    values = {
        "price": [number / 4 for number in numbers],
        "lang": [["de", "fr", ""][number % 3] for number in numbers],
        "tags": [["a", "b"][: number % 3] for number in numbers],
        "seen": [datetime(2026, 1, 1 + number % 28, tzinfo=UTC) for number in numbers],
    }
    return pa.table({
        name: [own if there else None for own, there in zip(values[name], has, strict=True)] for name in values
    })  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts with further columns."""
    data = write_text_data(tmp_path / "texts")
    items, facts = pq.read_table(data / "items.parquet"), facts_of(range(NUM_ITEMS))
    for name in facts.column_names:
        items = items.append_column(name, facts[name])
    pq.write_table(items, data / "items.parquet", row_group_size=11)
    return data


@pytest.fixture
def root(folder: Path, tmp_path: Path) -> Path:
    """Storage with a run `r`, which names no attributes."""
    run_config = replace(small_config(), data=DataConfig(folder=str(folder)))
    write_untrained_run(Storage(str(tmp_path / "storage")), "r", run_config)
    return tmp_path / "storage"


def encoded(root: Path, version: str, *attributes: str, **options: Any) -> Encoded:
    data = DataConfig(attributes=attributes) if attributes else None
    given = EncodeOptions(version=version, data=data, **{"part_items": 7, **options})
    return encode(InProcess(), str(root), "r", given)


def attributes_of(storage: Storage, described: Encoded) -> dict[Any, dict[str, Any]]:
    """The attributes of each item, by its id, as a search reads them."""
    family = Version(storage, described).family
    items = read_shards(storage, described, range(len(described.shard_items)), family.item_state).live()
    assert items.attributes is not None
    return dict(zip(items.item_ids, items.attributes.to_pylist(), strict=True))


@pytest.mark.parametrize("shard_by", ["position", "hash"])
def test_a_version_has_the_attributes_of_its_data(root: Path, folder: Path, shard_by: ShardBy) -> None:
    made = encoded(root, "v", "price,lang", "tags,seen", shard_by=shard_by)
    assert made.attributes == KINDS
    assert list(made.columns)[:5] == ["item_id", *KINDS]
    assert made.columns["tags"] == "list<item: string>"
    expected = facts_of(range(NUM_ITEMS)).to_pylist()
    assert attributes_of(Storage(str(root)), made) == {f"item-{number}": own for number, own in enumerate(expected)}
    stored = config.from_json((root / "versions" / "v" / "config.json").read_bytes())
    assert stored.data.attribute_columns == {name: name for name in KINDS}
    plain = encoded(root, "w", shard_by=shard_by)
    assert plain.attributes is None
    assert not set(KINDS) & set(plain.columns)


def test_bytes_are_the_same_however_items_are_cut(root: Path, folder: Path) -> None:
    """Two files differ in their types, and one of them begins with nulls."""
    first = encoded(root, "a", *KINDS)
    items = pq.read_table(folder / "items.parquet")
    (folder / "items.parquet").unlink()
    (folder / "items").mkdir()
    pq.write_table(items.slice(0, 1), folder / "items" / "0.parquet")
    place = items.column_names.index("lang")
    wide = items.slice(1).set_column(place, "lang", items["lang"].slice(1).cast(pa.large_string()))
    pq.write_table(wide, folder / "items" / "1.parquet", row_group_size=3)
    assert [part.sha256 for part in encoded(root, "b", *KINDS).parts] == [part.sha256 for part in first.parts]


def test_parts_of_long_values_have_the_same_bytes_however_they_are_cut(folder: Path, root: Path) -> None:
    """A page of Parquet holds a megabyte: where it ends must not depend on the batches that were read."""
    items = pq.read_table(folder / "items.parquet").select(["item_id", "text"])
    items = items.append_column("long", pa.array([f"{number:06d}" * 10_000 for number in range(NUM_ITEMS)]))
    (folder / "items.parquet").unlink()
    (folder / "items").mkdir()
    shas = list[list[str]]()
    for size in (60, 13, 7):
        for number, first in enumerate(range(0, NUM_ITEMS, size)):
            pq.write_table(items.slice(first, size), folder / "items" / f"{number}.parquet")
        made = encoded(root, f"v{size}", "long", part_items=64, num_shards=1)
        shas.append([part.sha256 for part in made.parts])
    assert shas[0] == shas[1] == shas[2]


def test_an_encode_resumes_with_the_same_attributes_alone(root: Path, folder: Path) -> None:
    made = encoded(root, "v", "price", "lang")
    (root / "versions" / "v" / "encoded.json").unlink()
    for names in (("price",), ("lang", "price"), ("price", "lang", "tags")):
        with pytest.raises(ValueError, match="version 'v' must keep the attributes that it was begun with, "):
            encoded(root, "v", *names)
    with pytest.raises(ValueError, match="version 'v' must keep the items that it was begun with, "):
        encoded(root, "v")
    for record in list((root / "versions" / "v" / "parts").glob("*.json"))[::2]:
        record.unlink()
    assert encoded(root, "v", "price", "lang").parts == made.parts
    (root / "versions" / "v" / "encoded.json").unlink()
    items = pq.read_table(folder / "items.parquet")
    place = items.column_names.index("price")
    prices = pa.array([None if own is None else own + (own == 1.0) for own in items["price"].to_pylist()])
    pq.write_table(items.set_column(place, "price", prices), folder / "items.parquet")
    with pytest.raises(ValueError, match="version 'v' must keep the items that it was begun with, "):
        encoded(root, "v", "price", "lang")


def test_duckdb_and_others_read_attributes_as_they_are(root: Path) -> None:
    parts = [str(root / part.path) for part in encoded(root, "v", *KINDS).parts]
    cheap = duckdb.sql(f"select item_id from read_parquet({parts}) where price < 1 and list_contains(tags, 'a')")
    assert [own for (own,) in cheap.fetchall()] == ["item-1", "item-2"]


def test_what_training_names_is_stored_and_wrong_names_are_found_before_it(folder: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "s"))
    with pytest.raises(
        ValueError, match=r"attributes must name columns of .*, got 'size': there are item_id, text, pri"
    ):
        begin(replace(small_config(), data=DataConfig(folder=str(folder), attributes=("size",))), storage, "r")
    write_untrained_run(
        storage, "r", replace(small_config(), data=DataConfig(folder=str(folder), attributes=("price",)))
    )
    assert encoded(tmp_path / "s", "v").attributes == {"price": "float"}
    assert encoded(tmp_path / "s", "w", "lang").attributes == {"lang": "string"}


# Items that are added


def build(folder: Path | None = None, **attributes: Any) -> LocalVersion:
    given = attributes or {"price": [0.5, None, 2], "tags": [["a"], [], None]}
    place = None if folder is None else str(folder)
    return local.build(np.eye(3), ["a", "b", "c"], folder=place, attributes=given)


def test_attributes_of_vectors_in_memory(tmp_path: Path) -> None:
    given = {
        "price": np.array([0.5, np.nan, 2.0], np.float32),
        "year": pandas.Series([2025, None, 2026], dtype="Int64"),
        "kind": pandas.Series(["x", "y", "x"], dtype="category"),
        "seen": pandas.Series(pandas.to_datetime(["2026-01-31", None, "2026-02-01"])),
        "tags": pa.chunked_array([[["a"]], [None, []]]),
        "is_new": [True, None, False],
    }
    opened = build(tmp_path, **given)
    assert opened.manifest.attributes == {
        "price": "float", "year": "int", "kind": "string", "seen": "timestamp", "tags": "strings", "is_new": "bool"
    }  # fmt: skip
    first, second, _ = attributes_of(opened.version.storage, opened.manifest).values()
    seen = datetime(2026, 1, 31, tzinfo=UTC)
    assert first == {"price": 0.5, "year": 2025, "kind": "x", "seen": seen, "tags": ["a"], "is_new": True}
    assert second == {"price": None, "year": None, "kind": "y", "seen": None, "tags": None, "is_new": None}
    begun = tmp_path / "versions" / "v2" / "begun.json"
    begun.parent.mkdir()
    begun.write_bytes((tmp_path / "versions" / "v1" / "begun.json").read_bytes())
    with pytest.raises(ValueError, match="version 'v2' must keep the items that it was begun with"):
        local.build(np.eye(3), ["a", "b", "c"], folder=str(tmp_path), version="v2")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"price": [1, 2]}, "attribute 'price' must have one value for each of the 3 items, got 2"),
        ({"lang": "fra"}, "attribute 'lang' must be a list, got 'fra' alone"),
        ({"price": 5}, "attribute 'price' must be a list, got 5 alone"),
        ({"price": [1, "a", None]}, "attribute 'price' must have values of one type, got: "),
        ({"price": [{"a": 1}] * 3}, "attribute 'price' must be of type boolean, .*, got struct<a: int64>"),
        ({"sizes": [[1]] * 3}, "attribute 'sizes' must be of type boolean, .*, got list<"),
        ({"price": [None] * 3}, "attribute 'price' must have a value for some item, got null for all: leave it out"),
        ({"size": [1, 2**63, 2]}, rf"attribute 'size' must hold whole numbers within int64, got {2**63} in row 1"),
        ({"title": ["a"] * 3}, "attributes must have other names than item_id, title, .*, got 'title'"),
    ],
)
def test_attributes_that_cannot_be_built(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**attributes)


def test_added_items_have_attributes_or_null(tmp_path: Path) -> None:
    opened = build(tmp_path)
    opened.add(np.eye(3), ["d", "e", "f"], attributes={"price": [1, 2, None]})
    opened.add(np.eye(3)[:2], ["a", "g"], attributes={"tags": [["z"], None], "price": [9.5, 1.0]}, replace=True)
    opened.add(np.eye(3)[:1], ["h"])
    expected = {
        "b": (None, []), "c": (2.0, None), "d": (1.0, None), "e": (2.0, None), "f": (None, None), "a": (9.5, ["z"]),
        "g": (1.0, None), "h": (None, None),
    }  # fmt: skip
    storage = opened.version.storage

    def found(described: Encoded) -> dict[str, tuple[Any, Any]]:
        return {own: (of["price"], of["tags"]) for own, of in attributes_of(storage, described).items()}

    assert found(opened.manifest) == expected
    compacted = compact(storage)
    assert compacted.attributes == {"price": "float", "tags": "strings"}
    assert found(compacted) == expected
    assert manifest.read(storage, compacted.version) == compacted


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"price": ["x"]},
            "attribute 'price' must be of type float, integer or decimal, as version v1 has it, got string",
        ),
        ({"tags": ["a"]}, "attribute 'tags' must be of type list of strings, as version v1 has it, got string"),
        (
            {"price": [2**53 + 1]},
            rf"attribute 'price' must hold whole numbers within double up to 2\*\*53, .*, got {2**53 + 1} in row 0",
        ),
        (
            {"colour": ["red"]},
            "attributes must be those of version v1, price, tags, got 'colour': encode a new version",
        ),
    ],
)
def test_attributes_that_cannot_be_added(attributes: dict[str, Any], message: str, tmp_path: Path) -> None:
    opened = build(tmp_path)
    with pytest.raises(ValueError, match=message):
        opened.add(np.eye(3)[:1], ["d"], attributes=attributes)
    assert opened.manifest.version == "v1"
    assert Storage(str(tmp_path)).list("versions") == ["v1"]


def test_a_version_without_attributes_gets_none(tmp_path: Path) -> None:
    opened = local.build(np.eye(3), ["a", "b", "c"], folder=str(tmp_path))
    with pytest.raises(
        ValueError, match="attributes must be those of version v1, none, got 'price': encode a new vers"
    ):
        opened.add(np.eye(3)[:1], ["d"], attributes={"price": [1.0]})


@pytest.fixture
def published(root: Path, folder: Path) -> Storage:
    """Its column of prices is called `price`, the attribute `cost`."""
    storage = Storage(str(root))
    made = encoded(root, "v", "cost=price", "tags", part_items=64)
    versions.publish(storage, made, "2026-01-01T00:00:00Z")
    return storage


def write_items(folder: Path, **columns: Any) -> DataConfig:
    folder.mkdir(exist_ok=True)
    table = {"item_id": ["new-1", "item-5"], "text": ["red", "blue"], **columns}
    pq.write_table(pa.table(table), folder / "items.parquet")
    return DataConfig(folder=str(folder))


def test_items_of_a_data_set_are_added_with_the_attributes_of_the_version(published: Storage, tmp_path: Path) -> None:
    """A column that is missing is null, and said once; one that the version lacks is named, and not stored."""
    version = Version.published(published)
    data = write_items(tmp_path / "more", price=[3, None], colour=["x", "y"])
    items, notes = read_items(version, data)
    assert notes == (
        f"items: {tmp_path}/more/items.parquet has no column 'tags', so the attribute tags is null in each",
        "items: colour is not stored",
    )
    change = changing.add(published, items, replaces=True)
    found = attributes_of(published, change.manifest)
    assert found["new-1"] == {"cost": 3.0, "tags": None}
    assert found["item-5"] == {"cost": None, "tags": None}
    assert found["item-4"] == {"cost": 1.0, "tags": ["a"]}


@pytest.mark.parametrize("column", [["a", "b"], [True, False], [[1.0], [2.0]]])
def test_another_type_is_refused_with_both_types(published: Storage, tmp_path: Path, column: list[Any]) -> None:
    data = write_items(tmp_path / "more", price=column)
    got = str(pa.array(column).type).replace("[", r"\[").replace("item", "(item|element)")
    message = rf"column 'price' of .* must be of type float, integer or decimal, as version v has it, got {got}"
    with pytest.raises(ValueError, match=message):
        read_items(Version.published(published), data)


def test_the_commands(published: Storage, folder: Path, tmp_path: Path, caplog: Any, capsys: Any) -> None:
    write_items(tmp_path / "more", price=[3.5, 2.5])
    words = ["items", "upsert", "--folder", str(tmp_path / "more"), "--storage", str(published), "--compact", "never"]
    with caplog.at_level(logging.WARNING):
        assert main(words) == 0
    assert [own for own in caplog.messages if "null in each" in own] == [
        f"items: {tmp_path}/more/items.parquet has no column 'tags', so the attribute tags is null in each"
    ]
    assert main(["index", "show", "--storage", str(published)]) == 0
    assert "cost: float, tags: strings" in " ".join(capsys.readouterr().out.split())
    words = ["encode", "--run", "r", "--attributes", "price,lang", "--version", "w", "--storage", str(published)]
    assert main(words) == 0
    assert manifest.read_encoded(published, "w").attributes == {"price": "float", "lang": "string"}
    assert main([*words, "--attributes", "weights"]) == 2
    assert "store it under another name" in capsys.readouterr().err


def test_a_choice_of_attributes_holds_until_another_is_made() -> None:
    former = DataConfig(folder="f", attributes=("price", "heft=weights"))
    assert former.attribute_columns == {"price": "price", "heft": "weights"}
    assert DataConfig(folder="g").over(former).attributes == former.attributes
    assert DataConfig(items="i").over(former).attributes == former.attributes
    assert DataConfig(attributes=("lang,year",)).over(former).attribute_columns == {"lang": "lang", "year": "year"}
    made = replace(small_config(), data=former)
    assert config.from_json(config.to_json(made)) == made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("price,", "--data.attributes must be NAME or NAME=COLUMN, got ''"),
        ("heft=", "--data.attributes must be NAME or NAME=COLUMN, got 'heft='"),
        ("=weights", "--data.attributes must be NAME or NAME=COLUMN, got '='"),
        ("codes", "attributes must have other names than .*, got 'codes': store .* --data.attributes item_codes=codes"),
    ],
)
def test_names_that_no_attribute_has(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(attributes=(given,))
