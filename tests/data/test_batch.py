import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.data.batch import PairSampler, TrainingBatch, WindowSampler
from rails_ray.data.dataset import Texts
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.modules.encoders.character_ngrams import hash_texts
from support.examples import window_sampler

RELEVANT = [[0, 1], [1], [4], [0, 2, 4], [2]]  # item 3 answers nothing
QUERIES = Queries(Texts(f"q{number}" for number in range(5)), ItemLists.of(RELEVANT))
QUERY_FEATURES = hash_texts(QUERIES.inputs, (), 10**9)
ITEM_FEATURES = hash_texts([f"i{row}" for row in range(5)], (), 10**9)


def sampler(**options: int) -> PairSampler:
    defaults = {"batch_size": 12, "num_items": 4, "seed": 0}
    return PairSampler(QUERIES, QUERY_FEATURES, ITEM_FEATURES, **defaults | options)


def names(features, of) -> list[int]:
    """Which input each bag is: every text here has a bucket of its own."""
    own = {int(bucket): number for number, bucket in enumerate(of.tokens)}
    return [own[int(bucket)] for bucket in features.tokens]


@pytest.mark.parametrize("step", range(20))
def test_positives_answer_their_queries_and_accidental_hits_are_hidden(step: int) -> None:
    batch = sampler().batch(step)
    queries, rows = names(batch.queries, QUERY_FEATURES), names(batch.items, ITEM_FEATURES)
    for query, column in zip(queries, batch.positive.tolist(), strict=True):
        assert rows[column] in RELEVANT[query]
    expected = oracles.ranking.hidden_items(rows, batch.positive.tolist(), [RELEVANT[query] for query in queries])
    assert batch.roles().is_hidden.tolist() == expected


def test_workers_share_the_items_and_divide_the_queries() -> None:
    whole = sampler().batch(3)
    parts = [sampler(rank=rank, num_workers=3).batch(3) for rank in range(3)]
    assert torch.equal(torch.cat([part.queries.tokens for part in parts]), whole.queries.tokens)
    assert torch.equal(torch.cat([part.positive for part in parts]), whole.positive)
    assert torch.equal(torch.cat([part.roles().is_hidden for part in parts]), whole.roles().is_hidden)
    for part in parts:
        assert torch.equal(part.items.tokens, whole.items.tokens)
        assert part.weight == 3 / len(whole.positive)


@pytest.mark.parametrize("make", [sampler, window_sampler], ids=["pairs", "windows"])
def test_a_step_depends_on_seed_and_number_alone(make) -> None:
    used = make()
    for step in range(5):
        used.batch(step)
    assert same(used.batch(5), make().batch(5))
    assert not same(make().batch(5), make().batch(6))
    assert not same(make().batch(5), make(seed=1).batch(5))


def same(a: TrainingBatch, b: TrainingBatch) -> bool:
    return all(map(torch.equal, tensors_of(a), tensors_of(b)))


def tensors_of(batch: TrainingBatch) -> list[torch.Tensor]:
    found = [batch.positive, batch.roles().is_hidden]
    for features in (batch.queries, batch.items):
        of = [features] if isinstance(features, torch.Tensor) else vars(features).values()
        found += [tensor for tensor in of if tensor is not None]
    return found


def test_items_that_answer_nothing_are_negatives_only() -> None:
    batches = [sampler(num_items=1, seed=seed).batch(0) for seed in range(20)]
    assert all(names(batch.items, ITEM_FEATURES) != [3] for batch in batches)  # then a batch would have no query
    together = [names(sampler(seed=seed).batch(0).items, ITEM_FEATURES) for seed in range(20)]
    assert any(3 in rows for rows in together)


@pytest.mark.parametrize("make", [sampler, window_sampler], ids=["pairs", "windows"])
def test_a_batch_that_cannot_be_divided(make) -> None:
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 5 workers, got 12"):
        make(batch_size=12, num_workers=5)


def windows_of(batch: TrainingBatch) -> list[list[tuple[int, int]]]:
    """(item, item asked for after it) of each position asked of each window."""
    length = batch.queries.rows.shape[1]
    windows: list[list[tuple[int, int]]] = [[] for _ in range(len(batch.queries))]
    for query, place in enumerate(batch.queries.asked.tolist()):
        window, position = divmod(place, length)
        assert position == len(windows[window])  # from the first one on, none left out
        windows[window].append((int(batch.queries.rows[window, position]), int(batch.items[batch.positive[query]])))
    return windows


LONGEST = 9  # items of a history


