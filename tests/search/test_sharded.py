from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.kernels import top_k
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, Codes, ItemState, Tables, take
from rails_ray.search.candidates import NO_CERTIFICATE
from rails_ray.search.indexes.inverted import InvertedIndex
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods import Retriever
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.look_up import Inverted
from rails_ray.search.scan import scan
from rails_ray.search.sharded import merge, of_corpus
from rails_ray.search.spec import SearchResult, SearchSpec
from support.examples import random_states, small_mixture
from support.of_codes import full_search
from support.tried import tried


def exact(items: ItemState) -> Retriever:
    return BruteForce(small_mixture(), items)


def narrow(items: ItemState) -> Retriever:
    return Approximate(small_mixture(), items, CandidateLists(num_per_embedding=2))


def by_average(items: ItemState) -> Retriever:
    return Approximate(small_mixture(), items, CandidateLists(num_by_average=5))


def answers_of(
    query: AnyQuery,
    items: AnyItems,
    sizes: list[int],
    spec: SearchSpec,
    excluded: list[list[int]],
    retriever_of: Callable[..., Retriever] = exact,
) -> list[SearchResult]:
    answers = []
    first = 0
    for size in sizes:
        own = Exclusions.of([[row - first for row in rows if first <= row < first + size] for rows in excluded])
        retriever = retriever_of(take(items, slice(first, first + size)))
        found = retriever.search(query, SearchSpec(spec.k, spec.threshold, spec.at_least, own))
        answers.append(of_corpus(found, first))
        first += size
    return answers


@tried(30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 99), st.data())
def test_shards_of_any_size_give_the_answer_of_one(sizes: list[int], seed: int, data: st.DataObject) -> None:
    """Also where exclusion leaves some queries fewer than k items, or a shard none."""
    num_items = sum(sizes)
    query, items = random_states(3, num_items, seed=seed)
    excluded = [data.draw(st.lists(st.integers(0, num_items - 1), unique=True)) for _ in range(3)]
    spec = SearchSpec(data.draw(st.integers(1, num_items + 2)), mask=Exclusions.of(excluded))
    whole = exact(items).search(query, spec)
    merged = merge(answers_of(query, items, sizes, spec, excluded), spec, spec.num_left(3, num_items))
    assert merged.item_rows.tolist() == whole.item_rows[:, : merged.k].tolist()
    assert torch.allclose(merged.scores, whole.scores[:, : merged.k], atol=1e-6)
    assert torch.equal(merged.num_found(), whole.num_found())
    assert torch.equal(merged.is_truncated, whole.is_truncated)
    assert merged.gap(spec).tolist() == [0, 0, 0]


@pytest.mark.parametrize("order", ["any", "best shard first", "another best shard for each query"])
@tried(30)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    num_values=st.sampled_from([2, 50, 100_000]),
    k=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_long_lists_of_shards(order: str, sizes: list[int], num_values: int, k: int, seed: int) -> None:
    """Which are not read to their ends. Ties included, and lines in which items are hidden."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(num_values, (4, sum(sizes)), generator=generator).float()
    if order != "any":
        scores = scores.sort(dim=1, descending=True).values
    if order == "another best shard for each query":
        scores = torch.stack([line.roll(number * len(line) // 4) for number, line in enumerate(scores)])
    scores[1, ::3] = -torch.inf
    ends = list(accumulate(sizes))
    blocks = [(end - size, scores[:, end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    spec = SearchSpec(k)
    parts = [of_corpus(scan([(0, own)], spec, 4, own.shape[1]), first) for first, own in blocks]
    merged = merge(parts, spec, (scores > -torch.inf).sum(dim=1))
    for line, rows, num_found in zip(scores.tolist(), merged.item_rows.tolist(), merged.num_found(), strict=True):
        hidden = [row for row, score in enumerate(line) if score == -torch.inf]
        assert rows[:num_found] == oracles.ranking.top_k(line, k, hidden)


def test_long_lists_are_not_read_to_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few places are left that they are sorted, where a selection would be made of all of them."""
    scores = torch.rand(4, 4000, generator=torch.Generator().manual_seed(0))
    spec = SearchSpec(500)
    parts = [
        of_corpus(scan([(0, own)], spec, 4, 1000), 1000 * number) for number, own in enumerate(scores.split(1000, 1))
    ]
    monkeypatch.delattr(top_k, "merge")
    assert torch.equal(merge(parts, spec, torch.full((4,), 4000)).item_rows, top_k.select(scores, 500).item_rows)


def test_no_query() -> None:
    parts = [scan([(0, torch.empty(0, 300))], SearchSpec(200), 0, 300)] * 4
    assert merge(parts, SearchSpec(200), torch.zeros(0, dtype=torch.int64)).scores.shape == (0, 0)


def test_rows_of_a_shard_are_those_of_the_corpus() -> None:
    """But for places that hold none."""
    query, items = random_states(2, 4)
    found = of_corpus(exact(items).search(query, SearchSpec(3, mask=Exclusions.of([[0, 1, 2, 3], []]))), 10)
    assert found.item_rows[0].tolist() == [0, 0, 0]
    assert set(found.item_rows[1].tolist()) <= {10, 11, 12, 13}
    threshold = torch.tensor([-torch.inf, 2.0])
    found = of_corpus(exact(items).search(query, SearchSpec(3, threshold, mask=Exclusions.of([[0, 1], []]))), 10)
    assert set(found.item_rows[0].tolist()) == {12, 13}
    assert found.num_found().tolist() == [2, 0]
    assert found.is_truncated.tolist() == [False, False]


