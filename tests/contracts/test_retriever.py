"""What every retrieval method must hold, exact or not, asked for the k best or for all items above a threshold."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits
from rails_ray.modules.similarities.states import map_tensors, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods import ExactSearch, Retriever
from rails_ray.search.sharded import merge, of_corpus
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, sharp_mixture, small_mixture
from support.masks import hiding
from support.of_codes import FEW_PROBES
from support.retrievers import (
    EXACT,
    INFINITY,
    MAY_FIND_FEWER,
    NUM_ITEMS,
    NUM_QUERIES,
    OF_TERMS,
    WANTED,
    Named,
    a_shape,
    any_method,
    assert_oracle,
    assert_same,
    case,
    drawn,
    each,
    every_method,
    exact_case,
    expected_of,
    of_a_mixture,
    retriever_of,
    wanted_of,
    widths_of,
)
from support.searchers import make_searchable
from support.tried import tried


@any_method
@tried(60)
@given(a_shape, st.data(), st.sampled_from([3, 3 * 7, 2**19]))
def test_it_equals_the_oracle(named: Named, shape: tuple[int, int, int], data: st.DataObject, block: int) -> None:
    """Ties, thresholds equal to a score and exclusions included, however the corpus is cut into blocks, with as many
    candidates as items."""
    searchable_of, items, query, scores = exact_case(named, *shape)
    ask = drawn(data, scores)
    spec, params = wanted_of(ask), widths_of(len(items) + 3, len(items))
    with (
        patch("rails_ray.search.methods.brute_force.BLOCK_ITEMS", block),
        patch("rails_ray.search.indexes.lookup.BLOCK_SCORES", block),
        patch("rails_ray.search.methods.look_up.BLOCK_TOUCHED", block),
    ):
        found = searchable_of(items).search(query, spec, named[1], params)
    assert_oracle(found, scores, spec, ask[3])
    assert found.gap(spec).tolist() == [0] * len(query)  # nothing was left out


@any_method
@tried(40)
@given(a_shape, st.data())
def test_narrow_lists_give_items_that_belong_and_a_bound_that_holds(
    named: Named, shape: tuple[int, int, int], data: st.DataObject
) -> None:
    """What is said of the gap is true, with items excluded too, and what is called exact is brute force's answer."""
    searchable_of, items, query, scores = exact_case(named, *shape)
    ask = drawn(data, scores)
    spec = wanted_of(ask)
    width = 1 if spec.threshold is not None else spec.k  # a list must be long enough for k
    retriever = searchable_of(items).retriever(named[1], widths_of(width, len(items)))
    found = retriever.search(query, spec)
    gaps = found.gap(spec)
    assert not gaps.isnan().any()
    for line, own in enumerate(scores):
        num, out = int(found.num_found()[line]), ask[3][line]
        rows = found.item_rows[line, :num].tolist()
        assert len(set(rows)) == num <= spec.k
        assert not set(rows) & set(out)
        assert not found.item_rows[line, num:].any()
        if named not in MAY_FIND_FEWER:  # in the posted buckets, or in the lists that are scanned
            assert num >= min(spec.least, len(own) - len(set(out)))
        if spec.threshold is not None:
            assert num <= spec.at_least or min(own[row] for row in rows) >= spec.threshold[line]
        assert found.scores[line, :num].tolist() == pytest.approx([own[row] for row in rows], abs=1e-6)
        expected, is_truncated = expected_of(own, spec, line, out)
        if named in EXACT or gaps[line] == 0:
            assert (rows, bool(found.is_truncated[line])) == (expected, is_truncated)
        missed = [own[row] for row in expected if row not in rows]
        if missed and num:
            threshold = -INFINITY if spec.threshold is None else spec.threshold[line].item()
            assert gaps[line] >= max(missed) - max(own[rows[-1]], threshold)
        if num < min(spec.least, len(expected)):
            assert gaps[line] == INFINITY
        if retriever.is_exact:
            assert gaps[line] == 0


@any_method
@tried(40)
@given(a_shape, st.data(), st.sampled_from([1, 40]))
def test_any_mask_hides_what_pairs_hide(
    named: Named, shape: tuple[int, int, int], data: st.DataObject, width: int
) -> None:
    """A filter over items, which is no pairs, gives the answer for the same pairs, to the last bit."""
    searchable_of, items, query, scores = exact_case(named, *shape)
    ask = drawn(data, scores)
    is_hidden = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
    hidden = [[row for row, own in enumerate(is_hidden) if own]] * len(query)
    searcher, bitmap = searchable_of(items), hiding(torch.tensor(is_hidden))
    params = widths_of(max(width, ask[1]), len(items))
    with patch("rails_ray.search.methods.look_up.BLOCK_TOUCHED", 2 * len(items)):
        found = searcher.search(query, wanted_of(ask, bitmap), named[1], params)
        pairs = searcher.search(query, wanted_of(ask, Exclusions.of(hidden)), named[1], params)
    assert_same(found, pairs)
    if named in EXACT:
        assert_oracle(found, scores, wanted_of(ask), hidden)
    if named in OF_TERMS:  # which no softmax trains
        return
    by_bitmap, by_pairs = (searcher.log_sum_exp(query, beta_logit, mask) for mask in (bitmap, Exclusions.of(hidden)))
    assert torch.equal(by_bitmap, by_pairs)


