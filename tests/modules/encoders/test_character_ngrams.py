from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles.encoders
from rails_ray.modules.encoders import character_ngrams
from rails_ray.modules.encoders.character_ngrams import FEW_CHARACTERS, hash_texts
from rails_ray.modules.encoders.hashing import BASE
from rails_ray.modules.encoders.words import Cut, characters, runs


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab é狗ピ|हिก"), max_size=12), max_size=5),
    st.sampled_from([(), (2,), (3, 4), (3, 5)]),
    st.sampled_from([1, 7, 2**16]),
    st.sampled_from(["unicode", "alphanumeric"]),
    st.booleans(),
)
def test_equals_the_loops(texts: list[str], sizes: tuple[int, ...], num_buckets: int, cut: Cut, are_few: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(character_ngrams, "FEW_CHARACTERS", 10**6 if are_few else -1)
        bags = hash_texts(texts, sizes, num_buckets, cut)
    ends = [*bags.starts.tolist(), len(bags.tokens)][1:]
    assert len(bags) == len(texts)
    for text, first, end in zip(texts, bags.starts.tolist(), ends, strict=True):
        spaced, han, spelled = runs(text, cut)
        long, short = (spaced + spelled, han) if sizes else (spaced, han + spelled)
        wanted = oracles.encoders.pieces(long, sizes) | oracles.encoders.pieces([*chain(*characters(short))], ())
        expected = oracles.encoders.buckets(sorted(wanted), BASE, num_buckets)
        assert bags.tokens[first:end].tolist() == sorted(expected)


def test_few_characters_are_hashed_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    each, asked = character_ngrams._each_hashed, list[int]()

    def noted(texts: Sequence[str], *rest: Any) -> Any:
        asked.append(len(texts))
        return each(texts, *rest)

    monkeypatch.setattr(character_ngrams, "_each_hashed", noted)
    hash_texts(["a" * FEW_CHARACTERS], (3, 4), 1000)
    hash_texts(["a" * FEW_CHARACTERS, "b"], (3, 4), 1000)
    hash_texts([""] * (FEW_CHARACTERS + 1), (3, 4), 1000)
    assert asked == [1]


@pytest.mark.parametrize(
    "others", [["red car", ""], ["a red car", "of many words, with more characters than few texts have", ""]]
)
def test_a_text_has_the_same_bag_in_any_company(others: list[str]) -> None:
    together = hash_texts([*others, "blue hat"], (3, 4), 1000)
    alone = hash_texts(["blue hat"], (3, 4), 1000)
    taken = together.take(torch.tensor([len(others)]))
    assert torch.equal(taken.tokens, alone.tokens)


def test_take_repeats_and_reorders() -> None:
    bags = hash_texts(["a", "bc", "", "def"], (3,), 10**6)
    rows = [3, 1, 1, 2, 0]
    taken = bags.take(torch.tensor(rows))
    ends = [*taken.starts.tolist(), len(taken.tokens)][1:]
    for row, first, end in zip(rows, taken.starts.tolist(), ends, strict=True):
        expected = bags.take(torch.tensor([row])).tokens
        assert torch.equal(taken.tokens[first:end], expected)


def test_buckets_spread_evenly() -> None:
    """10,000 different words over 100 buckets: each about 100 times, by the Poisson law within 5 deviations."""
    counts = np.bincount(hash_texts([f"word{i}" for i in range(10_000)], (), 100).tokens.numpy(), minlength=100)
    assert counts.min() > 50
    assert counts.max() < 150


@given(st.lists(st.text(max_size=8), max_size=9), st.integers(1, 4))
def test_blocks_make_no_difference(texts: list[str], size: int) -> None:
    whole = hash_texts(texts, (3, 4), 99)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(character_ngrams, "FEW_CHARACTERS", -1)
        patched.setattr(character_ngrams, "BLOCK_TEXTS", size)
        cut = hash_texts(texts, (3, 4), 99)
    assert torch.equal(cut.tokens, whole.tokens)
    assert torch.equal(cut.starts, whole.starts)
