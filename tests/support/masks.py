"""Masks of tests."""

from torch import Tensor

from rails_ray.search.masks import Exclusions, Remaining


def hiding(is_hidden: Tensor) -> Remaining:
    """A mask that hides the same items from all queries [X]."""
    return Remaining(~is_hidden, Exclusions.of([]))