@each([("components", ""), ("quantized", ""), ("beside vectors", ""), ("codes", ""), ("terms", "")])
@tried(40)
@given(a_shape, st.data())
def test_some_items_are_searched_as_if_there_were_no_others(
    named: Named, shape: tuple[int, int, int], data: st.DataObject
) -> None:
    searchable_of, items, query, scores = exact_case(named, *shape)
    rows = sorted(data.draw(st.sets(st.integers(0, len(items) - 1), min_size=1)))
    ask = drawn(data, [[own[row] for row in rows] for own in scores])
    spec, searcher = wanted_of(ask), searchable_of(items)
    some = searcher.some(torch.tensor(rows))
    assert isinstance(some, ExactSearch)
    assert some.is_exact
    assert_oracle(some.search(query, spec), [[own[row] for row in rows] for own in scores], spec, ask[3])
    if named[0] == "terms":  # which no softmax trains
        return
    others = Exclusions.of([[row for row in range(len(items)) if row not in rows]] * len(query))
    torch.testing.assert_close(some.log_sum_exp(query, beta_logit), searcher.log_sum_exp(query, beta_logit, others))


@any_method
@pytest.mark.parametrize("k", [1, 5, NUM_ITEMS])
def test_exactly_k_distinct_items_scores_descending(named: Named, k: int) -> None:
    retriever, query, scores = retriever_of(named)
    found = retriever.search(query, SearchSpec(k))
    assert isinstance(retriever, Retriever)
    assert found.scores.shape == found.item_rows.shape == (NUM_QUERIES, k)
    assert (found.scores.diff(dim=1) <= 0).all()
    assert all(len(set(rows)) == k for rows in found.item_rows.tolist())
    assert torch.allclose(found.scores, torch.tensor(scores).gather(1, found.item_rows), atol=1e-6)


@any_method
def test_with_all_items_as_candidates_it_equals_the_oracle(named: Named) -> None:
    retriever, query, scores = retriever_of(named)
    found = retriever.search(query, SearchSpec(7))
    assert_oracle(found, scores, SearchSpec(7))
    assert found.gap(SearchSpec(7)).tolist() == [0] * NUM_QUERIES  # nothing was left out


@any_method
def test_excluded_items_are_searched_around(named: Named) -> None:
    """Not filtered afterwards: with the best items excluded there are still k results."""
    retriever, query, scores = retriever_of(named)
    best = retriever.search(query, SearchSpec(10)).item_rows
    excluded = [best[0].tolist(), best[1, :3].tolist(), []]
    found = retriever.search(query, SearchSpec(10, mask=Exclusions.of(excluded)))
    assert_oracle(found, scores, SearchSpec(10), excluded)


@any_method
def test_no_query(named: Named) -> None:
    retriever, query, _ = retriever_of(named)
    none = take(query, slice(0, 0))
    assert retriever.search(none, SearchSpec(3)).item_rows.shape == (0, 3)
    assert len(retriever.search(none, SearchSpec(3, torch.zeros(0))).is_truncated) == 0


@any_method
def test_more_items_than_there_are(named: Named) -> None:
    """A list that is short is no error: whatever is left is answered, of each query."""
    retriever, query, scores = retriever_of(named)
    excluded = [[], list(range(NUM_ITEMS)), [5]]
    spec = SearchSpec(NUM_ITEMS + 3, mask=Exclusions.of(excluded))
    found = retriever.search(query, spec)
    assert found.num_found().tolist() == [NUM_ITEMS, 0, NUM_ITEMS - 1]
    assert_oracle(found, scores, spec, excluded)
    assert found.gap(spec).tolist() == [0] * NUM_QUERIES


@any_method
def test_a_corpus_without_items(named: Named) -> None:
    searcher, query, _ = case(named)
    empty = make_searchable(searcher.similarity, take(searcher.items, slice(0, 0)))
    for spec in (SearchSpec(3), SearchSpec(3, torch.zeros(NUM_QUERIES), 2)):
        found = empty.search(query, spec, named[1])
        assert found.num_found().tolist() == [0] * NUM_QUERIES
        assert found.gap(spec).tolist() == [0] * NUM_QUERIES
    assert len(empty) == 0


