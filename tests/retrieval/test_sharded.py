from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rails_ray.indexes.inverted import InvertedIndex
from rails_ray.retrieval import Found, Retriever
from rails_ray.retrieval.approximate import Approximate, Widths
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.look_up import Inverted
from rails_ray.retrieval.sharded import merge_shards, merge_shards_above, search_shard, search_shard_above
from rails_ray.similarities.states import AnyItems, AnyQuery, Codes, ItemState, Tables, map_tensors
from rails_ray.top_k import Exclusions
from support.examples import random_states, small_mixture
from support.of_codes import full_search


def exact(items: ItemState) -> Retriever:
    return BruteForce(small_mixture(), items)


def answers_of(
    query: AnyQuery,
    items: AnyItems,
    sizes: list[int],
    k: int,
    excluded: list[list[int]],
    retriever_of: Callable[..., Retriever] = exact,
) -> list[list[Found]]:
    answers = []
    first = 0
    for size in sizes:
        part = map_tensors(lambda tensor, first=first, size=size: tensor[first : first + size], items)
        own = [[row - first for row in rows if first <= row < first + size] for rows in excluded]
        answers.append(search_shard(retriever_of(part), size, first, query, k, own))
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
    whole = BruteForce(small_mixture(), items).search(query, k, Exclusions.of(excluded)).top_k
    merged = merge_shards(answers_of(query, items, sizes, k, excluded), k)
    assert [one.top_k.item_rows[0].tolist() for one in merged] == whole.item_rows.tolist()
    assert torch.allclose(torch.cat([one.top_k.scores for one in merged]), whole.scores, atol=1e-6)
    assert [one.certificate.gap(one.top_k.scores[:, -1]).item() for one in merged] == [0, 0, 0]


def test_a_shard_whose_items_are_all_excluded_answers_nothing() -> None:
    query, items = random_states(2, 4)
    found = search_shard(BruteForce(small_mixture(), items), 4, 10, query, 3, [[0, 1, 2, 3], []])
    assert found[0].top_k.item_rows.shape == (1, 0)
    assert set(found[1].top_k.item_rows[0].tolist()) <= {10, 11, 12, 13}


def test_k_above_what_the_shards_hold() -> None:
    query, items = random_states(2, 4)
    answers = answers_of(query, items, [2, 2], 4, [[1], []])
    with pytest.raises(ValueError, match="k must be at most the 3 items searched and not excluded, got 4"):
        merge_shards(answers, 4)


def narrow(items: ItemState) -> Retriever:
    return Approximate(small_mixture(), items, Widths(num_per_embedding=2))


@given(st.integers(0, 99))
def test_merging_keeps_what_is_certified(seed: int) -> None:
    """The k-th merged score is compared with the largest bound of all shards."""
    query, items = random_states(3, 60, seed=seed)
    whole = BruteForce(small_mixture(), items).search(query, 3).top_k
    answers = answers_of(query, items, [25, 5, 30], 3, [[], [], []], narrow)
    for line, found in enumerate(merge_shards(answers, 3)):
        bounds = [answer[line].certificate.bound for answer in answers]
        assert found.certificate.bound == max(bounds)
        assert found.num_scored == sum(answer[line].num_scored for answer in answers)
        last = found.top_k.scores[:, -1]
        gap = found.certificate.gap(last).item()
        rows, expected = found.top_k.item_rows[0].tolist(), whole.item_rows[line].tolist()
        missed = [score for row, score in zip(expected, whole.scores[line].tolist(), strict=True) if row not in rows]
        assert max(missed, default=-2) - last.item() <= gap + 1e-6
        assert gap > 0 or rows == expected


def test_a_shard_that_cannot_know_makes_all_uncertain() -> None:
    query, items = random_states(2, 30)
    known = answers_of(query, items, [30], 3, [[], []])[0]

    def by_average(items: ItemState) -> Retriever:
        return Approximate(small_mixture(), items, Widths(num_by_average=5))

    unknown = answers_of(query, items, [30], 3, [[], []], by_average)[0]
    merged = merge_shards([known, unknown], 3)
    assert [found.certificate.bound for found in merged] == [None, None]
    assert merged[0].certificate.reason == unknown[0].certificate.reason


def test_a_shard_answers_with_as_many_items_above_as_it_has() -> None:
    query, items = random_states(2, 4)
    threshold = torch.tensor([-torch.inf, 2.0])
    found = search_shard_above(BruteForce(small_mixture(), items), 10, query, threshold, 3, 0, [[0, 1], []])
    assert set(found[0].above.top_k.item_rows[0].tolist()) == {12, 13}
    assert found[1].above.top_k.item_rows.shape == (1, 0)
    assert [one.above.is_truncated.tolist() for one in found] == [[False], [False]]


