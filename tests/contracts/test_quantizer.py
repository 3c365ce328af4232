"""What every way to give items codes must hold. A new one is one line in `MEMBERS`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rails_ray.modules.quantizers import random_codes

Coder = Callable[[list[Any], int, int, int], NDArray[np.int32]]  # item ids, K, R, seed

MEMBERS: dict[str, Coder] = {
    "balanced": lambda item_ids, *sizes: random_codes.balanced(len(item_ids), *sizes),
    "hashed": random_codes.hashed,
}
members = pytest.mark.parametrize("codes_of", MEMBERS.values(), ids=MEMBERS)
ITEM_IDS = [f"item-{row}" for row in range(300)]


@members
@given(st.lists(st.text() | st.integers(), unique_by=str, min_size=1, max_size=40), st.integers(1, 4), st.data())
def test_each_item_has_a_bucket_in_each_chunk(
    codes_of: Coder, item_ids: list[Any], num_chunks: int, data: st.DataObject
) -> None:
    num_buckets = data.draw(st.integers(1, len(item_ids)))
    codes = codes_of(item_ids, num_chunks, num_buckets, data.draw(st.integers(0, 2**70)))
    assert codes.shape == (len(item_ids), num_chunks)
    assert codes.dtype == np.int32
    assert codes.min() >= 0
    assert codes.max() < num_buckets
    assert random_codes.loads(codes, num_buckets).sum(axis=1).tolist() == [len(item_ids)] * num_chunks


@members
def test_seed_and_items_decide_alone(codes_of: Coder) -> None:
    first, again = (codes_of(ITEM_IDS, 3, 20, 5) for _ in range(2))
    assert (first == again).all()
    assert (codes_of(ITEM_IDS, 3, 20, 6) != first).mean() > 0.5


@members
def test_a_chunk_knows_nothing_of_the_others(codes_of: Coder) -> None:
    """So that chunks can be made and trained apart."""
    many, few = codes_of(ITEM_IDS, 5, 20, 5), codes_of(ITEM_IDS, 2, 20, 5)
    assert (many[:, :2] == few).all()
    assert len({chunk.tobytes() for chunk in many.T}) == 5


@members
def test_items_keep_their_codes_when_others_come_and_go(codes_of: Coder) -> None:
    codes = codes_of(ITEM_IDS, 3, 20, 5)
    later = ["new", *ITEM_IDS[100:], "newer"]
    found, is_new = random_codes.inherit(later, ITEM_IDS, codes, num_buckets=20, seed=5)
    assert is_new.tolist() == [True, *[False] * 200, True]
    assert (found[1:-1] == codes[100:]).all()
    assert found.max() < 20


@members
@pytest.mark.parametrize(("num_chunks", "num_buckets"), [(0, 5), (3, 0)])
def test_sizes_that_cannot_be(codes_of: Coder, num_chunks: int, num_buckets: int) -> None:
    with pytest.raises(ValueError, match=r"num_(chunks|buckets) must be at least 1, got 0"):
        codes_of(ITEM_IDS, num_chunks, num_buckets, 0)
