import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.scores
from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.bm25 import NO_TERM, Bm25, TermCounts, TermPostings, TermWeights, shares, sums_of
from rails_ray.modules.similarities.states import take
from support.of_terms import of_terms, random_terms, sums

sizes = st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 50))  # B, X, seed


def query_of(terms: list[int], counts: list[float]) -> TermCounts:
    return TermCounts(torch.tensor([terms]), torch.tensor([counts]), torch.ones(1))


@given(sizes)
def test_scores_equal_the_oracle(shape: tuple[int, int, int]) -> None:
    query, items = random_terms(*shape)
    scores = Bm25()(query, items).scores
    assert isinstance(Bm25(), Scorer)
    assert scores.dtype == torch.float32
    assert scores.shape == (len(query), len(items))
    assert torch.allclose(scores, torch.tensor(sums(query, items)).view(scores.shape), rtol=1e-6, atol=0)


@given(sizes, st.integers(0, 5))
def test_candidates_score_as_among_all_items(shape: tuple[int, int, int], num_candidates: int) -> None:
    query, items = random_terms(*shape)
    generator = torch.Generator().manual_seed(shape[2])
    rows = torch.randint(max(len(items), 1), (len(query), num_candidates if len(items) else 0), generator=generator)
    found = Bm25().scores(query, take(items, rows))
    assert torch.allclose(found, Bm25().scores(query, items).gather(1, rows), rtol=1e-6, atol=0)


@given(sizes)
def test_what_terms_add_sums_to_the_score(shape: tuple[int, int, int]) -> None:
    query, items = random_terms(*shape)
    parts = shares(query, items)
    assert parts.shape == (len(query), len(items), query.terms.shape[1])
    for line in range(len(query)):
        counts = of_terms(query.terms[line].tolist(), query.counts[line].tolist())
        for row in range(len(items)):
            weights = of_terms(items.terms[row].tolist(), items.weights[row].tolist())
            for place, term in enumerate(query.terms[line].tolist()):
                own = {term: counts[term]} if term != NO_TERM else {}
                expected = oracles.scores.sum_over_shared_terms(own, weights)
                assert parts[line, row, place].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(sizes)
def test_permuting_items_permutes_scores_to_the_bit(shape: tuple[int, int, int]) -> None:
    query, items = random_terms(*shape)
    rows = torch.randperm(len(items), generator=torch.Generator().manual_seed(shape[2]))
    assert torch.equal(Bm25().scores(query, take(items, rows)), Bm25().scores(query, items)[:, rows])


def test_a_term_counts_as_often_as_it_stands_in_the_query() -> None:
    items = TermWeights(torch.tensor([[3, 5]]), torch.tensor([[0.5, 2.0]]))
    assert Bm25().scores(query_of([5, 7], [1.0, 1.0]), items).tolist() == [[2.0]]
    assert Bm25().scores(query_of([5, 7], [2.0, 1.0]), items).tolist() == [[4.0]]
    assert Bm25().scores(query_of([5, 3], [2.0, 1.0]), items).tolist() == [[4.5]]


def test_lines_that_end_early_share_nothing() -> None:
    query = query_of([NO_TERM, NO_TERM], [0.0, 0.0])
    items = TermWeights(torch.full((2, 3), NO_TERM), torch.zeros(2, 3))
    assert Bm25().scores(query, items).tolist() == [[0.0, 0.0]]
    assert not shares(query, items).any()


def test_the_largest_terms_there_are() -> None:
    """A term has 63 bits, more than a float64 can tell apart."""
    large = 2**63 - 1
    items = TermWeights(torch.tensor([[large, large - 1]]), torch.tensor([[1.0, 10.0]]))
    query = query_of([large], [1.0])
    assert Bm25().scores(query, items).tolist() == [[1.0]]
    assert shares(query, items).tolist() == [[[1.0]]]


def test_weights_of_half_precision() -> None:
    query, items = random_terms(3, 12)
    half = TermWeights(items.terms, items.weights.half())
    assert Bm25().scores(query, half).dtype == torch.float32
    assert torch.allclose(Bm25().scores(query, half), Bm25().scores(query, items), rtol=1e-3, atol=1e-6)


def test_postings_are_by_term_and_then_by_row() -> None:
    _, items = random_terms(1, 30)
    postings = TermPostings.of(items)
    terms = postings.terms.repeat_interleave(postings.offsets.diff())
    pairs = list(zip(terms.tolist(), postings.item_rows.tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert len(pairs) == int((items.terms != NO_TERM).sum())
    query, _ = random_terms(4, 1)
    assert torch.equal(sums_of(query, postings, len(items)), Bm25().scores(query, items))


def test_terms_that_no_item_has() -> None:
    """Above, below and between those that items have, and where they have none."""
    items = TermWeights(torch.tensor([[3, 7], [7, NO_TERM]]), torch.tensor([[1.0, 2.0], [4.0, 0.0]]))
    query = TermCounts(torch.tensor([[0, 3, 5], [8, 7, NO_TERM]]), torch.ones(2, 3), torch.ones(2))
    assert Bm25().scores(query, items).tolist() == [[1.0, 0.0], [2.0, 4.0]]
    nothing = TermWeights(torch.full((2, 1), NO_TERM), torch.zeros(2, 1))
    assert Bm25().scores(query, nothing).tolist() == [[0.0, 0.0]] * 2
