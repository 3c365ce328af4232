"""Recall against brute force, and the choice among searches: as loops over pairs have them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.recall
from rails_ray.kernels.top_k import TopK
from rails_ray.search.measured import SearchFigures, choose, recalls

NOTHING = (0, -math.inf)


def listed(pairs: list[tuple[int, float]], places: int) -> tuple[list[float], list[int]]:
    padded = [*pairs, *[NOTHING] * (places - len(pairs))]
    return [score for _, score in padded], [row for row, _ in padded]


def top(lines: list[list[tuple[int, float]]], places: int) -> TopK:
    made = [listed(line, places) for line in lines]
    return TopK(torch.tensor([own for own, _ in made]), torch.tensor([rows for _, rows in made]))


@given(st.data())
def test_recall_is_that_of_loops(data: st.DataObject) -> None:
    """Scores are few, so that many tie."""
    num_items, k = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 6))
    lines = data.draw(st.integers(1, 3))
    found, best = [], []
    for _ in range(lines):
        scores = [(row, data.draw(st.sampled_from([0.0, 0.5, 1.0, -2.0]))) for row in range(num_items)]
        order = sorted(scores, key=lambda pair: (-pair[1], pair[0]))
        best.append(order[:k])
        found.append([pair for pair in order if data.draw(st.booleans())][:k])
    measured = recalls(top(found, k), top(best, k))
    assert measured == pytest.approx([oracles.recall.recall(*own) for own in zip(found, best, strict=True)])


def test_a_tie_with_the_last_of_the_best_is_as_good() -> None:
    best = top([[(0, 0.9), (1, 0.5)]], 2)
    assert recalls(top([[(0, 0.9), (7, 0.5)]], 2), best) == [1.0]
    assert recalls(top([[(0, 0.9), (7, 0.4)]], 2), best) == [0.5]
    assert recalls(top([[]], 2), best) == [0.0]


def search(name: str, low: float, ms: float) -> SearchFigures:
    return SearchFigures(name, {}, 10, 100, min(low + 0.01, 1.0), low, 1.0, 0.0, ms)


LOWS_AND_TIMES = [("a", 1.0, 20.0), ("b", 0.995, 3.0), ("c", 0.991, 2.0), ("d", 0.97, 0.5), ("e", 0.97, 0.4)]


@pytest.mark.parametrize(("target", "best"), [(1.0, "a"), (0.992, "b"), (0.99, "c"), (0.5, "e")])
def test_the_fastest_that_reaches_the_target_is_chosen(target: float, best: str) -> None:
    found = choose([search(*own) for own in LOWS_AND_TIMES], target).best
    assert found is not None
    assert found.method == best == oracles.recall.fastest(LOWS_AND_TIMES, target)


def test_the_nearest_is_the_one_whose_interval_begins_highest() -> None:
    chosen = choose([search(*own) for own in LOWS_AND_TIMES[3:]], 0.99)
    assert chosen.best is None
    assert chosen.nearest is not None
    assert chosen.nearest.method == "e", "the faster of two that are as near"
    assert choose([search("a", 1.0, 1.0)], 0.99).nearest is None