@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=7), st.integers(1, 6), st.integers(1, 5), st.integers())
def test_a_window_is_a_piece_of_a_history_and_asks_for_the_very_next_items(
    lengths: list[int], max_length: int, batch_size: int, seed: int
) -> None:
    """User u interacted with items 10 u, 10 u + 1 and so on, so that an item tells its user and its place."""
    histories = Visits.of([list(range(10 * user, 10 * user + length)) for user, length in enumerate(lengths)])
    next_rows = np.array([10 * user + length for user, length in enumerate(lengths)])
    sampler = WindowSampler(
        histories,
        next_rows,
        num_corpus_items=10 * len(lengths),
        max_length=max_length,
        batch_size=batch_size,
        num_items=3,
        seed=abs(seed),
    )
    users = []
    for step in range(2 * len(lengths)):
        for window in windows_of(sampler.batch(step)):
            first = window[0][0]
            user = first // 10
            users.append(user)
            assert window == [(row, row + 1) for row in range(first, first + min(lengths[user], max_length))]
            assert window[-1][1] <= next_rows[user]
    for first in range(0, 2 * batch_size * len(lengths), len(lengths)):  # each epoch
        assert sorted(users[first : first + len(lengths)]) == list(range(len(lengths)))


def test_users_come_in_another_order_in_each_epoch() -> None:
    rows = np.arange(6)
    histories = Visits.of(rows.reshape(6, 1).tolist())
    options = {"num_corpus_items": 6, "max_length": 1, "batch_size": 6, "num_items": 1, "seed": 0}
    sampler = WindowSampler(histories, rows, **options)
    epochs = {tuple(sampler.batch(step).queries.rows.flatten().tolist()) for step in range(4)}
    assert len(epochs) == 4


def test_windows_of_a_long_history_begin_anywhere() -> None:
    sampler = WindowSampler(
        Visits.of([[0, 1, 2, 3]]),
        np.array([4]),
        num_corpus_items=5,
        max_length=2,
        batch_size=1,
        num_items=1,
        seed=0,
    )
    assert {windows_of(sampler.batch(step))[0][0][0] for step in range(40)} == {0, 1, 2}


@pytest.mark.parametrize("step", range(5))
def test_a_shared_negative_that_is_the_positive_is_hidden(step: int) -> None:
    batch = window_sampler().batch(step)
    negatives, positives = batch.items[: batch.num_shared].tolist(), batch.items[batch.positive].tolist()
    assert batch.num_shared == 5
    assert set(negatives) <= set(range(9))
    assert batch.roles().is_hidden.tolist() == [[row == own for row in negatives] + [False] for own in positives]


@pytest.mark.parametrize("num_workers", [2, 3, 6])
def test_slices_make_up_the_global_batch_and_weights_its_mean(num_workers: int) -> None:
    whole = window_sampler().batch(3)
    parts = [window_sampler(rank=rank, num_workers=num_workers).batch(3) for rank in range(num_workers)]
    assert whole.weight == 1 / len(whole.positive)
    assert len({len(part.positive) for part in parts}) > 1  # or weights would not matter
    assert [window for part in parts for window in windows_of(part)] == windows_of(whole)
    assert torch.equal(torch.cat([part.roles().is_hidden for part in parts]), whole.roles().is_hidden)
    for part in parts:
        assert torch.equal(part.items[: part.num_shared], whole.items[: whole.num_shared])
    # Any measure of a query, here its positive's row: the mean over workers of weighted sums is the mean over all.
    sums = [part.weight * part.items[part.positive].double().sum() for part in parts]
    assert sum(sums) / num_workers == pytest.approx(whole.items[whole.positive].double().mean())


def test_an_item_of_a_batch_is_encoded_once() -> None:
    own = window_sampler().batch(0).items[5:].tolist()
    assert own == sorted(set(own))


@pytest.mark.parametrize(("shared_by", "groups"), [("history", 6), ("query", 19)])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_groups_of_workers_are_those_of_the_whole(shared_by: str, groups: int, num_workers: int) -> None:
    whole = window_sampler(shared_by=shared_by).batch(3)
    own = [
        window_sampler(shared_by=shared_by, rank=rank, num_workers=num_workers).batch(3) for rank in range(num_workers)
    ]
    drawn = [part.items[part.groups.negatives] for part in own]
    assert torch.equal(torch.cat(drawn), whole.items[whole.groups.negatives])
    for part in own:
        parts = part.groups.parts()
        assert [slice(0, 0) if not len(part.positive) else parts[0].start, parts[-1].stop] == [0, len(part.positive)]
        assert part.groups.is_one_each == (shared_by == "query")
    if num_workers == 1:
        assert whole.groups.negatives.shape == (len(whole.positive) if shared_by == "query" else groups, 5)
        assert whole.num_shared == 0


def test_negatives_of_groups_are_uniform_and_differ() -> None:
    sampler = window_sampler(shared_by="history", num_items=50)
    drawn = torch.cat([batch.items[batch.groups.negatives] for batch in map(sampler.batch, range(40))])
    assert torch.bincount(drawn.flatten(), minlength=9).double().div(drawn.numel()).sub(1 / 9).abs().max() < 0.01
    assert len(drawn.unique(dim=0)) == len(drawn)