@pytest.mark.parametrize(("num_candidates", "num_per_embedding"), [(3, 1), (7, 2), (20, 6)])
@pytest.mark.parametrize("seed", range(5))
@any_method
def test_narrow_lists_give_k_items_and_a_bound_that_holds(
    named: Named, seed: int, num_candidates: int, num_per_embedding: int
) -> None:
    """With scores that are rounded."""
    searcher, query, scores = case(named, seed=seed)
    params = SearchParams(num_candidates=num_candidates, num_per_embedding=num_per_embedding, num_probes=FEW_PROBES)
    retriever = searcher.retriever(named[1], params)
    excluded = [[0, 5, 7], [], [31]]
    spec = SearchSpec(3, mask=Exclusions.of(excluded))
    found = retriever.search(query, spec)
    assert all(len(set(rows)) == 3 for rows in found.item_rows.tolist())
    gaps = found.gap(spec)
    for line, (all_scores, out) in enumerate(zip(scores, excluded, strict=True)):
        expected = oracles.ranking.top_k(all_scores, 3, out)
        rows = found.item_rows[line].tolist()
        assert not set(rows) & set(out)
        missed = [all_scores[row] for row in expected if row not in rows]
        if retriever.is_exact:
            assert rows == expected
        assert max(missed, default=-2) - found.scores[line, -1].item() <= gaps[line].item() + 1e-6
        assert gaps[line] > 0 or rows == expected
    if retriever.is_exact:
        assert gaps.tolist() == [0] * NUM_QUERIES


def test_methods_that_cannot_know_what_they_missed_say_why() -> None:
    retriever, query, _ = retriever_of(("components", "average"), num=5)
    for spec in (SearchSpec(5), SearchSpec(30, torch.zeros(NUM_QUERIES))):
        found = retriever.search(query, spec)
        assert all("any cosine" in reason for reason in found.reasons)
        assert found.bound.tolist() == found.gap(spec).tolist() == [INFINITY] * NUM_QUERIES


@of_a_mixture
@pytest.mark.parametrize("mixture", [small_mixture(), sharp_mixture()], ids=["flat", "sharp"])
@pytest.mark.parametrize("num_above", [0, 3, 60])
def test_scores_that_are_rounded(named: Named, mixture: MixtureOfLogits, num_above: int) -> None:
    """With a threshold between two scores, so that how each is rounded does not decide."""
    query, items = random_states(4, 80, seed=1)
    scores = mixture.scores(query, items)
    best = scores.sort(dim=1, descending=True).values
    above = best[:, num_above - 1] if num_above else best[:, 0] + 0.1
    threshold = (above + best[:, num_above]) / 2
    retriever = make_searchable(mixture, items).retriever(named[1], widths_of(80, 80))
    for k in (1, 3, 59, 60, 100):
        found = retriever.search(query, SearchSpec(k, threshold))
        assert_oracle(found, scores.tolist(), SearchSpec(k, threshold))
        assert (found.num_scored <= len(items)).all()


@each([*EXACT, ("codes", "inverted")])
@tried(40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 50), st.data())
def test_shards_give_the_answer_of_one(named: Named, sizes: list[int], seed: int, data: st.DataObject) -> None:
    searchable_of, items, query, scores = exact_case(named, 3, sum(sizes), seed)
    ask = drawn(data, scores)
    parts, first = [], 0
    for size in sizes:
        own = Exclusions.of([[row - first for row in rows if first <= row < first + size] for rows in ask[3]])
        searcher = searchable_of(take(items, slice(first, first + size)))
        found = searcher.search(query, wanted_of(ask, own), named[1], widths_of(100, size))
        parts.append(of_corpus(found, first))
        first += size
    spec = wanted_of(ask)
    merged = merge(parts, spec, spec.num_left(3, first))
    assert_oracle(merged, scores, spec, ask[3])
    assert merged.k == merged.num_found().max()
    assert torch.equal(merged.num_scored, sum(part.num_scored for part in parts))
    assert merged.gap(spec).tolist() == [0] * 3


@every_method
def test_a_dot_product_is_searched_exactly_by_a_threshold(named: Named) -> None:
    """However narrow the lists of the first stage."""
    query, items = random_states(4, 30, p_q=1, p_x=1)
    searcher = make_searchable(DotProduct(DotProductConfig()), items)
    scores = (query.components[:, 0] @ items.components[:, 0].T).tolist()
    spec = SearchSpec(25, torch.full((4,), 0.1), at_least=3)
    found = searcher.search(query, spec, named[1], widths_of(2, 30))
    assert_oracle(found, scores, spec)
    assert found.gap(spec).tolist() == [0] * 4


