"""Random codes: K bucket numbers for each item, one of R in each chunk, fixed by a seed and never learned.

    E[<l_i, l_j>] = sum_k P(h_k(i) = h_k(j)) = K / R                       of `hashed` codes
                                             = K (X / R - 1) / (X - 1)     of `balanced` ones, if R divides X

for the label vectors l of two items, which have a 1 at the item's bucket of each chunk and are 0 elsewhere. In a
balanced chunk an item takes one of the places in its bucket, so two items meet less often; if R = X they never do.

Source: SOLAR, Section 3.1 and Equation 1.
Differs from the source: buckets are to be equally filled, which murmurhash (`hashed`) does not achieve: where they hold
about 30 items, the longest posting is 1.7 to 1.9 times the mean. `balanced` draws a permutation in each chunk instead.
Items that come later take the least loaded of a few hashed buckets (`add`), or what a trained model predicts for them
(`nearest_predicted`). Items that go are left out: loads are counted from the codes that are there.

An id is hashed as text: an integer by its decimal digits, in UTF-8.

Axes: X items that are there, N items that are added, K chunks, R buckets, C choices.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer
from numpy import ndarray

from rails_ray.item_ids import ItemId

# The longest posting over the mean, when 20% of 148,730 items had been replaced ten times, at 1, 2, 3, 4 and 8 choices:
# 1.79, 1.09, 1.06, 1.06 and 1.03 where the mean is 33 items; 6.7, 2.7, 2.7, 2.0 and 2.0 where it is 1.5. There
# 1.33 is the least that can be, as some posting has 2 items.
NUM_CHOICES = 4
# What a model predicts may be lopsided; yet no posting shall get longer than `hashed` makes it.
MAX_LOAD_RATIO = 1.5

Ids = Sequence[ItemId]


def balanced(num_items: int, num_chunks: int, num_buckets: int, seed: int) -> Int32[ndarray, "X K"]:
    """Codes by a permutation in each chunk: loads of a chunk differ by at most 1. Chunk k depends on (seed, k) alone.

    Raises:
        ValueError: unless 1 <= num_buckets <= num_items and num_chunks >= 1.
    """
    _check_sizes(num_chunks=num_chunks, num_buckets=num_buckets)
    if num_buckets > num_items:
        raise ValueError(f"num_buckets must be at most the {num_items} items, got {num_buckets}")
    codes = np.empty((num_items, num_chunks), np.int32)
    for chunk in range(num_chunks):
        codes[:, chunk] = np.random.default_rng([seed, chunk]).permutation(num_items) % num_buckets
    return codes


def hashed(item_ids: Ids, num_chunks: int, num_buckets: int, seed: int) -> Int32[ndarray, "X K"]:
    """Codes by murmurhash, as in the paper: an item's code depends on its id, whatever the other items are.

    Raises:
        ValueError: if an id is repeated, or unless num_buckets >= 1 and num_chunks >= 1.
    """
    _check_sizes(num_chunks=num_chunks, num_buckets=num_buckets)
    _check_distinct(item_ids)
    return _hashed_choices(item_ids, num_chunks, num_buckets, seed, num_choices=1)[:, :, 0]


def loads(codes: Integer[ndarray, "X K"], num_buckets: int) -> Int64[ndarray, "K R"]:
    """How many items are in each bucket: the lengths of the postings.

    Raises:
        ValueError: if a code is no bucket, or unless num_buckets >= 1.
    """
    _check_sizes(num_buckets=num_buckets)
    _check_buckets("codes", codes, num_buckets)
    num_chunks = codes.shape[1]
    places = codes + np.arange(num_chunks) * num_buckets
    return np.bincount(places.reshape(-1), minlength=num_chunks * num_buckets).reshape(num_chunks, num_buckets)


def add(
    codes: Integer[ndarray, "X K"], new_ids: Ids, *, num_buckets: int, seed: int, num_choices: int = NUM_CHOICES
) -> Int32[ndarray, "N K"]:
    """Codes of new items: in each chunk the least loaded of a few hashed buckets, the first among equals.

    Items are taken in the order given; each counts for the next ones.

    Args:
        codes: codes of the items that are there.
        num_choices: hashed buckets of an item in each chunk; the first is the one that `hashed` gives.

    Raises:
        ValueError: if an id is repeated, a code is no bucket, or num_buckets or num_choices is below 1.
    """
    _check_sizes(num_buckets=num_buckets, num_choices=num_choices)
    _check_distinct(new_ids)
    held = loads(codes, num_buckets)
    choices = _hashed_choices(new_ids, len(held), num_buckets, seed, num_choices)
    return _placed(choices, held)


def nearest_predicted(
    codes: Integer[ndarray, "X K"],
    predicted: Integer[ndarray, "N K C"],
    *,
    num_buckets: int,
    max_load_ratio: float = MAX_LOAD_RATIO,
) -> Int32[ndarray, "N K"]:
    """Codes of new items near what a model predicts for them, so that they are found before it is trained again.

    In each chunk it is the first predicted bucket that, with the item in it, holds at most `max_load_ratio` times the
    mean load; if there is none, the least loaded of them. Items are taken in the order given.

    Args:
        codes: codes of the items that are there.
        predicted: the most probable buckets of each chunk, best first.
        max_load_ratio: at least 1.

    Raises:
        ValueError: if a code or prediction is no bucket, nothing is predicted, or max_load_ratio is below 1.
    """
    held = loads(codes, num_buckets)
    _check_buckets("predicted", predicted, num_buckets)
    if not predicted.shape[2]:
        raise ValueError("predicted must hold at least 1 bucket in each chunk, got 0")
    if not max_load_ratio >= 1:
        raise ValueError(f"max_load_ratio must be at least 1, got {max_load_ratio}")
    totals = len(codes) + np.arange(1, len(predicted) + 1)
    return _placed(predicted, held, max_load_ratio * totals / num_buckets)


def inherit(
    item_ids: Ids,
    known_ids: Ids,
    known_codes: Integer[ndarray, "M K"],
    *,
    num_buckets: int,
    seed: int,
    num_choices: int = NUM_CHOICES,
) -> tuple[Int32[ndarray, "X K"], Bool[ndarray, " X"]]:
    """Codes of a corpus that shares items with a former version: these keep their codes, the others are added.

    Items that only the former version had no longer count.

    Args:
        known_ids: ids of the former version's items.
        known_codes: their codes.

    Returns:
        Codes by item row, and which items are new.

    Raises:
        ValueError: as `add`, or if there is not one code for each known id.
    """
    _check_distinct(item_ids)
    _check_distinct(known_ids)
    if len(known_ids) != len(known_codes):
        raise ValueError(f"known_codes must have one row for each of the {len(known_ids)} ids, got {len(known_codes)}")
    row_of = {known: row for row, known in enumerate(known_ids)}
    rows = np.array([row_of.get(item, -1) for item in item_ids], np.int64)
    is_new = rows < 0
    kept = known_codes[rows[~is_new]].astype(np.int32)
    new_ids = [item for item, new in zip(item_ids, is_new, strict=True) if new]
    codes = np.empty((len(item_ids), known_codes.shape[1]), np.int32)
    codes[~is_new] = kept
    codes[is_new] = add(kept, new_ids, num_buckets=num_buckets, seed=seed, num_choices=num_choices)
    return codes, is_new


def _hashed_choices(
    item_ids: Ids, num_chunks: int, num_buckets: int, seed: int, num_choices: int
) -> Int32[ndarray, "N K C"]:
    import mmh3  # the other codes can be had without it

    texts = [str(item).encode() for item in item_ids]
    choices = np.empty((len(texts), num_chunks, num_choices), np.int32)
    for chunk in range(num_chunks):
        for choice in range(num_choices):
            hash_seed = int(np.random.SeedSequence([seed, chunk, choice]).generate_state(1)[0])
            hashes = np.fromiter((mmh3.hash(text, hash_seed, signed=False) for text in texts), np.uint32, len(texts))
            choices[:, chunk, choice] = hashes % num_buckets
    return choices


def _placed(
    choices: Integer[ndarray, "N K C"], held: Int64[ndarray, "K R"], most: ndarray | None = None
) -> Int32[ndarray, "N K"]:
    """One choice for each item and chunk, item after item; all chunks at once, as they know nothing of each other.

    Args:
        held: loads so far; they are counted up in place.
        most: for each item, the load up to which a bucket is as good as empty; by default the least loaded is taken.
    """
    chunks = np.arange(len(held))
    codes = np.empty(choices.shape[:2], np.int32)
    for item, among in enumerate(choices):
        with_it = held[chunks[:, None], among] + 1  # [K, C]
        if most is not None:
            with_it[with_it <= most[item]] = 0
        codes[item] = among[chunks, with_it.argmin(axis=1)]  # the first among equals
        held[chunks, codes[item]] += 1
    return codes


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def _check_distinct(item_ids: Ids) -> None:
    if len(set(item_ids)) < len(item_ids):
        [(item, _)] = Counter(item_ids).most_common(1)
        raise ValueError(f"item ids must be distinct, got {item!r} more than once")


def _check_buckets(name: str, codes: Integer[ndarray, "..."], num_buckets: int) -> None:
    outside = codes[(codes < 0) | (codes >= num_buckets)]
    if len(outside):
        raise ValueError(f"{name} must be buckets in 0 .. {num_buckets - 1}, got {outside[0]}")
