"""Calibration over the items that a filter passes, and the searches that it holds for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.filters import passes
from rails_ray import local
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.families import calibrations, changing
from rails_ray.families.calibrating import calibrated, measured
from rails_ray.families.compacting import compact
from rails_ray.families.version import Version
from rails_ray.families.version_queries import VersionQueries
from rails_ray.schema.filters import canonical
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.attributes import random_items, with_attributes
from support.calibrations import STORED, drawn
from support.examples import publish_here

NUM_ITEMS, SPLITS = 60, ("train", "valid", "test")
HALF: dict[str, Any] = {"price": {"$lt": 10}, "year": {"$exists": True}}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """With a version of a mixture over texts in two shards, whose items have attributes."""
    publish_here(tmp_path)
    storage = Storage(str(tmp_path))
    with_attributes(storage, random_items(NUM_ITEMS))
    return storage


def read(storage: Storage, filter: dict[str, Any] | None = None) -> VersionQueries:
    return VersionQueries.read(storage, None, None, SPLITS, filter=filter)


def test_a_filter_calibrates_as_if_there_were_no_other_items(storage: Storage) -> None:
    """Against the version from which all others were deleted."""
    found = calibrated(read(storage, HALF), "train")
    attributes = zip(Version.published(storage).item_ids(), random_items(NUM_ITEMS), strict=True)
    hidden = [item for item, own in attributes if not passes(HALF, own)]
    assert 0 < len(hidden) < NUM_ITEMS
    changing.delete(storage, hidden)
    expected = calibrated(read(storage), "train")
    assert (found.stored.filter, expected.stored.filter) == (canonical(HALF), None)
    for name in ("query", "share", "temperature"):
        own, other = (getattr(one.stored.positives, name) for one in (found, expected))
        np.testing.assert_allclose(own, other, rtol=1e-5)
    own, other = found.stored.factors, expected.stored.factors
    assert own.softmax is not None
    assert other.softmax is not None
    assert own.softmax.value == pytest.approx(other.softmax.value, rel=1e-4)
    assert own.mass["uniform"].value == pytest.approx(other.mass["uniform"].value, rel=1e-4)


def test_queries_whose_relevant_items_are_hidden_are_left_out_and_counted(storage: Storage) -> None:
    whole, some = read(storage), read(storage, HALF)
    left = {*np.flatnonzero([passes(HALF, own) for own in random_items(NUM_ITEMS)]).tolist()}
    num_out = {
        split: sum(not left & {*relevant.tolist()} for relevant in whole.queries(split).relevant) for split in SPLITS
    }
    assert num_out["train"] > 0
    assert {split: some.num_left_out(split) for split in SPLITS} == num_out
    report = measured(some, calibrated(some, "train"), "test")
    assert report.num_queries == len(whole.queries("train")) - num_out["train"]
    sentence = (
        f"{num_out['train']} of the {len(whole.queries('train'))} queries of split train, as the filter hides all"
    )
    assert any(own.startswith(sentence) for own in report.left_out)
    assert not any("hides" in own for own in measured(whole, calibrated(whole, "train"), "test").left_out)


def test_too_few_queries_are_left(storage: Storage) -> None:
    few = {"tags": "a", "lang": "fr", "price": {"$lt": 8}}
    found = calibrated(read(storage, few), "train")
    assert 0 < found.stored.positives.num_queries < 99
    report = measured(read(storage, few), found, "train")
    sentence = f"coverage 0.99 needs at least 99 calibration queries, got {found.stored.positives.num_queries}"
    assert any(sentence in own for own in report.left_out)


@pytest.mark.parametrize(
    ("filter", "sentence"),
    [
        (
            {"year": 1},
            r'filter must pass an item of version v1-2, got \{"year":1\}, which passes none',
        ),
        ({"colour": 1}, "filter must name attributes of the version, lang, price, .*, got 'colour'"),
    ],
)
def test_filters_that_leave_nothing(storage: Storage, filter: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(storage, filter)


def test_a_filter_of_a_version_without_attributes(tmp_path: Path) -> None:
    """Also one that names none."""
    publish_here(tmp_path)
    for filter in ({"year": 1}, {"$not": {}}):
        with pytest.raises(
            ValueError, match="filter must be left out for a version whose items have no attributes, got"
        ):
            read(Storage(str(tmp_path)), filter)


def test_a_filter_that_leaves_no_query(storage: Storage) -> None:
    whole = read(storage)
    asked = {row for relevant in whole.queries("valid").relevant for row in relevant.tolist()}
    found = read(storage, filters_without(asked)[0])
    with pytest.raises(
        ValueError, match="split 'valid' must hold a query with a relevant item in the index that the f"
    ):
        calibrated(found, "valid")


def filters_without(asked: set[int]) -> list[dict[str, Any]]:
    """Filters that pass none of some items."""
    items = random_items(NUM_ITEMS)
    filters = [{"year": own["year"], "price": own["price"]} for own in items if own["year"] and own["price"]]
    return [own for own in filters if not any(passes(own, items[row]) for row in asked)]


def write(storage: Storage, filter: dict[str, Any] | None, seed: int) -> calibrations.StoredCalibration:
    """A calibration of drawn positives."""
    stored = replace(STORED, positives=drawn(90, seed), filter=None if filter is None else canonical(filter))
    calibrations.write(storage, versions.current_version(storage), stored)
    return stored


def test_searches_under_the_same_filter(storage: Storage) -> None:
    """Whatever the order of its fields; others are cut as all items are, and said not to be calibrated."""
    other = {"price": {"$lt": 11}}
    stored = {name: write(storage, own, seed) for seed, (name, own) in enumerate({"all": None, "half": HALF}.items())}
    version = local.open(str(storage))
    support = version.version.family.cutoff_support

    def search(**options: Any) -> Any:
        [found] = version.search(["red"], cutoff={"coverage": 0.8}, **options).results
        return found

    def threshold(name: str, found: Any) -> float:
        own = stored[name]
        calibration = Calibration(own.positives, support.distribution(own.background), own.num_segments)
        return float(calibration.threshold(0.8, np.array([found.temperature], np.float32))[0])

    for filter, name, is_calibrated in (
        (None, "all", True),
        (HALF, "half", True),
        (dict(reversed(HALF.items())), "half", True),
        (other, "all", False),
    ):
        found = search(filter=filter)
        assert found.threshold == pytest.approx(threshold(name, found), abs=1e-6)
        assert found.is_calibrated == is_calibrated
    assert threshold("all", found) != pytest.approx(threshold("half", found), abs=1e-3)
    [included] = version.search([{"text": "red", "include": ["item-1"]}], cutoff={"coverage": 0.8}, filter=HALF).results
    assert included.is_calibrated is False
    assert version.facts["calibrated_filters"] == [HALF]
    assert search(filter={}).is_calibrated is True


def test_a_filter_alone_is_calibrated(storage: Storage) -> None:
    """Searches without that filter are not."""
    write(storage, HALF, 1)
    version = local.open(str(storage))
    [found] = version.search(["red"], cutoff={"coverage": 0.8}, filter=HALF).results
    assert found.is_calibrated is True
    with pytest.raises(Exception, match="cutoff coverage needs a version that is calibrated"):
        version.search(["red"], cutoff={"coverage": 0.8})


def test_each_filter_has_a_calibration_of_its_own_which_a_change_keeps(storage: Storage) -> None:
    for seed, filter in enumerate([None, HALF, {"year": 2000}, HALF]):
        last = write(storage, filter, seed)
    name = versions.current_version(storage)
    assert len(calibrations.of_filters(storage, name)) == 2
    changing.delete(storage, ["item-1"])
    compact(storage)
    now = versions.current_version(storage)
    assert now != name
    found = {own.filter: own for own in calibrations.read_all(storage, now)}
    assert found.keys() == {None, canonical(HALF), canonical({"year": 2000})}
    assert np.array_equal(found[canonical(HALF)].positives.share, last.positives.share)
