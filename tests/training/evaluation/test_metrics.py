import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.training.evaluation.metrics import attainable_precision, ndcg_of_queries, precision, recall_of_relevant


@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 8), st.data())
def test_shares_of_lists_equal_the_naive_loops(num_queries: int, length: int, k: int, data: st.DataObject) -> None:
    """Lists of any length beside k, that of an empty answer included."""
    line = st.lists(st.booleans(), min_size=length, max_size=length)
    lists = [data.draw(line) for _ in range(num_queries)]
    num_relevant = [max(sum(hits), 1) + data.draw(st.integers(0, 5)) for hits in lists]
    is_relevant, counts = np.array(lists, dtype=bool).reshape(num_queries, length), np.array(num_relevant)
    expected = oracles.ranking.shares_of_lists(lists, num_relevant, k)
    assert precision(is_relevant, k) == pytest.approx(expected["precision"])
    assert attainable_precision(is_relevant, counts, k) == pytest.approx(expected["attainable precision"])
    assert recall_of_relevant(is_relevant, counts, k) == pytest.approx(expected["recall of relevant"])
    gains = [oracles.ranking.ndcg(line, num, k) for line, num in zip(lists, num_relevant, strict=True)]
    assert ndcg_of_queries(is_relevant, counts, k).tolist() == pytest.approx(gains)


def test_a_perfect_list_of_a_query_with_few_relevant_items() -> None:
    """Both of two relevant items in five places: the divisors are 5, 2 and 2."""
    is_relevant, num_relevant = np.array([[True, True, False, False, False]]), np.array([2])
    assert precision(is_relevant, 5) == 0.4
    assert attainable_precision(is_relevant, num_relevant, 5) == 1
    assert recall_of_relevant(is_relevant, num_relevant, 5) == 1
    assert recall_of_relevant(is_relevant, num_relevant, 1) == 0.5
    assert attainable_precision(is_relevant, num_relevant, 1) == precision(is_relevant, 1) == 1


def test_a_list_that_ends_early_is_filled_up_with_misses() -> None:
    short, long = np.array([[True]]), np.array([[True, False, False, False]])
    for k in (1, 2, 4, 100):
        assert precision(short, k) == precision(long, k) == 1 / k


@given(st.integers(1, 6), st.data())
def test_longer_lists_find_more(length: int, data: st.DataObject) -> None:
    is_relevant = np.array([data.draw(st.lists(st.booleans(), min_size=length, max_size=length)) for _ in range(3)])
    num_relevant = np.full(3, length)
    shares = [recall_of_relevant(is_relevant, num_relevant, k) for k in range(1, length + 1)]
    assert shares == sorted(shares)
    assert attainable_precision(is_relevant, num_relevant, length) == shares[-1]


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: precision(np.array([[True]]), 0), "k must be at least 1, got 0"),
        (lambda: attainable_precision(np.array([[True]]), np.array([1]), -1), "k must be at least 1, got -1"),
        (
            lambda: attainable_precision(np.array([[True], [False]]), np.array([1, 0]), 1),
            "num_relevant must be at least 1 for each query, got 0",
        ),
        (
            lambda: recall_of_relevant(np.array([[False]]), np.array([0]), 1),
            "num_relevant must be at least 1 for each query, got 0",
        ),
    ],
)
def test_what_has_no_share(measure, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure()
