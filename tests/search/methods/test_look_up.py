from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.codes
import oracles.ranking
import oracles.scores
from rails_ray.modules.similarities.states import Codes, Tables, take
from rails_ray.search.indexes.inverted import InvertedIndex
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods import Retriever, look_up
from rails_ray.search.methods.look_up import Inverted, Posted
from rails_ray.search.spec import SearchResult, SearchSpec
from support.of_codes import full_search
from support.tried import tried

a_shape = st.tuples(  # B, X, K, R, seed
    *(st.integers(0, 3), st.integers(1, 30), st.integers(1, 4), st.integers(1, 7), st.integers(0, 99))
)


def random_case(
    b: int = 3, x: int = 200, k: int = 4, r: int = 20, seed: int = 0, is_exact: bool = False
) -> tuple[Tables, Codes]:
    """Tables of normal numbers, or of halves, whose sums are exact and often equal; codes."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(b, k, r, generator=generator)
    tables = tables.mul(2).round().div(2) if is_exact else tables
    return Tables(tables, torch.ones(b)), Codes(torch.randint(r, (x, k), generator=generator))


def inverted(items: Codes, num_probes: int, num_candidates: int, num_buckets: int = 20) -> Inverted:
    return Inverted(items, InvertedIndex(items.codes, num_buckets), num_probes, num_candidates)


def scores_of(query: Tables, items: Codes) -> list[list[float]]:
    return [[oracles.scores.look_up(own, code) for code in items.codes.tolist()] for own in query.tables.tolist()]


def recall(found: SearchResult, best: SearchResult) -> float:
    hits = (found.item_rows[:, :, None] == best.item_rows[:, None]).any(dim=2)
    return (hits & (found.scores > -torch.inf)).double().mean().item()


@tried(60)
@given(a_shape, st.booleans(), st.data())
def test_what_is_found_is_right_and_what_is_proved_is_true(
    shape: tuple[int, int, int, int, int], is_exact: bool, data: st.DataObject
) -> None:
    """The first k candidates by U, by their scores; the bound; an answer that is called exact, ties included."""
    query, items = random_case(*shape, is_exact=is_exact)
    k = data.draw(st.integers(1, len(items)))
    num_probes, num_candidates = data.draw(st.integers(1, shape[3])), data.draw(st.integers(k, len(items) + 2))
    left = len(items) - k
    excluded = [data.draw(st.lists(st.integers(0, len(items) - 1), max_size=left)) for _ in range(len(query))]
    retriever = inverted(items, num_probes, num_candidates, shape[3])
    spec = SearchSpec(k, mask=Exclusions.of(excluded))
    found = retriever.search(query, spec)
    posted = Posted(query, num_probes).buckets.tolist()
    gaps = found.gap(spec).tolist()
    for line, (scores, out) in enumerate(zip(scores_of(query, items), excluded, strict=True)):
        num_found = int(found.num_found()[line])
        rows = found.item_rows[line].tolist()
        touched = [
            row
            for row, code in enumerate(items.codes.tolist())
            if row not in out and any(own in best for own, best in zip(code, posted[line], strict=True))
        ]
        assert num_found == min(k, len(touched), num_candidates)
        assert found.num_scored[line] == min(len(touched), num_candidates)
        assert len(set(rows[:num_found])) == num_found
        assert set(rows[:num_found]) <= set(touched)
        assert rows[num_found:] == [0] * (k - num_found)
        right = [scores[row] for row in rows[:num_found]]
        assert found.scores[line, :num_found].tolist() == pytest.approx(right, abs=1e-5)
        bound = found.bound[line].item()
        missed = [row for row in range(len(scores)) if row not in out and row not in rows[:num_found]]
        assert all(scores[row] < bound for row in missed if row not in touched)
        if num_candidates >= len(touched):
            uppers = [
                oracles.codes.upper_bound(query.tables[line].tolist(), posted[line], items.codes[row].tolist())
                for row in missed
                if row not in touched
            ]
            assert bound == pytest.approx(max(uppers), abs=1e-4) if uppers else bound == -torch.inf
            assert rows[:num_found] == oracles.ranking.top_k(
                scores, k, [row for row in range(len(scores)) if row not in touched]
            )
        expected = oracles.ranking.top_k(scores, k, out)
        if gaps[line] == 0:
            assert rows == expected
        worst = found.scores[line, -1].item()
        assert all(scores[row] - worst <= gaps[line] + 1e-6 for row in set(expected) - set(rows[:num_found]))
    if retriever.is_exact:
        assert gaps == [0] * len(query)


@tried(60)
@given(a_shape, st.booleans())
def test_the_bound_is_above_every_score(shape: tuple[int, int, int, int, int], is_exact: bool) -> None:
    """U, rounding included, of items in any number of posted buckets; and hardly above it."""
    query, items = random_case(*shape, is_exact=is_exact)
    for num_probes in range(1, shape[3] + 1):
        posted = Posted(query, num_probes)
        found = InvertedIndex(items.codes, shape[3]).candidates(posted.buckets, posted.weights, len(items)).top_k
        bounds = posted.bounds(found.scores)
        scores = full_search(items).scores(query).gather(1, found.item_rows)
        assert (scores < bounds)[found.scores > -torch.inf].all()
        for line, buckets in enumerate(posted.buckets.tolist()):
            for row, bound in zip(
                found.item_rows[line, : found.num_found()[line]].tolist(), bounds[line].tolist(), strict=False
            ):
                upper = oracles.codes.upper_bound(query.tables[line].tolist(), buckets, items.codes[row].tolist())
                assert bound == pytest.approx(upper, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_bounds_of_tables_of_any_size(scale: float) -> None:
    query, items = random_case(x=2000, k=16, seed=1)
    query = Tables(query.tables * scale, query.temperature)
    for num_probes in (1, 4, 19):
        posted = Posted(query, num_probes)
        found = InvertedIndex(items.codes, 20).candidates(posted.buckets, posted.weights, 2000).top_k
        scores = full_search(items).scores(query).gather(1, found.item_rows)
        assert (scores < posted.bounds(found.scores))[found.scores > -torch.inf].all()


def test_more_probes_and_more_candidates_never_lower_the_recall() -> None:
    query, items = random_case(b=5, x=500)
    best = full_search(items).search(query, SearchSpec(20))
    last = 0.0
    for num_probes in range(1, 21):
        now = recall(inverted(items, num_probes, 500).search(query, SearchSpec(20)), best)
        assert now >= last
        last = now
    assert last == 1.0
    last = 0.0
    for num_candidates in (20, 30, 50, 100, 500):
        now = recall(inverted(items, 4, num_candidates).search(query, SearchSpec(20)), best)
        assert now >= last
        last = now


def test_an_answer_is_proved_with_few_scored() -> None:
    """Where a few buckets stand out, as after training."""
    query, items = random_case(x=2000, k=8)
    query.tables.sub_(9).sigmoid_()
    for line in range(3):  # items 0, 1, 2 of the first query, 3, 4, 5 of the second ..
        for row in range(3 * line, 3 * line + 3):
            query.tables[line, torch.arange(8), items.codes[row]] = 0.9
    found = inverted(items, 4, 50).search(query, SearchSpec(3))
    assert found.item_rows.sort(dim=1).values.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert found.gap(SearchSpec(3)).tolist() == [0] * 3
    assert (found.num_scored == 50).all()


def test_fewer_than_k_in_the_posted_buckets() -> None:
    items = Codes(torch.tensor([[0], [1], [1], [2]]))
    query = Tables(torch.tensor([[[0.1, 0.9, 0.2]]]), torch.ones(1))
    found = inverted(items, 1, 4, 3).search(query, SearchSpec(4))
    assert found.item_rows.tolist() == [[1, 2, 0, 0]]
    assert found.num_found().tolist() == [2]
    assert found.num_scored.tolist() == [2]
    assert found.gap(SearchSpec(4)).item() == torch.inf
    low, high = SearchSpec(4, torch.tensor([0.15])), SearchSpec(4, torch.tensor([0.95]))
    above = inverted(items, 1, 4, 3).search(query, low)
    assert above.item_rows.tolist() == [[1, 2]]
    assert above.gap(low).item() == pytest.approx(0.75)  # the last entry posted is 0.9
    assert inverted(items, 1, 4, 3).search(query, high).gap(high).item() == 0


def test_a_list_shorter_than_at_least_is_not_proved() -> None:
    """Item 1 stands in no posted bucket, but belongs to the two best."""
    items = Codes(torch.tensor([[0], [2]]))
    query = Tables(torch.tensor([[[0.5, 0.2, 0.1]]]), torch.ones(1))
    spec = SearchSpec(2, torch.tensor([0.9]), at_least=2)
    found = inverted(items, 2, 2, 3).search(query, spec)
    assert found.num_found().tolist() == [1]
    assert found.gap(spec).tolist() == [torch.inf]
    assert found.gap(replace(spec, at_least=1)).tolist() == [0]
    whole = inverted(items, 3, 2, 3).search(query, spec)
    assert whole.item_rows.tolist() == [[0, 1]]
    assert whole.gap(spec).tolist() == [0]
    one_left = replace(spec, mask=Exclusions.of([[1]]))
    excluded = inverted(items, 2, 2, 3).search(query, one_left)
    assert excluded.gap(one_left).tolist() == [0], "no item is left that could be missing"


def test_a_threshold_above_what_is_not_posted_is_searched_exactly() -> None:
    """However few candidates a search has."""
    query, items = random_case(x=2000)
    for num_probes in (1, 5, 10):
        least = Posted(query, num_probes).bounds.least
        spec = SearchSpec(3000, (least + 0.1).float())
        found = inverted(items, num_probes, 1).search(query, spec)
        best = full_search(items).search(query, spec)
        assert torch.equal(found.item_rows, best.item_rows)
        assert torch.equal(found.scores, best.scores)
        assert found.gap(spec).tolist() == [0] * 3
        assert (found.num_scored < 2000).all()


def test_blocks_of_queries_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    query, items = random_case(b=5)
    mask = Exclusions.of([[1], [], [2, 3], [], [7]])
    threshold = torch.tensor([4.0, 5.0, -torch.inf, 3.0, torch.inf])
    retriever = inverted(items, 5, 40)
    for spec in (SearchSpec(9, mask=mask), SearchSpec(30, threshold, 2, mask)):
        whole = retriever.search(query, spec)
        with monkeypatch.context() as patched:
            patched.setattr(look_up, "BLOCK_CODES", 1)
            patched.setattr(look_up, "BLOCK_TOUCHED", 2 * 200)
            parts = retriever.search(query, spec)
        for name in ("scores", "item_rows", "bound", "is_truncated", "num_scored"):
            assert torch.equal(getattr(parts, name), getattr(whole, name)), name


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_codes_of_any_integer_dtype(dtype: torch.dtype) -> None:
    query, items = random_case()
    narrow = Codes(items.codes.to(dtype))
    for made, expected in (
        (full_search(narrow), full_search(items)),
        (inverted(narrow, 3, 30), inverted(items, 3, 30)),
    ):
        assert torch.equal(made.search(query, SearchSpec(9)).item_rows, expected.search(query, SearchSpec(9)).item_rows)


def made(kind: str, items: Codes) -> Retriever[Tables]:
    return full_search(items) if kind == "full" else inverted(items, 20, 200)


either = pytest.mark.parametrize("kind", ["full", "inverted"])


@either
def test_equal_items_stand_in_row_order(kind: str) -> None:
    query, items = random_case()
    items = take(items, torch.zeros(200, dtype=torch.int64))
    assert made(kind, items).search(query, SearchSpec(7)).item_rows.tolist() == [list(range(7))] * 3


@either
def test_no_query(kind: str) -> None:
    query, items = random_case()
    none = take(query, slice(0, 0))
    assert made(kind, items).search(none, SearchSpec(3)).item_rows.shape == (0, 3)
    assert len(made(kind, items).search(none, SearchSpec(3, torch.zeros(0))).is_truncated) == 0


@either
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_tables_that_are_not_finite(kind: str, value: float) -> None:
    query, items = random_case()
    query.tables[1, 3, 19] = value
    retriever = made(kind, items)
    for spec in (SearchSpec(3), SearchSpec(3, torch.zeros(3))):
        with pytest.raises(ValueError, match="query tables must be finite, got NaN or infinity in query 1"):
            retriever.search(query, spec)


@either
def test_finite_tables_whose_sum_is_not(kind: str) -> None:
    query, items = random_case(k=1)
    query.tables.fill_(3e38)
    assert made(kind, items).search(query, SearchSpec(2)).item_rows.tolist() == [[0, 1]] * 3


@either
def test_tables_of_another_shape(kind: str) -> None:
    _, items = random_case()
    retriever = made(kind, items)
    for query in (random_case(k=3)[0], random_case(k=5)[0]):
        with pytest.raises(ValueError, match=f"tables must have the 4 parts of the codes, got {query.tables.shape[1]}"):
            retriever.search(query, SearchSpec(3))
    message = "below the 19 entries of a table, got 19" if kind == "full" else "each of the 20 buckets, got 19"
    with pytest.raises(ValueError, match=message):
        retriever.search(random_case(r=19)[0], SearchSpec(3))


def test_widths_of_an_inverted_search() -> None:
    query, items = random_case()
    for num_probes in (0, 6000):
        with pytest.raises(
            ValueError, match=f"num_probes must be at least 1 and at most the 20 buckets, got {num_probes}"
        ):
            inverted(items, num_probes, 5)
    with pytest.raises(ValueError, match="num_candidates must be at least 1, got 0"):
        inverted(items, 5, 0)
    with pytest.raises(ValueError, match="num_candidates must be at least 6, the k of the search, got 5"):
        inverted(items, 5, 5).search(query, SearchSpec(6))
    with pytest.raises(ValueError, match=r"items must have the \(200, 4\) codes of the index, got \(199, 4\)"):
        Inverted(take(items, slice(199)), InvertedIndex(items.codes, 20), 1, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    query, items = random_case(x=3000)
    on_gpu = Tables(query.tables.cuda(), query.temperature.cuda()), Codes(items.codes.cuda())
    mask = Exclusions.of([[1, 2], [], [5]])
    for here, there in (
        (full_search(items), full_search(on_gpu[1])),
        (inverted(items, 4, 99), inverted(on_gpu[1], 4, 99)),
    ):
        for threshold in (None, torch.full((3,), 3.0)):
            expected = here.search(query, SearchSpec(20, threshold, 3, mask))
            on_device = None if threshold is None else threshold.cuda()
            found = there.search(on_gpu[0], SearchSpec(20, on_device, 3, mask))
            assert torch.equal(found.item_rows.cpu(), expected.item_rows)
            assert torch.equal(found.scores.cpu(), expected.scores)
            assert torch.equal(found.bound.cpu(), expected.bound)
