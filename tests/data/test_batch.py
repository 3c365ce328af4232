import numpy as np
import pytest
import torch

import oracles
from rails_ray.data.batch import PairSampler
from rails_ray.data.text import Queries
from rails_ray.encoders.character_ngrams import hash_texts

RELEVANT = [[0, 1], [1], [4], [0, 2, 4], [2]]  # item 3 answers nothing
QUERIES = Queries(
    [f"q{number}" for number in range(5)],
    np.concatenate([[0], np.cumsum([len(rows) for rows in RELEVANT])]),
    np.concatenate(RELEVANT),
)
QUERY_FEATURES = hash_texts(QUERIES.texts, (), 10**9)
ITEM_FEATURES = hash_texts([f"i{row}" for row in range(5)], (), 10**9)


def sampler(**options: int) -> PairSampler:
    defaults = {"batch_size": 12, "num_items": 4, "seed": 0}
    return PairSampler(QUERIES, QUERY_FEATURES, ITEM_FEATURES, **defaults | options)


def names(features, of) -> list[int]:
    """Which input each bag is: every text here has a bucket of its own."""
    own = {int(bucket): number for number, bucket in enumerate(of.buckets)}
    return [own[int(bucket)] for bucket in features.buckets]


@pytest.mark.parametrize("step", range(20))
def test_positives_answer_their_queries_and_accidental_hits_are_hidden(step: int) -> None:
    batch = sampler().batch(step)
    queries, rows = names(batch.queries, QUERY_FEATURES), names(batch.items, ITEM_FEATURES)
    for query, column in zip(queries, batch.positive.tolist(), strict=True):
        assert rows[column] in RELEVANT[query]
    expected = oracles.hidden_items(rows, batch.positive.tolist(), [RELEVANT[query] for query in queries])
    assert batch.is_hidden.tolist() == expected


def test_workers_share_the_items_and_divide_the_queries() -> None:
    whole = sampler().batch(3)
    parts = [sampler(rank=rank, num_workers=3).batch(3) for rank in range(3)]
    assert torch.equal(torch.cat([part.queries.buckets for part in parts]), whole.queries.buckets)
    assert torch.equal(torch.cat([part.positive for part in parts]), whole.positive)
    assert torch.equal(torch.cat([part.is_hidden for part in parts]), whole.is_hidden)
    for part in parts:
        assert torch.equal(part.items.buckets, whole.items.buckets)


def test_a_step_depends_on_seed_and_number_alone() -> None:
    late = list(sampler().batches(5, 7))
    assert torch.equal(late[0].positive, sampler().batch(5).positive)
    assert len(late) == 2
    assert not torch.equal(sampler(batch_size=100).batch(5).positive, sampler(batch_size=100, seed=1).batch(5).positive)


def test_items_that_answer_nothing_are_negatives_only() -> None:
    batches = [sampler(num_items=1, seed=seed).batch(0) for seed in range(20)]
    assert all(names(batch.items, ITEM_FEATURES) != [3] for batch in batches)  # then a batch would have no query
    together = [names(sampler(seed=seed).batch(0).items, ITEM_FEATURES) for seed in range(20)]
    assert any(3 in rows for rows in together)


def test_a_batch_that_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 5 workers, got 12"):
        sampler(num_workers=5)
