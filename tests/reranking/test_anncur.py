"""AnnCUR and AXN against least squares."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.reranking.anncur import AnnCur
from rails_ray.reranking.axn import Axn, Correction
from support.quantizers import some_vectors


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_combinations_are_least_squares(
    num_items: int, num_queries: int, num_supports: int, is_ridge: bool, seed: int
) -> None:
    relevance = some_vectors(num_items, num_queries, seed).double()
    supports = some_vectors(num_supports, num_queries, seed + 1).double()
    ridge = 0.3 if is_ridge else 0.0
    found = AnnCur(supports, ridge).combinations(relevance)
    a = supports.numpy().T
    for own, line in zip(relevance.numpy(), found.numpy(), strict=True):
        if is_ridge:
            gram = a.T @ a / num_queries + ridge * np.eye(num_supports)
            expected = np.linalg.solve(gram, a.T @ own / num_queries)
        else:
            expected = np.linalg.lstsq(a, own, rcond=None)[0]
        assert line == pytest.approx(expected, abs=1e-6)


def test_a_singular_matrix_has_a_pseudo_inverse() -> None:
    supports = torch.ones(3, 5)
    found = AnnCur(supports).combinations(torch.full((1, 5), 6.0))
    assert found.tolist() == [pytest.approx([2, 2, 2])]


def test_a_low_rank_matrix_is_rebuilt() -> None:
    relevance = (some_vectors(50, 4) @ some_vectors(4, 40, 1)).double()
    combinations = AnnCur(relevance[:6, :20]).combinations(relevance[:, :20])
    assert torch.allclose(combinations @ relevance[:6, 20:], relevance[:, 20:], atol=1e-6)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_holes_are_left_out(ridge: float) -> None:
    relevance, supports = some_vectors(9, 12).double(), some_vectors(3, 12, 1).double()
    relevance[2, 3:6] = relevance[5, 3:6] = relevance[7, 0] = torch.nan
    found = AnnCur(supports, ridge).combinations(relevance)
    for row in range(9):
        known = ~relevance[row].isnan()
        own = AnnCur(supports[:, known], ridge).combinations(relevance[row : row + 1, known])
        assert torch.allclose(found[row], own[0])


def test_matrices_that_cannot_be() -> None:
    supports = torch.ones(2, 3)
    with pytest.raises(ValueError, match="ridge must be a finite number of at least 0, got -1"):
        AnnCur(supports, -1.0)
    with pytest.raises(
        ValueError, match="an item must have a relevance to at least one support query, got none for row 1"
    ):
        AnnCur(supports).combinations(torch.tensor([[1.0, 2, 3], [torch.nan] * 3]))
    with pytest.raises(ValueError, match="must be finite, or NaN where it is missing, got an infinite one"):
        AnnCur(supports).combinations(torch.full((1, 3), torch.inf))
    supports[0, 1] = torch.nan
    with pytest.raises(ValueError, match="every support must have a relevance to every support query, got 1 that are"):
        AnnCur(supports)


# AXN


@given(st.integers(1, 3), st.integers(2, 9), st.integers(1, 4), st.integers(0, 99))
def test_rounds_end_where_one_ridge_regression_does(num_queries: int, num_items: int, width: int, seed: int) -> None:
    vectors, start = some_vectors(num_items, width, seed), some_vectors(num_queries, num_items, seed + 1)
    truth = some_vectors(num_queries, num_items, seed + 2).double()
    ours = Axn(vectors, start, ridge=0.5)
    assert torch.equal(ours.scores(), start.double())
    while ours.item_rows.shape[1] < num_items:
        rows = ours.ask(2)
        assert rows.shape == (num_queries, min(2, num_items - ours.item_rows.shape[1]))
        ours.learn(rows, truth.gather(1, rows))
        estimated = ours.scores()
        for query in range(num_queries):
            known = ours.item_rows[query]
            e, own = vectors[known].double(), start[query].double()
            gram = e.T @ e + 0.5 * torch.eye(width, dtype=torch.float64)
            weights = torch.linalg.solve(gram, e.T @ (truth[query, known] - own[known]))
            expected = (own + vectors.double() @ weights).scatter(0, known, truth[query, known])
            assert torch.allclose(estimated[query], expected, atol=1e-6)
    assert torch.allclose(ours.found(1).scores[:, 0].double(), truth.amax(dim=1))


def test_the_best_of_the_rest_are_asked_next() -> None:
    ours = Axn(torch.eye(3), torch.tensor([[3.0, 2.0, 1.0]]))
    rows = ours.ask(2)
    assert rows.tolist() == [[0, 1]]
    ours.learn(rows, torch.tensor([[-5.0, -6.0]]))
    assert ours.ask(2).tolist() == [[2]]
    assert ours.found(2).item_rows.tolist() == [[0, 1]]


def fitted(vectors: torch.Tensor, start: torch.Tensor, answers: torch.Tensor, ridge: float = 0.5) -> np.ndarray:
    """v / b of one query, learned in two rounds."""
    ours, half = Correction(1, vectors.shape[1], ridge, has_units=False), len(start) // 2
    for part in (slice(half), slice(half, None)):
        ours.learn(vectors[None, part], start[None, part], answers[None, part])
    found: np.ndarray = ours.vector()[0].numpy()
    return found


@given(st.integers(3, 9), st.integers(1, 4), st.integers(0, 99))
def test_a_level_and_a_scale_are_fitted_without_a_penalty(num_items: int, width: int, seed: int) -> None:
    """a, b, v = argmin |a + b u0 + E v - s|^2 + lambda |v|^2, as least squares of more rows."""
    vectors, ridge = some_vectors(num_items, width, seed).double(), 0.5
    start, answers = some_vectors(2, num_items, seed + 1).double()
    rows = np.column_stack([np.ones(num_items), start, vectors])
    penalty = np.column_stack([np.zeros((width, 2)), ridge**0.5 * np.eye(width)])
    _, scale, *v = np.linalg.lstsq(np.vstack([rows, penalty]), np.append(answers, np.zeros(width)), rcond=None)[0]
    if scale <= 0:  # as the deviations have it; then a and v alone are fitted
        scale = float(answers.std(correction=0) / start.std(correction=0))
        system, goal = np.delete(np.vstack([rows, penalty]), 1, axis=1), np.append(answers - scale * start, [0] * width)
        _, *v = np.linalg.lstsq(system, goal, rcond=None)[0]
    assert fitted(vectors, start, answers, ridge) == pytest.approx(np.array(v) / scale, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("scale", "level"), [(1, -5), (10, 0), (0.1, 0), (10, 50), (1e-6, 1e3), (1e12, -1e15)])
def test_the_rankers_units_do_not_matter(scale: float, level: float) -> None:
    vectors, start, answers = some_vectors(9, 4).double(), *some_vectors(2, 9, 1).double()
    expected = fitted(vectors, start, answers)
    assert np.abs(expected).max() > 0.1
    assert fitted(vectors, start, scale * answers + level) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_scores_that_tell_no_items_apart_move_nothing() -> None:
    vectors, start, level = some_vectors(9, 4).double(), some_vectors(1, 9, 1)[0].double(), torch.full((9,), 0.1)
    assert not fitted(vectors, start, level.double()).any()
    assert not fitted(vectors[:1], start[:1], level[:1]).any()  # a single item


def test_a_level_alone_is_fitted_where_the_index_tells_no_items_apart() -> None:
    vectors, answers = some_vectors(9, 4).double(), some_vectors(1, 9, 1)[0].double()
    rows = np.column_stack([np.ones(9), vectors])
    gram = rows.T @ rows + np.diag([0, *[0.5] * 4])
    expected = np.linalg.solve(gram, rows.T @ answers.numpy())[1:]
    assert fitted(vectors, torch.full((9,), 0.1), answers) == pytest.approx(expected)


def test_answers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="ridge must be a finite number above 0, got 0"):
        Axn(torch.eye(3), torch.zeros(1, 3), ridge=0.0)
    ours = Axn(torch.eye(3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="a score of the heavy ranker must be finite"):
        ours.learn(torch.tensor([[0]]), torch.tensor([[torch.nan]]))
    ours.learn(torch.tensor([[0]]), torch.tensor([[1.0]]))
    with pytest.raises(ValueError, match="an item must be scored once for a query"):
        ours.learn(torch.tensor([[0]]), torch.tensor([[1.0]]))


def test_start_scores_that_are_equal_but_for_rounding_are_equal() -> None:
    vectors, answers = some_vectors(30, 6)[None], some_vectors(1, 30, 3)
    found = []
    for noise in (0.0, 6e-8):
        learned = Correction(1, 6, has_units=False)
        learned.learn(vectors, 0.7 + noise * some_vectors(1, 30, 5).sign(), answers)
        found.append(learned.vector())
    assert found[0].norm() > 0.1
    assert torch.allclose(found[0], found[1], rtol=1e-4)
