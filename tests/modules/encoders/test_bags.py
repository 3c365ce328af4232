import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.encoders
from rails_ray.modules.encoders.bags import Bags, are_known, known_only, of_length_one, without_zeros
from rails_ray.modules.encoders.character_ngrams import hash_texts
from rails_ray.modules.encoders.hashing import hashed

Bag = list[tuple[int, float]]
WEIGHTS = st.floats(0.015625, 100, width=32)
BAGS = st.lists(st.lists(st.tuples(st.integers(0, 9), WEIGHTS), max_size=4, unique_by=lambda pair: pair[0]), max_size=5)


def of_lists(bags: list[Bag]) -> Bags:
    lengths = [len(bag) for bag in bags]
    return Bags(
        torch.tensor([token for bag in bags for token, _ in bag], dtype=torch.int64),
        torch.tensor([sum(lengths[:number]) for number in range(len(bags))], dtype=torch.int64),
        torch.tensor([weight for bag in bags for _, weight in bag], dtype=torch.float32),
    )


def to_lists(bags: Bags) -> list[Bag]:
    pairs = list(zip(bags.tokens.tolist(), bags.every_weight.tolist(), strict=True))
    starts = bags.starts.tolist()
    return [pairs[first:end] for first, end in zip(starts, [*starts, len(pairs)][1:], strict=True)]


@given(st.lists(st.integers(0, 2**36 - 1) | st.integers(-(2**63), 2**63 - 1), max_size=9), st.integers(0, 2**70))
def test_hashed_equals_plain_integers(tokens: list[int], seed: int) -> None:
    for num_inputs in (1, 7, 2**13, 2**40):
        places = hashed(torch.tensor(tokens, dtype=torch.int64), seed, num_inputs)
        assert places.tolist() == [oracles.encoders.hashed_place(token, seed, num_inputs) for token in tokens]


def test_places_spread_evenly_and_each_seed_has_its_own() -> None:
    """10,000 tokens on 100 places: each about 100 times, by the Poisson law within 5 deviations."""
    tokens = torch.arange(10_000)
    places = {seed: hashed(tokens, seed, 100) for seed in (0, 1, 2, 1000)}
    for found in places.values():
        counts = np.bincount(found.numpy(), minlength=100)
        assert counts.min() > 50
        assert counts.max() < 150
    for seed, found in places.items():
        for other in set(places) - {seed}:  # equal by chance in one place of a hundred
            assert 50 < (found == places[other]).sum() < 150


def test_two_tokens_that_share_a_place_do_not_share_that_of_another_seed() -> None:
    tokens = torch.arange(400)
    first, second = (hashed(tokens, seed, 100) for seed in (3, 4))
    pairs = [torch.nonzero(torch.triu(places[:, None] == places, diagonal=1)) for places in (first, second)]
    together = {tuple(pair) for pair in pairs[0].tolist()} & {tuple(pair) for pair in pairs[1].tolist()}
    assert len(pairs[0]) > 500
    assert len(together) < 30  # 8 by chance


@given(BAGS, st.data())
def test_take_equals_slicing(bags: list[Bag], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(bags) - 1), max_size=6)) if bags else []
    taken = of_lists(bags).take(torch.tensor(rows, dtype=torch.int64))
    assert len(taken) == len(rows)
    assert to_lists(taken) == [bags[row] for row in rows]


@given(BAGS)
def test_queries_of_length_one(bags: list[Bag]) -> None:
    made = to_lists(of_length_one(of_lists(bags)))
    for bag, own in zip(bags, made, strict=True):
        length = math.sqrt(sum(weight**2 for _, weight in bag))
        assert own == [(token, pytest.approx(weight / length, rel=1e-6)) for token, weight in bag]


@pytest.mark.parametrize("size", [1e-30, 1e-19, 1.0, 1e19, 3e38])
def test_queries_of_length_one_whatever_their_unit(size: float) -> None:
    """Also where the squares of their weights are no numbers of float32."""
    [bag] = to_lists(of_length_one(of_lists([[(3, 0.6 * size), (5, -0.8 * size)]])))
    assert bag == [(3, pytest.approx(0.6)), (5, pytest.approx(-0.8))]


def test_a_query_of_zeros_stays_one() -> None:
    assert to_lists(of_length_one(of_lists([[(3, 0.0), (5, 0.0)], [], [(1, 2.0)]]))) == [
        [(3, 0.0), (5, 0.0)],
        [],
        [(1, 1.0)],
    ]


@given(BAGS, st.sets(st.integers(0, 12)))
def test_unknown_tokens_are_dropped(bags: list[Bag], known: set[int]) -> None:
    ascending = torch.tensor(sorted(known), dtype=torch.int64)
    made = of_lists(bags)
    assert are_known(made.tokens, ascending).tolist() == [token in known for token in made.tokens.tolist()]
    assert to_lists(known_only(made, ascending)) == [[pair for pair in bag if pair[0] in known] for bag in bags]


def test_tokens_of_weight_0_are_dropped() -> None:
    bags = [[(3, 0.0), (5, 2.0)], [], [(1, -0.0)], [(1, -1.0), (3, 4.0), (4, 0.0)]]
    assert to_lists(without_zeros(of_lists(bags))) == [[(5, 2.0)], [], [], [(1, -1.0), (3, 4.0)]]


def test_without_weights_every_token_counts_1() -> None:
    bags = hash_texts(["red car", "", "blue red hat"], (), 2**36)
    assert bags.weights is None
    assert [len(bag) for bag in to_lists(bags)] == [2, 0, 3]
    assert bags.every_weight.tolist() == [1.0] * 5
    weighted = Bags(bags.tokens, bags.starts, torch.ones(5))
    assert torch.equal(of_length_one(bags).every_weight, of_length_one(weighted).every_weight)
    rows, known = torch.tensor([2, 2, 0]), bags.tokens.unique()[1:4]
    for change in (lambda own: own.take(rows), lambda own: known_only(own, known), without_zeros):
        assert change(bags).weights is None
        assert to_lists(change(bags)) == to_lists(change(weighted))
    assert len(of_length_one(hash_texts([], (), 2**36))) == 0
