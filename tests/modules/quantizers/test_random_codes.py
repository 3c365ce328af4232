import os
import subprocess
import sys
from pathlib import Path

import mmh3
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import oracles.codes
from rails_ray.modules.quantizers.random_codes import add, balanced, hashed, inherit, loads, nearest_predicted

ROOT = Path(__file__).parents[3]
NUM_ITEMS, NUM_BUCKETS = 149_000, 5_000


def longest(codes: np.ndarray, num_buckets: int) -> float:
    """The longest posting over the mean of its chunk."""
    counted = loads(codes, num_buckets)
    return float(counted.max() / counted.mean())


@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 2**70), st.data())
def test_a_balanced_chunk_has_loads_that_differ_by_at_most_1(
    num_items: int, num_chunks: int, seed: int, data: st.DataObject
) -> None:
    num_buckets = data.draw(st.integers(1, num_items))
    codes = balanced(num_items, num_chunks, num_buckets, seed)
    counted = loads(codes, num_buckets)
    assert codes.dtype == np.int32
    assert codes.shape == (num_items, num_chunks)
    assert (counted.max(axis=1) - counted.min(axis=1) <= 1).all()
    assert (counted.sum(axis=1) == num_items).all()


def test_a_chunk_depends_on_the_seed_and_its_number_alone() -> None:
    many, few = balanced(500, 5, 50, seed=7), balanced(500, 2, 50, seed=7)
    assert (many[:, :2] == few).all()
    chunks = [*many.T, *balanced(500, 5, 50, seed=8).T]
    assert len({chunk.tobytes() for chunk in chunks}) == 10, "no two chunks or seeds are alike"


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=12))
def test_loads_equal_the_naive_count(codes: list[list[int]]) -> None:
    counted = loads(np.array(codes, np.int32).reshape(-1, 3), 6)
    assert counted.dtype == np.int64
    assert counted.tolist() == oracles.codes.posting_lengths(codes, 3, 6)


@given(st.lists(st.text() | st.integers(), unique_by=str, min_size=1, max_size=20), st.data())
def test_a_hashed_code_depends_on_the_id_alone(ids: list[str | int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(ids))))
    code_of = dict(zip(ids, hashed(ids, 3, 11, seed=5).tolist(), strict=True))
    for item, code in zip([ids[row] for row in order], hashed([ids[row] for row in order], 3, 11, seed=5), strict=True):
        assert code.tolist() == code_of[item]
        assert hashed([item], 2, 11, seed=5).tolist() == [code_of[item][:2]]


def test_an_integer_is_hashed_by_its_digits() -> None:
    assert (hashed([-3, 2**80], 4, 1000, 0) == hashed(["-3", str(2**80)], 4, 1000, 0)).all()
    hash_seed = int(np.random.SeedSequence([9, 2, 0]).generate_state(1)[0])
    assert hashed(["ä", 17], 3, 1000, 9)[:, 2].tolist() == [
        mmh3.hash("ä".encode(), hash_seed, signed=False) % 1000,
        mmh3.hash(b"17", hash_seed, signed=False) % 1000,
    ]


def test_another_process_gives_the_same_codes() -> None:
    code = """
import sys
from rails_ray.modules.quantizers.random_codes import add, balanced, hashed
codes, new_ids = balanced(300, 4, 20, seed=3), [f"item {number}" for number in range(50)]
for made in (codes, hashed(new_ids, 4, 20, seed=3), add(codes, new_ids, num_buckets=20, seed=3)):
    sys.stdout.buffer.write(made.tobytes())
"""
    codes, new_ids = balanced(300, 4, 20, seed=3), [f"item {number}" for number in range(50)]
    here = [codes, hashed(new_ids, 4, 20, seed=3), add(codes, new_ids, num_buckets=20, seed=3)]
    for hash_seed in "12":  # of Python's own hashes, which order sets
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment, cwd=ROOT)
        assert there.stdout == b"".join(made.tobytes() for made in here)


CODES = st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), max_size=10)


@given(CODES, st.integers(0, 12), st.integers(1, 5))
def test_an_added_item_takes_the_least_loaded_of_its_hashed_buckets(
    codes: list[list[int]], num_new: int, num_choices: int
) -> None:
    new_ids = [f"new {number}" for number in range(num_new)]
    choices = [
        [
            [
                mmh3.hash(item.encode(), int(np.random.SeedSequence([6, k, c]).generate_state(1)[0]), signed=False) % 5
                for c in range(num_choices)
            ]
            for k in range(2)
        ]
        for item in new_ids
    ]
    there = np.array(codes, np.int32).reshape(-1, 2)
    made = add(there, new_ids, num_buckets=5, seed=6, num_choices=num_choices)
    assert made.dtype == np.int32
    assert made.shape == (num_new, 2)
    assert made.tolist() == oracles.codes.added_codes(codes, choices, 5)
    assert there.tolist() == codes, "what is there stays as it was"


