"""Masks that are kept, and the rows that they leave."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rails_ray.serving.kept_masks import KeptMasks, LeftRows


def never() -> NDArray[np.bool_]:
    raise AssertionError("a kept mask is made again")


@pytest.mark.parametrize("num_rows", [0, 1, 8, 13])
def test_a_mask_is_made_once(num_rows: int) -> None:
    kept, mask = KeptMasks(), np.arange(num_rows) % 3 == 0
    assert kept.mask(("part", "text"), num_rows, lambda: mask).tolist() == mask.tolist()
    assert kept.mask(("part", "text"), num_rows, never).tolist() == mask.tolist()
    assert (kept.num_found, kept.num_made) == (1, 1)


def test_what_was_not_used_for_longest_goes_first() -> None:
    kept, mask = KeptMasks(most_bytes=2 * (100 + 1)), np.ones(800, np.bool_)
    for name in ("a", "b", "a", "c"):
        kept.mask((name,), 800, lambda: mask)
    assert kept.num_bytes == 202
    kept.mask(("a",), 800, never)
    with pytest.raises(AssertionError, match="made again"):
        kept.mask(("b",), 800, never)


def test_a_mask_that_is_too_large_is_made_and_not_kept() -> None:
    kept, mask = KeptMasks(most_bytes=10), np.ones(800, np.bool_)
    for _ in range(2):
        assert kept.mask(("a",), 800, lambda: mask).all()
    assert (kept.num_bytes, kept.num_made) == (0, 2)


def test_rows_from_either_form() -> None:
    is_left = torch.tensor([True, False, True, True, False])
    by_mask, by_rows = LeftRows(5, is_left=is_left), LeftRows(5, rows=np.array([0, 2, 3]))
    for left in (by_mask, by_rows):
        assert left.num == 3
        assert left.has(np.array([3, 1, 0])).tolist() == [True, False, True]
        assert left.only(np.array([1, 2, 3])).rows.tolist() == [2, 3]
        assert left.without(np.array([2, 4])).rows.tolist() == [0, 3]
        assert left.without(np.array([2, 4])).is_left.tolist() == [True, False, False, True, False]
        assert left.rows.tolist() == [0, 2, 3]
        assert left.is_left.tolist() == is_left.tolist()
