"""Items of a request as a table: texts with their titles, and attributes in the types that the version has."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rails_ray import local
from rails_ray.families.json_items import items_in
from rails_ray.families.version import Version
from rails_ray.schema.items import ItemInput
from rails_ray.storage.attributes import TYPES
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here

KINDS = {
    "sold": "bool", "year": "int", "price": "float", "lang": "string", "at": "timestamp", "tags": "strings",
}  # fmt: skip


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Storage with a version of vectors that has an attribute of each kind."""
    folder = str(tmp_path_factory.mktemp("attributes"))
    opened = local.build(np.eye(2, dtype=np.float32), folder=folder).version
    return Version(opened.storage, replace(opened.manifest, attributes=KINDS))


def given(name: int = 7, **attributes: Any) -> ItemInput:
    return ItemInput(id=name, embedding=[1.0, 2.0], attributes=attributes)


def test_each_kind_is_written_as_its_type(version: Version) -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
    whole = given(sold=True, year=2**63 - 1, price=3, lang="fr", at="2026-01-31T12:00:00.5Z", tags=["a", "b"])
    table = items_in(version, [whole, given(8, price=0.5, at=at.timestamp()), ItemInput(id=9, embedding=[1.0, 0.0])])
    assert {name: table[name].type for name in KINDS} == {name: TYPES[kind] for name, kind in KINDS.items()}
    rows = table.select(list(KINDS)).to_pylist()
    assert rows[0] == {"sold": True, "year": 2**63 - 1, "price": 3.0, "lang": "fr", "at": at, "tags": ["a", "b"]}
    assert rows[1] == {**dict.fromkeys(KINDS), "price": 0.5, "at": at}
    assert rows[2] == dict.fromkeys(KINDS)
    assert table["item_id"].to_pylist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"sold": 1}, "items[0].attributes.sold must be true or false, got 1"),
        ({"year": 1.0}, "items[0].attributes.year must be an integer of 64 bits, got 1.0"),
        ({"year": True}, "items[0].attributes.year must be an integer of 64 bits, got true"),
        ({"year": 2**63}, "items[0].attributes.year must be an integer of 64 bits, got 9223372036854775808"),
        ({"price": "9"}, "items[0].attributes.price must be a finite number, got '9'"),
        ({"price": float("nan")}, "items[0].attributes.price must be a finite number, got nan"),
        ({"price": 10**400}, "items[0].attributes.price must be a finite number"),
        ({"lang": 5}, "items[0].attributes.lang must be a string, got 5"),
        ({"at": "soon"}, "items[0].attributes.at must be a text in ISO 8601, or a number of seconds since 1970, got"),
        ({"at": 1e300}, "items[0].attributes.at must be a text in ISO 8601"),
        ({"tags": "a"}, "items[0].attributes.tags must be a list of strings, got 'a'"),
        ({"tags": ["a", 1]}, "items[0].attributes.tags must be a list of strings, got ['a', 1]"),
        ({"colour": "red"}, "items[0].attributes must be one of sold, year, price, lang, at, tags, got 'colour'"),
    ],
)
def test_a_value_of_another_type(version: Version, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        items_in(version, [given(**attributes)])


def test_a_text_is_read_after_its_title(tmp_path: Path) -> None:
    """As the text of a data set's item is."""
    publish_here(tmp_path)
    version = Version.published(Storage(str(tmp_path)))
    table = items_in(version, [ItemInput(id="x", text="hat", title="Red"), ItemInput(id="y", text="car")])
    assert table["input"].to_pylist() == ["Red\nhat", "car"]
    assert table["title"].to_pylist() == ["Red", ""]