def test_one_choice_is_the_hashed_bucket() -> None:
    there, new_ids = balanced(100, 3, 7, 0), list(range(40))
    assert (add(there, new_ids, num_buckets=7, seed=1, num_choices=1) == hashed(new_ids, 3, 7, seed=1)).all()


def replaced(codes: np.ndarray, added) -> np.ndarray:
    """The codes after 20% of the items went and as many came."""
    num_new = len(codes) // 5
    kept = np.sort(np.random.default_rng(0).permutation(len(codes))[num_new:])
    return np.concatenate([codes[kept], added(codes[kept], [f"new {number}" for number in range(num_new)])])


def test_postings_stay_even_when_a_fifth_of_the_items_is_replaced() -> None:
    """At 29.8 items a bucket: at most 1.15, where hashing alone is at 1.8 before and after."""
    even = balanced(NUM_ITEMS, 4, NUM_BUCKETS, seed=0)
    assert longest(even, NUM_BUCKETS) < 1.01
    after = replaced(even, lambda kept, new: add(kept, new, num_buckets=NUM_BUCKETS, seed=0))
    assert len(after) == NUM_ITEMS
    assert longest(after, NUM_BUCKETS) <= 1.15
    by_hash = hashed(range(NUM_ITEMS), 4, NUM_BUCKETS, seed=0)
    assert longest(by_hash, NUM_BUCKETS) > 1.6
    assert longest(replaced(by_hash, lambda _, new: hashed(new, 4, NUM_BUCKETS, seed=0)), NUM_BUCKETS) > 1.6
    fewer = replaced(even, lambda kept, new: add(kept, new, num_buckets=NUM_BUCKETS, seed=0, num_choices=1))
    assert longest(fewer, NUM_BUCKETS) > 1.3, "the choices do it"


