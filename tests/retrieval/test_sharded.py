import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import random_states, small_mixture
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.sharded import merge_shards, search_shard
from rails_ray.similarities.states import ItemState, QueryState, map_tensors
from rails_ray.top_k import Exclusions, TopK


def answers_of(
    query: QueryState, items: ItemState, sizes: list[int], k: int, excluded: list[list[int]]
) -> list[list[TopK]]:
    answers = []
    first = 0
    for size in sizes:
        part = map_tensors(lambda tensor, first=first, size=size: tensor[first : first + size], items)
        own = [[row - first for row in rows if first <= row < first + size] for rows in excluded]
        answers.append(search_shard(BruteForce(small_mixture(), part), size, first, query, k, own))
        first += size
    return answers


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 99), st.data())
def test_shards_of_any_size_give_the_answer_of_one(sizes: list[int], seed: int, data: st.DataObject) -> None:
    num_items = sum(sizes)
    query, items = random_states(3, num_items, seed=seed)
    excluded = [
        data.draw(st.lists(st.integers(0, num_items - 1), max_size=num_items - 1, unique=True)) for _ in range(3)
    ]
    k = num_items - max(len(rows) for rows in excluded)
    whole = BruteForce(small_mixture(), items).search(query, k, Exclusions.of(excluded))
    merged = merge_shards(answers_of(query, items, sizes, k, excluded), k)
    assert [one.item_rows[0].tolist() for one in merged] == whole.item_rows.tolist()
    assert torch.allclose(torch.cat([one.scores for one in merged]), whole.scores, atol=1e-6)


def test_a_shard_whose_items_are_all_excluded_answers_nothing() -> None:
    query, items = random_states(2, 4)
    found = search_shard(BruteForce(small_mixture(), items), 4, 10, query, 3, [[0, 1, 2, 3], []])
    assert found[0].item_rows.shape == (1, 0)
    assert set(found[1].item_rows[0].tolist()) <= {10, 11, 12, 13}


def test_k_above_what_the_shards_hold() -> None:
    query, items = random_states(2, 4)
    answers = answers_of(query, items, [2, 2], 4, [[1], []])
    with pytest.raises(ValueError, match="k must be at most the 3 items searched and not excluded, got 4"):
        merge_shards(answers, 4)
