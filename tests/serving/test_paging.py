"""Pages of a list, one after the other, also while items come and go."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray import local
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.paging import Cursor

NUM_ITEMS, WIDTH = 50, 4
VECTORS = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)


@pytest.fixture
def opened(tmp_path: Path) -> LocalVersion:
    return local.build(VECTORS, [f"i{row}" for row in range(NUM_ITEMS)], folder=str(tmp_path))


@pytest.fixture(scope="module")
def version() -> LocalVersion:
    """Of vectors of which each is there twice, so that scores tie."""
    return local.build(np.repeat(VECTORS[:25], 2, axis=0), [f"i{row}" for row in range(NUM_ITEMS)])


def pages(version: LocalVersion, k: int, **options: Any) -> list[list[str]]:
    """All pages of each query, joined."""
    lists: list[list[str]] = [[] for _ in QUERIES]
    cursors: list[str | None] = [None] * len(QUERIES)
    is_first = True
    while is_first or any(cursors):
        open_now = [number for number, own in enumerate(cursors) if is_first or own]
        queries = [{"embedding": QUERIES[number].tolist(), "after": cursors[number]} for number in open_now]
        answer = version.search(queries, k=k, **({"offset": 0} if is_first else {}), **options)
        for number, result in zip(open_now, answer.results, strict=True):
            assert len(result.items) == len(result.scores) <= k
            assert result.is_truncated == (result.next is not None)
            lists[number] += result.items
            cursors[number] = result.next
        is_first = False
    return lists


@given(k=st.integers(1, NUM_ITEMS + 3))
def test_pages_join_to_the_list(version: LocalVersion, k: int) -> None:
    """Ties included."""
    whole = version.search(QUERIES, k=NUM_ITEMS)
    assert pages(version, k) == [result.items for result in whole.results]


@pytest.mark.parametrize("cutoff", [{"score": 0.2}, {"top_k": 7}])
def test_a_cut_off_ends_the_last_page(version: LocalVersion, cutoff: dict[str, float]) -> None:
    whole = version.search(QUERIES, k=NUM_ITEMS, cutoff=cutoff)
    assert pages(version, 3, cutoff=cutoff) == [result.items for result in whole.results]


@given(offset=st.integers(0, NUM_ITEMS + 5), k=st.integers(1, 10))
def test_an_offset_is_a_slice(version: LocalVersion, offset: int, k: int) -> None:
    whole = version.search(QUERIES, k=NUM_ITEMS).results
    for found, result in zip(version.search(QUERIES, k=k, offset=offset).results, whole, strict=True):
        assert found.items == result.items[offset : offset + k]
        assert found.scores == result.scores[offset : offset + k]


def test_without_an_offset_there_is_no_cursor(version: LocalVersion) -> None:
    assert {result.next for result in version.search(QUERIES, k=3).results} == {None}


def test_items_that_come_and_go_between_two_pages(opened: LocalVersion) -> None:
    """What was there all the time is on one page, once, and in order."""
    query = QUERIES[0].tolist()
    before = opened.search([query], k=NUM_ITEMS).results[0].items
    [first] = opened.search([query], k=5, offset=0).results
    opened.add(np.tile(QUERIES[:1], (30, 1)), [f"n{row}" for row in range(30)])  # all of them before the second page
    opened.delete([before[2], before[7]])
    [second] = opened.search([{"embedding": query, "after": first.next}], k=5).results
    assert first.items == before[:5]
    assert second.items == [*before[5:7], *before[8:11]]
    opened.delete([second.items[-1]])  # the item that the cursor names
    [third] = opened.search([{"embedding": query, "after": second.next}], k=5).results
    assert third.items == before[11:16]


@pytest.mark.parametrize(
    ("text", "got"), [("x", "'x'"), ("bnVsbA", "'bnVsbA'"), ("WzEsMiwzXQ==!", "'WzEs"), (Cursor("a", 1.0, 0).text, "'")]
)
def test_a_text_that_is_no_cursor(version: LocalVersion, text: str, got: str) -> None:
    with pytest.raises(ValueError, match=rf"queries\[0\].after must be the `next` of an answer, got {got}"):
        version.search([{"embedding": QUERIES[0].tolist(), "after": text}], k=5)


def test_too_deep(version: LocalVersion) -> None:
    with pytest.raises(ValueError, match=r"offset"):
        version.search(QUERIES, k=5, offset=-1)


def test_a_cursor_of_a_list_that_ended(version: LocalVersion) -> None:
    [found] = version.search([{"embedding": QUERIES[0].tolist(), "after": Cursor("i3", -5.0, 50).text}], k=5).results
    assert len(found.items) <= 5


def test_a_last_item_that_scores_otherwise_now(opened: LocalVersion) -> None:
    query = QUERIES[0].tolist()
    before = opened.search([query], k=NUM_ITEMS).results[0].items
    [first] = opened.search([query], k=5, offset=0).results
    opened.add(-QUERIES[:1], [first.items[-1]], replace=True)
    [second] = opened.search([{"embedding": query, "after": first.next}], k=NUM_ITEMS).results
    assert second.items == [*before[5:], first.items[-1]]


def test_a_last_item_that_is_gone_among_equal_ones(tmp_path: Path) -> None:
    version = local.build(np.repeat(VECTORS[:4], 6, axis=0), [*range(24)], folder=str(tmp_path))
    query = VECTORS[0].tolist()
    [first] = version.search([query], k=3, offset=0).results
    assert first.items == [0, 1, 2]
    version.delete([1, 2])
    [second] = version.search([{"embedding": query, "after": first.next}], k=5).results
    assert second.items[:3] == [3, 4, 5]
    assert not set(second.items[3:]) & {0, 1, 2}


def test_a_cursor_of_ids_that_were_asked_for_as_strings() -> None:
    version = local.build(np.repeat(VECTORS[:4], 6, axis=0), [*range(24)])
    query = VECTORS[0].tolist()
    [first] = version.search([query], k=2, offset=0, ids="string").results
    assert first.items == ["0", "1"]
    [second] = version.search([{"embedding": query, "after": first.next}], k=2).results
    assert second.items == [2, 3]


def test_a_cursor_without_ties_is_read(version: LocalVersion) -> None:
    """As an earlier release wrote it."""
    [whole] = version.search(QUERIES[:1], k=10).results
    text = Cursor(whole.items[4], whole.scores[4], 5).text
    [found] = version.search([{"embedding": QUERIES[0].tolist(), "after": text}], k=5).results
    assert found.items == whole.items[5:10]
    deep = Cursor(whole.items[4], whole.scores[4], 2**31).text
    with pytest.raises(ValueError, match=r"queries\[0\].after must be the `next` of an answer"):
        version.search([{"embedding": QUERIES[0].tolist(), "after": deep}], k=5)
    with pytest.raises(ValueError, match="offset must be at most 1073741824, got 2147483647"):
        version.search(QUERIES, k=5, offset=2**31 - 1)
