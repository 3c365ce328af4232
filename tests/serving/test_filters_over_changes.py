"""Filters over items that come and go, and masks that are kept between searches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.filters import passes
from rails_ray.families import changing
from rails_ray.families.given_items import given_items
from rails_ray.families.version import Version
from rails_ray.schema.responses import QueryResult
from rails_ray.serving import local
from rails_ray.storage.filesystem import Storage
from support.attributes import KINDS, WIDTH, built, random_items, with_attributes
from support.sessions import publish_repeating

HALF: dict[str, Any] = {"price": {"$lt": 10}}
QUERIES = np.random.default_rng(5).standard_normal((4, WIDTH)).astype(np.float32)


def test_masks_are_kept_while_items_are_added_and_deleted(tmp_path: Path) -> None:
    """A filter finds what is there now, and the mask of the base is made once."""
    version, items = built(tmp_path, 100)
    filter, attributes = HALF, dict(enumerate(items))
    rows = np.random.default_rng(4).standard_normal((120, WIDTH)).astype(np.float32)

    def check() -> None:
        left = {item for item, own in attributes.items() if passes(filter, own)}
        whole, found = (version.search(QUERIES, k=120, **own) for own in ({}, {"filter": filter}))
        for every, own in zip(whole.results, found.results, strict=True):
            assert own.items == [item for item in every.items if item in left]
            assert own.num_searched == len(left)

    check()
    for _ in range(2):
        [first] = [item for item, own in attributes.items() if passes(filter, own)][:1]
        version.delete([first])
        del attributes[first]
        new = [len(attributes) + 500, len(attributes) + 600]
        added = given_items(rows[new[0] - 590 : new[0] - 588], new)
        cheap = dict.fromkeys(KINDS) | {"price": 1.0}
        for name in KINDS:
            added = added.append_column(name, [[None, None] if name != "price" else [1.0, 99.0]])
        changing.add(Storage(str(tmp_path)), added)
        version.refresh()
        attributes |= {new[0]: cheap, new[1]: cheap | {"price": 99.0}}
        check()
    [shard] = version.shards
    assert (shard.masks.num_found, shard.masks.num_made) == (2, 1 + 2)


def test_a_mask_that_is_kept_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, _ = built(tmp_path, 100)
    first = version.search(QUERIES, filter={"year": {"$gt": 2000}, "lang": "fr"})

    def refused(*_: object) -> None:
        raise AssertionError("a mask is made again")

    monkeypatch.setattr("rails_ray.serving.scope.passing", refused)
    assert version.search(QUERIES, filter={"lang": "fr", "year": {"$gt": 2000}}) == first
    with pytest.raises(AssertionError, match="made again"):
        version.search(QUERIES, filter={"lang": "de"})


def test_popular_items_are_those_that_pass(tmp_path: Path) -> None:
    """In an answer to a query of which the version knows nothing; deleted ones are gone."""
    publish_repeating(tmp_path)
    storage = Storage(str(tmp_path))
    num_items = Version.published(storage).described.num_items
    items = random_items(num_items)
    with_attributes(storage, items)
    version = local.open(str(tmp_path))
    attributes = dict(zip(version.version.item_ids(), items, strict=True))

    def popular(**options: Any) -> QueryResult:
        query = {"history": [], **options.pop("query", {})}
        return version.search([query], k=num_items, fallback="popular", **options).results[0]

    every = popular().items
    some = popular(filter=HALF, fields=["price"])
    assert some.items == [item for item in every if passes(HALF, attributes[item])]
    assert some.fields == [{"price": attributes[item]["price"]} for item in some.items]
    assert popular(query={"include": every[3:5]}).items == every[3:5]
    assert popular(filter={"year": 1}).items == []
    version.delete(every[:2])
    assert popular().items == every[2:]