@given(st.integers(0, 99))
def test_merging_keeps_what_is_certified(seed: int) -> None:
    """The k-th merged score is compared with the largest bound of all shards."""
    query, items = random_states(3, 60, seed=seed)
    spec = SearchSpec(3)
    whole = exact(items).search(query, spec)
    answers = answers_of(query, items, [25, 5, 30], spec, [[], [], []], narrow)
    merged = merge(answers, spec, torch.full((3,), 60))
    gaps = merged.gap(spec).tolist()
    for line, gap in enumerate(gaps):
        assert merged.bound[line] == max(answer.bound[line] for answer in answers)
        assert merged.num_scored[line] == sum(answer.num_scored[line] for answer in answers)
        rows, expected = merged.item_rows[line].tolist(), whole.item_rows[line].tolist()
        missed = [score for row, score in zip(expected, whole.scores[line].tolist(), strict=True) if row not in rows]
        assert max(missed, default=-2) - merged.scores[line, -1].item() <= gap + 1e-6
        assert gap > 0 or rows == expected


@pytest.mark.parametrize("spec", [SearchSpec(3), SearchSpec(9, torch.full((2,), 0.1))])
def test_a_shard_that_cannot_know_makes_all_uncertain(spec: SearchSpec) -> None:
    query, items = random_states(2, 30)
    exact_part, narrow_part, unknown_part = (
        of_corpus(made(items).search(query, spec), first_row)
        for first_row, made in ((0, exact), (30, narrow), (60, by_average))
    )
    num_left = torch.full((2,), 60)
    known = merge([exact_part, narrow_part], spec, num_left)
    assert torch.equal(known.bound, narrow_part.bound)
    assert known.reasons == [None, None]
    unknown = merge([exact_part, unknown_part], spec, num_left)
    assert unknown.reasons == unknown_part.reasons == [NO_CERTIFICATE] * 2
    assert unknown.gap(spec).tolist() == [torch.inf, torch.inf]


def test_what_all_shards_together_left_out() -> None:
    """None of them had more than k, all together have."""
    query, items = random_states(2, 30)
    for spec in (SearchSpec(20), SearchSpec(20, torch.full((2,), -torch.inf))):
        parts = answers_of(query, items, [15, 15], spec, [[], list(range(11))])
        assert not any(part.is_truncated.any() for part in parts)
        assert merge(parts, spec, torch.tensor([30, 19])).is_truncated.tolist() == [True, False]


def random_codes(num_items: int, seed: int) -> tuple[Tables, Codes]:
    """Tables of halves, so that scores are exact and often equal."""
    generator = torch.Generator().manual_seed(seed)
    tables = Tables(torch.randint(-4, 5, (3, 2, 9), generator=generator) / 2, torch.ones(3))
    return tables, Codes(torch.randint(9, (num_items, 2), generator=generator))


@pytest.mark.parametrize("method", ["full", "inverted"])
@tried(30)
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

    spec = SearchSpec(k, mask=Exclusions.of(excluded))
    whole = retriever_of(items).search(query, spec)
    num_left = spec.num_left(3, num_items)
    merged = merge(answers_of(query, items, sizes, spec, excluded, retriever_of), spec, num_left)
    assert torch.equal(merged.num_found(), whole.num_found())
    assert torch.equal(merged.is_truncated, whole.is_truncated)
    assert torch.equal(merged.item_rows, whole.item_rows[:, : merged.k])
    assert torch.equal(merged.scores, whole.scores[:, : merged.k])
    assert torch.equal(merged.bound, whole.bound)
    assert torch.equal(merged.num_scored, whole.num_scored)
    assert method == "inverted" or merged.num_found().tolist() == [k] * 3


@tried(30)
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

    spec = SearchSpec(k)
    whole = retriever_of(items).search(query, spec)
    is_proved = whole.gap(spec) == 0
    full = full_search(items).search(query, spec)
    merged = merge(answers_of(query, items, sizes, spec, [[]] * 3, retriever_of), spec, torch.full((3,), sum(sizes)))
    for line, num_found in enumerate(whole.num_found().tolist()):
        assert merged.num_found()[line] >= num_found
        assert (merged.scores[line, :num_found] >= whole.scores[line, :num_found]).all()
        if merged.num_found()[line] == k and merged.gap(spec)[line] == 0:
            assert torch.equal(merged.item_rows[line], full.item_rows[line])
        if is_proved[line]:
            assert torch.equal(merged.item_rows[line], whole.item_rows[line])


def test_shards_that_find_few_give_a_short_list() -> None:
    items = Codes(torch.tensor([[0], [1], [1], [2]]))
    query = Tables(torch.tensor([[[0.1, 0.9, 0.2]]]), torch.ones(1))
    part = of_corpus(Inverted(items, InvertedIndex(items.codes, 3), 1, 4).search(query, SearchSpec(3)), 10)
    assert part.item_rows.tolist() == [[11, 12, 0]]
    merged = merge([part], SearchSpec(3), torch.tensor([4]))
    assert merged.item_rows.tolist() == [[11, 12]]
    assert merged.gap(SearchSpec(3)).tolist() == [torch.inf]