def test_merging_keeps_what_is_certified_of_items_above() -> None:
    """The largest bound, or that nothing is known."""
    query, items = random_states(2, 30)
    threshold = torch.full((2,), 0.1)

    def by_average(items: ItemState) -> Retriever:
        return Approximate(small_mixture(), items, Widths(num_by_average=5))

    exact_part, narrow_part, unknown_part = (
        search_shard_above(made(items), first_row, query, threshold, 9, 0, [[], []])
        for first_row, made in ((0, exact), (30, narrow), (60, by_average))
    )
    merged = merge_shards_above([exact_part, narrow_part], threshold, 9, 0)
    assert [found.certificate.bound for found in merged] == [found.certificate.bound for found in narrow_part]
    unknown = merge_shards_above([exact_part, unknown_part], threshold, 9, 0)
    assert [found.gap(threshold[:1], 0) for found in unknown] == [None, None]


def random_codes(num_items: int, seed: int) -> tuple[Tables, Codes]:
    """Tables of halves, so that scores are exact and often equal."""
    generator = torch.Generator().manual_seed(seed)
    tables = Tables(torch.randint(-4, 5, (3, 2, 9), generator=generator) / 2, torch.ones(3))
    return tables, Codes(torch.randint(9, (num_items, 2), generator=generator))


@pytest.mark.parametrize("method", ["full", "inverted"])
@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 99), data=st.data())
def test_shards_of_codes_give_the_answer_of_one(method: str, sizes: list[int], seed: int, data: st.DataObject) -> None:
    """Ties included. An inverted search of a shard finds what that of the corpus finds there: also fewer than k."""
    num_items = sum(sizes)
    query, items = random_codes(num_items, seed)
    k = data.draw(st.integers(1, num_items))
    excluded = [data.draw(st.lists(st.integers(0, num_items - 1), max_size=num_items - k)) for _ in range(3)]
    num_probes = data.draw(st.integers(1, 9))

    def retriever_of(part: Codes) -> Retriever:
        if method == "full":
            return full_search(part)
        return Inverted(part, InvertedIndex(part.codes, 9), num_probes, num_items)

    whole = retriever_of(items).search(query, k, Exclusions.of(excluded))
    merged = merge_shards(answers_of(query, items, sizes, k, excluded, retriever_of), k, may_be_short=True)
    for line, found in enumerate(merged):
        num_found = int(whole.top_k.num_found()[line])
        assert found.top_k.item_rows[0].tolist() == whole.top_k.item_rows[line, :num_found].tolist()
        assert found.top_k.scores[0].tolist() == whole.top_k.scores[line, :num_found].tolist()
        assert found.certificate.bound == whole.certificate.bound[line]
        assert method == "full" or found.num_scored == whole.num_scored[line]
        assert method == "inverted" or num_found == k


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 99), data=st.data())
def test_shards_with_few_candidates_find_what_one_would_or_better(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    """Each scores so many of its own, those that one machine would have among them; what is proved is the same."""
    query, items = random_codes(sum(sizes), seed)
    num_candidates = data.draw(st.integers(1, sum(sizes)))
    k, num_probes = data.draw(st.integers(1, num_candidates)), data.draw(st.integers(1, 9))

    def retriever_of(part: Codes) -> Retriever:
        return Inverted(part, InvertedIndex(part.codes, 9), num_probes, num_candidates)

    whole = retriever_of(items).search(query, k)
    is_proved = whole.certificate.gap(whole.top_k.scores[:, -1]) == 0
    full = full_search(items).search(query, k).top_k
    merged = merge_shards(answers_of(query, items, sizes, k, [[]] * 3, retriever_of), k, may_be_short=True)
    for line, found in enumerate(merged):
        num_found = int(whole.top_k.num_found()[line])
        scores = found.top_k.scores[0]
        assert len(scores) >= num_found
        assert (scores[:num_found] >= whole.top_k.scores[line, :num_found]).all()
        if len(scores) == k and found.certificate.gap(scores[-1:]) == 0:
            assert torch.equal(found.top_k.item_rows[0], full.item_rows[line])
        if is_proved[line]:
            assert torch.equal(found.top_k.item_rows[0], whole.top_k.item_rows[line])


def test_a_short_list_is_an_error_unless_it_may_be() -> None:
    items = Codes(torch.tensor([[0], [1], [1], [2]]))
    query = Tables(torch.tensor([[[0.1, 0.9, 0.2]]]), torch.ones(1))
    answers = [search_shard(Inverted(items, InvertedIndex(items.codes, 3), 1, 4), 4, 10, query, 3, [[]])]
    assert answers[0][0].top_k.item_rows.tolist() == [[11, 12]]
    with pytest.raises(ValueError, match="k must be at most the 2 items searched and not excluded, got 3"):
        merge_shards(answers, 3)
    assert merge_shards(answers, 3, may_be_short=True)[0].top_k.item_rows.tolist() == [[11, 12]]
