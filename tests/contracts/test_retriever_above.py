"""What every retrieval method must hold when asked for all items above a threshold."""

from collections.abc import Callable, Sequence
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from rails_ray.build import search as search_building
from rails_ray.indexes.inverted import InvertedIndex
from rails_ray.retrieval import FoundAbove, Retriever
from rails_ray.retrieval.look_up import Inverted
from rails_ray.retrieval.sharded import merge_shards_above, search_shard_above
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.mol import MixtureOfLogits
from rails_ray.similarities.states import AnyQuery, ItemState, QueryState, Tables, map_tensors, take
from rails_ray.top_k import Exclusions
from support.examples import random_states, sharp_mixture, small_mixture
from support.of_codes import NUM_BUCKETS, look_ups, of_codes, random_codes

INFINITY = float("inf")
OF_CODES = ("look_up", "inverted")
EXACT = ("brute_force", "two_pass", "look_up")
every_method = pytest.mark.parametrize("method", search_building.METHODS)
any_method = pytest.mark.parametrize("method", [*search_building.METHODS, *OF_CODES])
a_shape = st.tuples(st.integers(0, 3), st.integers(1, 25), st.integers(0, 50))  # B, X, seed


def exact_mixture() -> MixtureOfLogits:
    """One whose gates are all equal, so that its scores have no rounding but that of the division by P."""
    mixture = small_mixture()
    for parameter in mixture.parameters():
        parameter.data.zero_()
    return mixture


