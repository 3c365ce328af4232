from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.losses
from rails_ray.data.buckets import BucketBatch, BucketSampler, positives_of
from rails_ray.data.queries import ItemLists
from rails_ray.modules.encoders.solar import InputVectors

BUCKETS = np.array([2, 0, 2, 1], dtype=np.int32)
RELEVANT = ItemLists.of([[0, 2], [1], [3, 0, 1], [2, 1], [3]])


def sampler(batch_size: int, *, seed: int = 0) -> BucketSampler:
    """Queries are their numbers."""
    return BucketSampler(RELEVANT, InputVectors(torch.arange(5.0)[:, None]), BUCKETS, batch_size=batch_size, seed=seed)


def queries_of(batch: BucketBatch) -> list[int]:
    return [int(number) for number in batch.queries.values[:, 0]]


@given(st.integers(1, 4), st.data())
def test_positives_are_the_or_of_the_codes(num_buckets: int, data: st.DataObject) -> None:
    buckets = data.draw(st.lists(st.integers(0, num_buckets - 1), min_size=1, max_size=6))
    relevant = data.draw(st.lists(st.lists(st.integers(0, len(buckets) - 1), max_size=5), max_size=4))
    positives = positives_of(ItemLists.of(relevant), np.array(buckets, dtype=np.int32))
    dense = torch.zeros(len(relevant), num_buckets, dtype=torch.int64)
    dense.index_put_(tuple(positives), torch.ones(len(positives.query), dtype=torch.int64), accumulate=True)
    assert dense.tolist() == oracles.losses.bucket_targets(
        relevant, buckets, num_buckets
    )  # a pair met twice would be 2


@pytest.mark.parametrize(("batch_size", "sizes"), [(2, [2, 2, 1]), (5, [5]), (9, [5]), (1, [1] * 5)])
def test_an_epoch_has_each_query_once_and_ends_with_what_is_left(batch_size: int, sizes: list[int]) -> None:
    made = sampler(batch_size)
    epochs = []
    for epoch in range(4):
        batches = [made.batch(epoch * len(sizes) + place) for place in range(len(sizes))]
        assert [len(batch.queries) for batch in batches] == sizes
        epochs.append([query for batch in batches for query in queries_of(batch)])
        assert sorted(epochs[-1]) == list(range(5))
    assert len({tuple(order) for order in epochs}) > 1


def test_a_batch_has_the_positive_buckets_of_its_queries() -> None:
    targets = oracles.losses.bucket_targets(list(map(list, RELEVANT)), BUCKETS.tolist(), 3)
    for step in range(6):
        batch = sampler(2).batch(step)
        pairs = sorted(zip(*(column.tolist() for column in batch.positives), strict=True))
        expected = [
            (line, bucket)
            for line, query in enumerate(queries_of(batch))
            for bucket in range(3)
            if targets[query][bucket]
        ]
        assert pairs == expected


class Drawn(NamedTuple):
    queries: list[int]
    positives: list[list[int]]


def drawn(made: BucketSampler, step: int) -> Drawn:
    batch = made.batch(step)
    return Drawn(queries_of(batch), [column.tolist() for column in batch.positives])


def test_a_batch_depends_on_the_seed_and_its_step_alone() -> None:
    used = sampler(2)
    forwards = [drawn(used, step) for step in range(12)]
    assert [drawn(used, step) for step in reversed(range(12))] == forwards[::-1]
    assert [drawn(sampler(2), step) for step in range(12)] == forwards
    assert [drawn(sampler(2, seed=1), step) for step in range(12)] != forwards


def test_a_batch_moves_whole() -> None:
    moved = sampler(2).batch(0).to("meta")
    assert {tensor.device.type for tensor in (moved.queries.values, *moved.positives)} == {"meta"}


def test_a_query_without_an_answer_is_refused() -> None:
    features = InputVectors(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="each query must have at least 1 relevant item, got none for query 1"):
        BucketSampler(ItemLists.of([[0], [], []]), features, BUCKETS, batch_size=2, seed=0)
