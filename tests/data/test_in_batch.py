import numpy as np
import pytest
import torch

from rails_ray.data.batch import TrainingBatch
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.modules.encoders.character_ngrams import hash_texts
from support.cross_device_worker import ANSWERS, ITEMS, QUERIES, Case, model_of, sampler_of


def sampler(batch_size: int, *, seed: int = 0, rank: int = 0, num_workers: int = 1, **how: int) -> InBatchSampler:
    features = hash_texts(QUERIES, (), 10**6), hash_texts(ITEMS, (), 10**6)
    sizes = {"batch_size": batch_size, "seed": seed, "rank": rank, "num_workers": num_workers, **how}
    return InBatchSampler(Queries(QUERIES, ANSWERS), *features, **sizes)


def pairs_of(batch: TrainingBatch) -> list[tuple[int, int]]:
    """(query, item row) of each line; a query is known by its bag."""
    features = hash_texts(QUERIES, (), 10**6)
    bags = {tuple(features.take(torch.tensor([query])).tokens.tolist()): query for query in range(len(QUERIES))}
    lines = [
        bags[tuple(batch.queries.take(torch.tensor([line])).tokens.tolist())] for line in range(len(batch.queries))
    ]
    return list(zip(lines, batch.positive_rows.tolist(), strict=True))


ALL_PAIRS = sorted((query, int(row)) for query, rows in enumerate(ANSWERS) for row in rows)


@pytest.mark.parametrize(("batch_size", "sizes"), [(5, [5, 5, 4]), (14, [14]), (20, [14]), (1, [1] * 14)])
def test_an_epoch_has_each_pair_once_and_ends_with_what_is_left(batch_size: int, sizes: list[int]) -> None:
    batches = [sampler(batch_size).batch(step) for step in range(len(sizes))]
    assert [len(batch.positive) for batch in batches] == sizes
    assert sorted(pair for batch in batches for pair in pairs_of(batch)) == ALL_PAIRS
    following = [sampler(batch_size).batch(len(sizes) + step) for step in range(len(sizes))]
    assert sorted(pair for batch in following for pair in pairs_of(batch)) == ALL_PAIRS
    assert list(map(pairs_of, following)) != list(map(pairs_of, batches))  # in another order


@pytest.mark.parametrize("num_workers", [2, 3, 5])
@pytest.mark.parametrize("step", range(3))
def test_slices_make_up_the_global_batch(num_workers: int, step: int) -> None:
    whole = sampler(4).batch(step + 1)  # the last one has two pairs
    parts = [sampler(4, rank=rank, num_workers=num_workers).batch(step + 1) for rank in range(num_workers)]
    assert [pair for part in parts for pair in pairs_of(part)] == pairs_of(whole)
    assert whole.weight == 1 / len(whole.positive)
    assert {part.weight for part in parts} == {num_workers / len(whole.positive)}
    assert any(not len(part.positive) for part in parts) == (num_workers > len(whole.positive))


def test_items_of_a_batch_are_encoded_once_and_other_answers_are_no_negatives() -> None:
    batch = sampler(14).batch(0)
    assert batch.item_rows.tolist() == sorted(set(ANSWERS.rows.tolist()))
    assert len(batch.items) == len(batch.item_rows)
    roles = batch.roles()
    for line, (query, row) in enumerate(pairs_of(batch)):
        assert batch.item_rows[batch.positive[line]] == row
        assert batch.item_rows[roles.is_relevant[line]].tolist() == ANSWERS[query].tolist()
    assert torch.equal(roles.is_negative, ~roles.is_relevant)


def test_a_step_depends_on_seed_and_number_alone() -> None:
    used = sampler(5)
    for step in range(7):
        used.batch(step)
    assert pairs_of(used.batch(7)) == pairs_of(sampler(5).batch(7))
    assert pairs_of(sampler(5, seed=1).batch(7)) != pairs_of(used.batch(7))


def test_an_empty_slice_can_be_encoded() -> None:
    """By either kind of text encoder; what it gives is part of a gradient."""
    for name in ("towers dot", "transformer mixture", "transformer dot"):
        case = Case(name, batch="one empty")
        model = model_of(case)
        batch = sampler_of(case, model, rank=2, num_workers=3).batch(1)
        query, items = model.encode_queries(batch.queries), model.encode_items(batch.items)
        assert len(query) == len(items) == 0
        (query.components.sum() + items.components.sum()).backward()
        assert model.query_components.project.weight.grad.abs().sum() == 0


def test_no_query_is_left_out_of_a_data_set_with_one_answer_each() -> None:
    queries = Queries(QUERIES, ItemLists.of([[number % len(ITEMS)] for number in range(len(QUERIES))]))
    features = hash_texts(QUERIES, (), 10**6), hash_texts(ITEMS, (), 10**6)
    batches = [InBatchSampler(queries, *features, batch_size=4, seed=3).batch(step) for step in range(3)]
    assert np.concatenate([batch.relevance.item_row for batch in batches]).size == len(QUERIES)


def test_mixed_negatives_come_beside_the_pairs_items() -> None:
    plain, mixed = sampler(4), sampler(4, num_items=6)
    for step in range(5):
        one, other = plain.batch(step), mixed.batch(step)
        num_pairs = len(one.item_rows)
        assert torch.equal(other.item_rows[:num_pairs], one.item_rows)
        assert torch.equal(other.positive, one.positive)
        assert len(other.item_rows.unique()) == len(other.item_rows) == len(other.items)
    drawn = [row for step in range(200) for row in mixed.batch(step).item_rows.tolist()]
    assert set(drawn) == set(range(len(ITEMS)))


@pytest.mark.parametrize("num_items", [0, 6])
def test_corrected_negatives_stand_for_all_items_alike(num_items: int) -> None:
    """Weighted by its correction, every item that comes up does so as often as a uniform draw's."""
    drawn = sampler(7, num_items=num_items, is_corrected=True)
    counts, sizes, num_batches = np.zeros(len(ITEMS)), [], 2000
    for step in range(num_batches):
        batch = drawn.batch(step)
        counts[batch.item_rows] += np.exp(batch.log_weights.numpy())
        sizes.append(len(batch.item_rows))
        assert torch.equal(batch.roles().log_weights[0], batch.log_weights)
    expected = np.full(len(ITEMS), np.mean(sizes) / len(ITEMS))
    assert counts / num_batches == pytest.approx(expected, rel=0.1)
    assert sampler(7, num_items=num_items).batch(0).log_weights is None


def test_a_batch_of_all_pairs_corrects_none() -> None:
    batch = sampler(len(ALL_PAIRS), is_corrected=True).batch(0)
    assert batch.log_weights.unique().tolist() == pytest.approx([np.log(len(batch.item_rows) / len(ITEMS))], abs=1e-5)