def test_few_items_a_bucket_cannot_be_even() -> None:
    """At 1.5 items a bucket some posting has 2, 1.33 times the mean; after the replacement one has 3."""
    even = balanced(NUM_ITEMS, 4, 2 * NUM_ITEMS // 3, seed=0)
    after = replaced(even, lambda kept, new: add(kept, new, num_buckets=2 * NUM_ITEMS // 3, seed=0))
    assert loads(even, 2 * NUM_ITEMS // 3).max() == 2
    assert loads(after, 2 * NUM_ITEMS // 3).max() == 3


@pytest.mark.parametrize("kind", ["balanced", "hashed", "added"])
def test_two_items_share_k_over_r_buckets(kind: str) -> None:
    """SOLAR, Equation 1. Of 2,000 items each pair is met, so the mean over pairs is that of the loads."""
    num_items, num_chunks, num_buckets = 2000, 64, 40
    if kind == "balanced":
        codes = balanced(num_items, num_chunks, num_buckets, seed=0)
    elif kind == "hashed":
        codes = hashed(range(num_items), num_chunks, num_buckets, seed=0)
    else:
        there = balanced(num_items // 2, num_chunks, num_buckets, seed=0)
        new = add(there, range(num_items // 2), num_buckets=num_buckets, seed=0)
        codes = np.concatenate([there, new])
    first, second = np.random.default_rng(0).integers(num_items, size=(2, 200_000))
    shared = (codes[first] == codes[second])[first != second].sum(axis=1)
    assert shared.mean() == pytest.approx(num_chunks / num_buckets, rel=0.03)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.integers(0, 9))
def test_two_items_of_balanced_codes_share_fewer(num_buckets: int, load: int, num_chunks: int, seed: int) -> None:
    """K (X / R - 1) / (X - 1), which is the mean over all pairs for any seed, as it is for all permutations."""
    num_items = num_buckets * load
    assume(num_items > 1)
    codes = balanced(num_items, num_chunks, num_buckets, seed).tolist()
    shared = [
        sum(first == second for first, second in zip(codes[i], codes[j], strict=True))
        for i in range(num_items)
        for j in range(num_items)
        if i != j
    ]
    assert np.mean(shared) == pytest.approx(num_chunks * (num_items / num_buckets - 1) / (num_items - 1))
    assert num_buckets == 1 or np.mean(shared) < num_chunks / num_buckets


@example([[0, 0], *[[2, 2]] * 8], [[0, 1, 1, 0, 1, 1]], 1.0)  # just light enough
@given(
    CODES,
    st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), max_size=12),
    st.sampled_from([1.0, 1.25, 1.5, 2.5]),
)
def test_a_predicted_code_is_the_first_that_is_light_enough(
    codes: list[list[int]], predicted: list[list[int]], max_load_ratio: float
) -> None:
    there, best = np.array(codes, np.int32).reshape(-1, 2), np.array(predicted, np.int64).reshape(-1, 2, 3)
    made = nearest_predicted(there, best, num_buckets=5, max_load_ratio=max_load_ratio)
    assert made.dtype == np.int32
    assert made.tolist() == oracles.codes.added_codes(codes, best.tolist(), 5, max_load_ratio)


def test_predictions_that_all_agree_fill_no_bucket_beyond_the_ratio() -> None:
    codes = balanced(3000, 2, 100, seed=0)
    predicted = np.tile(np.arange(30), (600, 2, 1))
    made = nearest_predicted(codes, predicted, num_buckets=100, max_load_ratio=1.5)
    assert (made[:10] == 0).all(), "the best one, as long as it is light"
    assert longest(np.concatenate([codes, made]), 100) <= 1.5 + 1e-9
    assert longest(np.concatenate([codes, predicted[:, :, 0]]), 100) > 15


def test_a_corpus_inherits_the_codes_of_the_items_it_had() -> None:
    known_ids = [f"item {number}" for number in range(50)]
    known = balanced(50, 3, 10, seed=0)
    ids = [*[f"new {number}" for number in range(5)], *known_ids[:20:-1], "new 5"]
    codes, is_new = inherit(ids, known_ids, known, num_buckets=10, seed=4)
    assert [item for item, new in zip(ids, is_new, strict=True) if new] == [f"new {number}" for number in range(6)]
    assert (codes[~is_new] == known[:20:-1]).all()
    expected = add(known[:20:-1], [f"new {number}" for number in range(6)], num_buckets=10, seed=4)
    assert (codes[is_new] == expected).all(), "items that went count no more"


@pytest.mark.parametrize(("ids", "known_ids"), [([], ["a"]), (["b"], []), ([], [])])
def test_a_corpus_without_old_or_new_items(ids: list[str], known_ids: list[str]) -> None:
    codes, is_new = inherit(ids, known_ids, np.zeros((len(known_ids), 2), np.int32), num_buckets=3, seed=0)
    assert codes.shape == (len(ids), 2)
    assert is_new.tolist() == [True] * len(ids)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: balanced(10, 2, 20, 0), r"num_buckets must be at most the 10 items, got 20"),
        (lambda: balanced(10, 0, 2, 0), r"num_chunks must be at least 1, got 0"),
        (lambda: balanced(10, 2, 0, 0), r"num_buckets must be at least 1, got 0"),
        (lambda: hashed(["a"], 0, 2, 0), r"num_chunks must be at least 1, got 0"),
        (lambda: hashed(["a"], 1, -2, 0), r"num_buckets must be at least 1, got -2"),
        (lambda: hashed(["b", "a", "a"], 1, 2, 0), r"item ids must be distinct, got 'a' more than once"),
        (lambda: loads(np.array([[0, 5]]), 5), r"codes must be buckets in 0 \.\. 4, got 5"),
        (lambda: loads(np.array([[0, -1]]), 5), r"codes must be buckets in 0 \.\. 4, got -1"),
        (lambda: loads(np.array([[0]]), 0), r"num_buckets must be at least 1, got 0"),
        (lambda: add(np.array([[0]]), [4, 4], num_buckets=1, seed=0), r"item ids must be distinct, got 4 more than"),
        (lambda: add(np.array([[3]]), [4], num_buckets=3, seed=0), r"codes must be buckets in 0 \.\. 2, got 3"),
        (
            lambda: add(np.array([[0]]), [4], num_buckets=1, seed=0, num_choices=0),
            r"num_choices must be at least 1, got 0",
        ),
        (
            lambda: nearest_predicted(np.array([[0]]), np.array([[[2]]]), num_buckets=2),
            r"predicted must be buckets in 0 \.\. 1, got 2",
        ),
        (
            lambda: nearest_predicted(np.array([[0]]), np.empty((1, 1, 0), np.int64), num_buckets=2),
            r"predicted must hold at least 1 bucket in each chunk, got 0",
        ),
        (
            lambda: nearest_predicted(np.array([[0]]), np.array([[[1]]]), num_buckets=2, max_load_ratio=0.9),
            r"max_load_ratio must be at least 1, got 0\.9",
        ),
        (
            lambda: inherit(["a", "a"], [], np.empty((0, 1), np.int32), num_buckets=2, seed=0),
            r"item ids must be distinct, got 'a' more than once",
        ),
        (
            lambda: inherit(["a"], ["b", "c"], np.zeros((1, 1), np.int32), num_buckets=2, seed=0),
            r"known_codes must have one row for each of the 2 ids, got 1",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