def exact_states(num_queries: int, num_items: int, seed: int) -> tuple[QueryState, ItemState]:
    """Components whose cosines float32 holds exactly, with many equal items."""
    query, items = random_states(num_queries, num_items, seed=seed)
    items = take(items, torch.arange(num_items) // 2)
    return QueryState(query.components.round(), torch.zeros_like(query.gate), query.temperature), map_tensors(
        lambda tensor: tensor.mul(2).round().div(2), items
    )


def exact_case(
    method: str, num_queries: int, num_items: int, seed: int, width: int | None = None
) -> tuple[Callable[[slice], Retriever], AnyQuery, list[list[float]]]:
    """A retriever, of components or of codes, of any slice of items of which many are equal; queries, and their exact
    scores of all items."""
    if method in OF_CODES:
        query, items = random_codes(num_queries, num_items, seed)
        query = Tables(query.tables.mul(2).round().div(2), query.temperature)
        items = take(items, torch.arange(num_items) // 2)
        return lambda own: of_codes(method, take(items, own), width or num_items), query, look_ups(query, items)
    query, items = exact_states(num_queries, num_items, seed)
    scores = scores_of(exact_mixture(), query, items)
    return lambda own: made(method, exact_mixture(), take(items, own), width), query, scores


def made(method: str, mixture: MixtureOfLogits, items: ItemState, width: int | None = None) -> Retriever:
    width = len(items) if width is None else width
    return search_building.retriever(method, mixture, items, width, width)


def scores_of(mixture: MixtureOfLogits, query: QueryState, items: ItemState) -> list[list[float]]:
    return mixture.scores(query, items).tolist()


def assert_oracle(
    found: FoundAbove,
    scores: list[list[float]],
    threshold: Sequence[float],
    cap: int,
    at_least: int = 0,
    excluded: Sequence[Sequence[int]] | None = None,
) -> None:
    for line, own in enumerate(scores):
        out = excluded[line] if excluded else []
        rows, is_truncated = oracles.items_above(own, threshold[line], cap, at_least, out)
        num = found.above.top_k.num_found()[line]
        assert found.above.top_k.item_rows[line, :num].tolist() == rows
        assert found.above.is_truncated[line] == is_truncated
        assert found.above.top_k.scores[line, :num].tolist() == pytest.approx([own[row] for row in rows], abs=1e-6)


def drawn(data: st.DataObject, scores: list[list[float]]) -> tuple[list[float], int, int, list[list[int]]]:
    """Thresholds that often equal a score, a cap that is often above X, at_least, exclusions."""
    threshold = [data.draw(st.sampled_from([-INFINITY, 0.0, INFINITY, *own])) for own in scores]
    num_items = len(scores[0]) if scores else 1
    cap = data.draw(st.integers(1, num_items + 3))
    row = st.integers(0, num_items - 1)
    return threshold, cap, data.draw(st.integers(0, cap)), [data.draw(st.lists(row, max_size=9)) for _ in scores]


@any_method
@settings(deadline=None, max_examples=40)
@given(a_shape, st.data(), st.sampled_from([3, 3 * 7, 2**19]))
def test_it_equals_the_oracle(method: str, shape: tuple[int, int, int], data: st.DataObject, block: int) -> None:
    """Ties, thresholds equal to a score and exclusions included, however the corpus is cut into blocks."""
    retriever_of, query, scores = exact_case(method, *shape)
    threshold, cap, at_least, excluded = drawn(data, scores)
    retriever = retriever_of(slice(None))
    assert isinstance(retriever, Retriever)
    with (
        patch("rails_ray.retrieval.brute_force.BLOCK_SCORES", block),
        patch("rails_ray.indexes.lookup.BLOCK_SCORES", block),
        patch("rails_ray.retrieval.look_up.BLOCK_TOUCHED", block),
    ):
        found = retriever.search_above(query, torch.tensor(threshold), cap, Exclusions.of(excluded), at_least)
    assert_oracle(found, scores, threshold, cap, at_least, excluded)
    assert found.gap(torch.tensor(threshold), at_least).tolist() == [0] * len(query)  # nothing was left out


@any_method
@settings(deadline=None, max_examples=30)
@given(a_shape, st.data())
def test_narrow_lists_give_items_that_belong_and_a_certificate_that_holds(
    method: str, shape: tuple[int, int, int], data: st.DataObject
) -> None:
    retriever_of, query, scores = exact_case(method, *shape, width=1)
    threshold, cap, at_least, excluded = drawn(data, scores)
    retriever = retriever_of(slice(None))
    found = retriever.search_above(query, torch.tensor(threshold), cap, Exclusions.of(excluded), at_least)
    gaps = found.gap(torch.tensor(threshold), at_least)
    for line, own in enumerate(scores):
        num = int(found.above.top_k.num_found()[line])
        rows = found.above.top_k.item_rows[line, :num].tolist()
        assert len(set(rows)) == num <= cap
        assert not set(rows) & set(excluded[line])
        if method != "inverted":  # of which fewer may stand in the posted buckets
            assert num >= min(at_least, len(own) - len(set(excluded[line])))
        assert num <= at_least or min(own[row] for row in rows) >= threshold[line]
        assert found.above.top_k.scores[line, :num].tolist() == pytest.approx([own[row] for row in rows], abs=1e-6)
        expected, is_truncated = oracles.items_above(own, threshold[line], cap, at_least, excluded[line])
        if method in EXACT or (gaps is not None and gaps[line] == 0):
            assert (rows, found.above.is_truncated[line]) == (expected, is_truncated)
        missed = [own[row] for row in expected if row not in rows]
        if gaps is not None and missed and num:
            assert gaps[line] >= max(missed) - max(own[rows[-1]], threshold[line])


@settings(deadline=None)
@given(st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(0, 50)), st.integers(1, NUM_BUCKETS), st.data())
def test_a_short_list_is_exact_only_where_brute_force_finds_no_more(
    shape: tuple[int, int, int], num_probes: int, data: st.DataObject
) -> None:
    """Of `inverted`, which finds what stands in posted buckets."""
    query, items = random_codes(*shape)
    scores = look_ups(query, items)
    threshold, cap, at_least, excluded = drawn(data, scores)
    retriever = Inverted(items, InvertedIndex(items.codes, NUM_BUCKETS), num_probes, len(items))
    found = retriever.search_above(query, torch.tensor(threshold), cap, Exclusions.of(excluded), at_least)
    gaps = found.gap(torch.tensor(threshold), at_least)
    assert not gaps.isnan().any()
    for line, own in enumerate(scores):
        expected, _ = oracles.items_above(own, threshold[line], cap, at_least, excluded[line])
        num = int(found.above.top_k.num_found()[line])
        if gaps[line] == 0:
            assert found.above.top_k.item_rows[line, :num].tolist() == expected
        if num < min(at_least, len(expected)):
            assert gaps[line] == INFINITY


@every_method
@pytest.mark.parametrize("mixture", [small_mixture(), sharp_mixture()], ids=["flat", "sharp"])
@pytest.mark.parametrize("num_above", [0, 3, 60])
def test_scores_that_are_rounded(method: str, mixture: MixtureOfLogits, num_above: int) -> None:
    """Between two scores, so that how each is rounded does not decide."""
    query, items = random_states(4, 80, seed=1)
    best = mixture.scores(query, items).sort(dim=1, descending=True).values
    above = best[:, num_above - 1] if num_above else best[:, 0] + 0.1
    threshold = (above + best[:, num_above]) / 2
    scores = scores_of(mixture, query, items)
    retriever = made(method, mixture, items)
    for cap in (1, 3, 59, 60, 100):
        found = retriever.search_above(query, threshold, cap)
        assert_oracle(found, scores, threshold.tolist(), cap)
        assert (found.num_scored <= len(items)).all()


@pytest.mark.parametrize("method", [*EXACT, "inverted"])
@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 50), st.data())
def test_shards_give_the_answer_of_one(method: str, sizes: list[int], seed: int, data: st.DataObject) -> None:
    retriever_of, query, scores = exact_case(method, 3, sum(sizes), seed)
    threshold, cap, at_least, excluded = drawn(data, scores)
    answers, first = [], 0
    for size in sizes:
        own = [[row - first for row in rows if first <= row < first + size] for rows in excluded]
        retriever = retriever_of(slice(first, first + size))
        answers.append(search_shard_above(retriever, first, query, torch.tensor(threshold), cap, at_least, own))
        first += size
    merged = merge_shards_above(answers, torch.tensor(threshold), cap, at_least)
    for line, found in enumerate(merged):
        assert_oracle(found, [scores[line]], [threshold[line]], cap, at_least, [excluded[line]])
        assert found.above.top_k.k == found.above.top_k.num_found().item()
        assert found.num_scored == sum(answer[line].num_scored for answer in answers)
        assert found.gap(torch.tensor([threshold[line]]), at_least).tolist() == [0]


