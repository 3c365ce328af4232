"""The balance of a version: a sum over its items that does not depend on their order.

    balance = sum over items that are not hidden of H(id)  mod 2^64, for two functions H

It is additive, so that an addition or a deletion knows the new one without reading the items that stay, and `verify`
computes it again from all parts: an item that was lost, or is there twice, shows.

Differs from wal3 of Chroma: ids alone. What an item holds is guarded by the checksum of its part, and a digest of it
would have to be read again for each deleted item.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

NOTHING = "0" * 32
HALF = 2**64
SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


def balance_of(keys: NDArray[np.integer]) -> str:
    """The balance of some items, 32 hex digits.

    Args:
        keys: a number for each id (`ids.keys_of`).
    """
    numbers = keys.astype(np.uint64)
    return _text(int(_mixed(numbers + np.uint64(seed)).sum(dtype=np.uint64)) for seed in SEEDS)


def added(first: str, second: str) -> str:
    """The balance of the items of both."""
    return _text(one + other for one, other in zip(_halves(first), _halves(second), strict=True))


def removed(first: str, second: str) -> str:
    """The balance of the items of `first` without those of `second`."""
    return _text(one - other for one, other in zip(_halves(first), _halves(second), strict=True))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    mixed: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed


def _text(halves: Iterable[int]) -> str:
    return "".join(f"{half % HALF:016x}" for half in halves)


def _halves(balance: str) -> tuple[int, int]:
    return int(balance[:16], 16), int(balance[16:], 16)
