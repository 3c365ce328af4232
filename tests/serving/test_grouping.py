"""So many items of each group, against lists that were grouped by hand."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray import local
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.request_limits import Limits

NUM_ITEMS, WIDTH = 80, 4
QUERIES = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)
BRANDS = [None if row % 9 == 8 else f"brand-{row * row % 11}" for row in range(NUM_ITEMS)]


@pytest.fixture(scope="module")
def version() -> LocalVersion:
    vectors = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
    return local.build(vectors, titles=[f"t{row}" for row in range(NUM_ITEMS)], attributes={"brand": BRANDS})


def by_hand(items: list[int], k: int, size: int) -> list[int]:
    counts, kept = dict[Any, int](), list[int]()
    for item in items:
        group = BRANDS[item] or item
        if group not in counts and len(counts) == k:
            continue
        counts[group] = counts.get(group, 0) + 1
        kept += [item] if counts[group] <= size else []
    return kept


@given(k=st.integers(1, 20), size=st.integers(1, 12))
def test_groups_are_those_of_the_whole_list(version: LocalVersion, k: int, size: int) -> None:
    whole = version.search(QUERIES, k=NUM_ITEMS).results
    found = version.search(QUERIES, k=k, group_by="brand", group_size=size)
    for own, result in zip(found.results, whole, strict=True):
        assert own.items == by_hand(result.items, k, size)
        assert own.scores == [result.scores[result.items.index(item)] for item in own.items]
        assert own.titles == [f"t{item}" for item in own.items]
        assert own.fields is None
        assert own.certificate.is_exact
    assert found.is_exact


def test_fields_beside_groups(version: LocalVersion) -> None:
    [found] = version.search(QUERIES[:1], k=5, group_by="brand", fields=["brand"]).results
    assert found.fields == [{"brand": BRANDS[item]} for item in found.items]


def test_a_filter_and_a_cut_off_come_first(version: LocalVersion) -> None:
    options: dict[str, Any] = {"filter": {"brand": {"$ne": "brand-1"}}, "cutoff": {"score": 0.3}}
    whole = version.search(QUERIES, k=NUM_ITEMS, **options).results
    found = version.search(QUERIES, k=30, group_by="brand", **options).results
    assert [own.items for own in found] == [by_hand(result.items, 30, 1) for result in whole]


def test_lists_that_are_too_long_are_no_proof(tmp_path: Any) -> None:
    """The longest list has not enough groups."""
    vectors = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
    same = ["one"] * (NUM_ITEMS - 1) + ["other"]
    local.build(vectors, attributes={"brand": same}, folder=str(tmp_path))
    opened = local.open(str(tmp_path), limits=Limits(max_answered_items=10))
    found = opened.search([vectors[0].tolist()], k=2, group_by="brand")
    assert not found.is_exact
    assert found.results[0].certificate.reason is not None
    assert "were not looked at" in found.results[0].certificate.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "colour"}, r"colour"),
        ({"group_by": "brand", "offset": 3}, r"group_by must be left out of a request with pages"),
        ({"group_by": "brand", "group_size": 0}, r"group_size"),
        ({"group_by": "zz"}, r"group_by must be one of the version's attributes, brand, got 'zz'"),
        (
            {"group_by": "brand", "cutoff": {"score": 0, "min_items": 15}},
            r"min_items must be at most the 3 items of a list, got 15",
        ),
    ],
)
def test_what_is_refused(version: LocalVersion, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        version.search(QUERIES, k=3, **options)


def test_each_way_to_search(version: LocalVersion) -> None:
    expected = version.search(QUERIES, k=4, group_by="brand").results
    for method, size in product(("ann", "two_pass"), (1,)):
        found = version.search(QUERIES, k=4, group_by="brand", group_size=size, method=method, num_per_embedding=200)
        assert [own.items for own in found.results] == [own.items for own in expected]


def test_a_cut_off_alone_ends_the_groups(version: LocalVersion) -> None:
    """As many as there are among the items that it keeps."""
    for cutoff in ({"score": -1}, {"top_k": 20}):
        whole = version.search(QUERIES, cutoff=cutoff).results
        found = version.search(QUERIES, cutoff=cutoff, group_by="brand").results
        for own, result in zip(found, whole, strict=True):
            assert own.items == by_hand(result.items, NUM_ITEMS, 1)
            assert own.is_truncated == result.is_truncated is False


@given(k=st.integers(1, 30))
def test_groups_of_a_cut_off_that_k_left_out(version: LocalVersion, k: int) -> None:
    cut: dict[str, Any] = {"cutoff": {"score": -1}, "group_by": "brand"}
    every = version.search(QUERIES, k=NUM_ITEMS, **cut).results
    for own, result in zip(version.search(QUERIES, k=k, **cut).results, every, strict=True):
        num = len(result.items)
        assert own.is_truncated or k >= num
        assert not own.is_truncated or k <= num  # of just as many groups items beyond the list may be of others
    for own in version.search(QUERIES, k=k, group_by="brand").results:
        assert not own.is_truncated


def test_a_cursor_beside_groups_is_refused(version: LocalVersion) -> None:
    [first] = version.search(QUERIES[:1], k=3, offset=0).results
    with pytest.raises(ValueError, match="group_by must be left out of a request with pages"):
        version.search([{"embedding": QUERIES[0].tolist(), "after": first.next}], k=3, group_by="brand")