@every_method
def test_a_dot_product_is_searched_exactly(method: str) -> None:
    """However narrow the lists of the first stage."""
    query, items = random_states(4, 30, p_q=1, p_x=1)
    retriever = search_building.retriever(method, DotProduct(DotProductConfig()), items, 2, 2)
    scores = (query.components[:, 0] @ items.components[:, 0].T).tolist()
    found = retriever.search_above(query, torch.full((4,), 0.1), 25, at_least=3)
    assert_oracle(found, scores, [0.1] * 4, 25, 3)
    assert found.gap(torch.full((4,), 0.1), 3).tolist() == [0] * 4


@pytest.mark.parametrize("method", ["per_embedding", "combined"])
def test_candidates_that_cannot_reach_the_threshold_are_not_gated(method: str) -> None:
    query, items = random_states(4, 400, seed=2)
    retriever = made(method, sharp_mixture(), items, width=100)
    all_of_them = retriever.search_above(query, torch.full((4,), -INFINITY), 400).num_scored
    found = retriever.search_above(query, torch.full((4,), 0.95), 400)
    assert (found.num_scored < all_of_them / 4).all()
    brute_force = made("brute_force", sharp_mixture(), items).search_above(query, torch.full((4,), 0.95), 400)
    assert torch.equal(found.above.top_k.item_rows, brute_force.above.top_k.item_rows)


def test_methods_that_cannot_know_what_they_missed_say_so() -> None:
    query, items = random_states(2, 30)
    found = made("average", small_mixture(), items, width=5).search_above(query, torch.zeros(2), 30)
    assert found.gap(torch.zeros(2), 0) is None
    assert "any cosine" in found.certificate.reason


@every_method
@pytest.mark.parametrize(
    ("threshold", "cap", "at_least", "message"),
    [
        ([0.0, 0.0, torch.nan], 5, 0, "threshold must not be NaN, got NaN for query 2"),
        ([0.0, 0.0], 5, 0, "threshold must be one number for each of 3 queries, got 2"),
        ([0.0] * 3, 0, 0, "cap must be at least 1, got 0"),
        ([0.0] * 3, 5, 6, "at_least must be at least 0 and at most the cap of 5, got 6"),
    ],
)
def test_what_cannot_be_asked(method: str, threshold: list[float], cap: int, at_least: int, message: str) -> None:
    query, items = random_states(3, 20)
    with pytest.raises(ValueError, match=message):
        made(method, small_mixture(), items).search_above(query, torch.tensor(threshold), cap, at_least=at_least)


@every_method
def test_queries_that_cannot_be_searched(method: str) -> None:
    query, items = random_states(3, 20)
    retriever = made(method, small_mixture(), items)
    with pytest.raises(ValueError, match="query components must have the width of the index, 4, got 5"):
        retriever.search_above(random_states(3, 1, width=5)[0], torch.zeros(3), 5)
    query.components[1, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="query components must be finite, got NaN or infinity in query 1"):
        retriever.search_above(query, torch.zeros(3), 5)