@each([("components", method) for method in ("per_embedding", "average", "combined")])
def test_with_a_single_pair_of_components_the_first_stage_is_exact(named: Named) -> None:
    query, items = random_states(4, 30, p_q=1, p_x=1)
    searcher = make_searchable(DotProduct(DotProductConfig()), items)
    retriever = searcher.retriever(named[1], widths_of(5, 30))
    assert retriever.is_exact
    found = retriever.search(query, SearchSpec(5))
    assert torch.equal(found.item_rows, searcher.search(query, SearchSpec(5)).item_rows)
    assert found.gap(SearchSpec(5)).tolist() == [0] * 4
    assert not retriever_of(named)[0].is_exact


@each([("components", "per_embedding"), ("components", "combined")])
def test_candidates_that_cannot_reach_the_threshold_are_not_gated(named: Named) -> None:
    query, items = random_states(4, 400, seed=2)
    searcher = make_searchable(sharp_mixture(), items)
    retriever = searcher.retriever(named[1], widths_of(100, 400))
    all_of_them = retriever.search(query, SearchSpec(400, torch.full((4,), -INFINITY))).num_scored
    high = SearchSpec(400, torch.full((4,), 0.95))
    found = retriever.search(query, high)
    assert (found.num_scored < all_of_them / 4).all()
    assert torch.equal(found.item_rows, searcher.search(query, high).item_rows)


@of_a_mixture
def test_an_item_whose_score_is_nan_is_not_answered_and_hides_no_other(named: Named) -> None:
    """As one of stored components that are damaged: all searches, and the normaliser, are as if it were not there."""
    query, items = random_states(4, 50, seed=3)
    items = replace(items, gate=items.gate * 60)  # so large that exponents would overflow, were they not looked at
    damaged = map_tensors(torch.clone, items)
    damaged.components[7, 1], damaged.average[7] = torch.nan, torch.nan
    scores = small_mixture().scores(query, items)
    best = scores.sort(dim=1, descending=True).values
    searcher = make_searchable(small_mixture(), damaged)
    for spec in (SearchSpec(10), SearchSpec(20, best[:, 8:10].mean(dim=1)), SearchSpec(20, best[:, 0] + 1, 5)):
        found = searcher.search(query, spec, named[1], widths_of(50, 50))
        assert_oracle(found, scores.tolist(), spec, [[7]] * 4)
    whole = make_searchable(small_mixture(), items)
    expected = whole.log_sum_exp(query, beta_logit, Exclusions.of([[7]] * 4))
    assert torch.allclose(searcher.log_sum_exp(query, beta_logit), expected, rtol=1e-6)


def test_more_candidates_never_lower_the_scores_found() -> None:
    searcher, query, scores = case(("components", "average"), seed=3)
    last = torch.full((NUM_QUERIES, 5), -torch.inf)
    for num_candidates in (5, 10, 20, 40):
        rows = searcher.search(query, SearchSpec(5), "average", SearchParams(num_candidates=num_candidates)).item_rows
        found = torch.tensor(scores).gather(1, rows)  # rounded alike, however many are rescored at once
        assert (found >= last).all()
        last = found


def test_rescoring_in_blocks_of_queries_gives_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher, query, _ = case(("components", "combined"))
    retriever = searcher.retriever("combined", SearchParams(num_candidates=10, num_per_embedding=2))
    spec = SearchSpec(5, mask=Exclusions.of([[1], [], [2, 3]]))
    whole = retriever.search(query, spec)
    monkeypatch.setattr("rails_ray.search.rescore.BLOCK_PAIRS", 1)
    assert torch.equal(retriever.search(query, spec).item_rows, whole.item_rows)


@any_method
def test_a_search_makes_no_index(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher, query, _ = case(named)

    def refused(*_: object) -> None:
        raise AssertionError("an index is made anew")

    for module, name in (("flat", "FlatIndex"), ("lookup", "LookupIndex"), ("inverted", "InvertedIndex")):
        monkeypatch.setattr(f"rails_ray.search.indexes.{module}.{name}.__init__", refused)
    for spec in WANTED.values():
        searcher.search(query, spec, named[1])


@any_method
def test_explanations_are_of_the_scores_found(named: Named) -> None:
    searcher, query, scores = case(named)
    explained = searcher.explain(query, [4, 2])
    assert torch.allclose(explained.scores, torch.tensor(scores)[:, [4, 2]], atol=1e-6)
    made = (explained.gates * explained.cosines).sum(dim=(2, 3))
    assert torch.allclose(made, explained.scores, atol=1e-6)
