"""Theorem 1 of RAILS: what a mixture can be, and a dot product of as many numbers cannot; and the converse."""

import pytest
import torch

from oracles.theorem1 import (
    best_of_rank,
    decomposed,
    equal_width,
    of_relevance,
    remembered,
    separating,
    turned_terms,
)

N = 64


def random_matrix(num_items: int = N, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(N, num_items, generator=generator, dtype=torch.float64) * 2 - 1


def random_relevance(ones: int, seed: int = 0) -> torch.Tensor:
    """A permutation for one in a row, so that it has full rank."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.rand(N, N, generator=generator).argsort(dim=1)[:, :ones]
    if ones == 1:
        columns = torch.randperm(N, generator=generator)[:, None]
    return torch.zeros(N, N, dtype=torch.bool).scatter(1, columns, True)


@pytest.mark.parametrize("rank", [1, 4, 63])
@pytest.mark.parametrize("matrix", [random_matrix(), random_matrix(100), random_relevance(1).double()])
def test_two_matrices_of_low_rank_and_a_gate_are_any_matrix(matrix: torch.Tensor, rank: int) -> None:
    low = turned_terms(matrix, rank, torch.Generator().manual_seed(0))
    gates, first, second = decomposed(matrix, low)
    assert torch.linalg.matrix_rank(matrix) == N
    assert max(torch.linalg.matrix_rank(part) for part in (first, second)) == rank
    assert gates.min() >= 0
    assert gates.max() <= 1
    assert torch.allclose(gates * first + (1 - gates) * second, matrix, rtol=0, atol=1e-8)


def test_no_gate_mends_an_entry_that_both_matrices_leave_zero() -> None:
    """The printed proof with U = I and V = A, which it allows."""
    matrix = random_relevance(1).double()
    low = matrix * (torch.arange(N) < 4)[:, None]
    gates, first, second = decomposed(matrix, low)
    missed = (gates * first + (1 - gates) * second - matrix).abs()
    assert missed[:4].max() < 1e-12
    assert (missed[4:].max(dim=1).values == 1).all()


def test_our_mixture_remembers_a_random_matrix_of_full_rank() -> None:
    matrix = random_matrix()
    made = remembered(matrix)
    assert made.query.components.shape == (N, 1, 2)
    assert made.items.components.shape == (N, 2, 2)
    assert made.items.components.norm(dim=-1).allclose(torch.ones((), dtype=torch.float64))
    assert torch.allclose(made.matrix(), matrix, rtol=0, atol=1e-8)
    assert torch.linalg.matrix_rank(made.matrix()) == N


def test_what_is_remembered_is_paid_for() -> None:
    """Theorem 1 counts no numbers: a dot product of as many as `remembered` takes has full rank, and is exact."""
    made = remembered(random_matrix())
    assert made.num_parameters > N * N
    assert equal_width(made.num_parameters, N, N) >= N


@pytest.mark.parametrize("ones", [1, 2, 3])
def test_a_mixture_is_relevance_that_no_dot_product_of_as_many_numbers_is(ones: int) -> None:
    relevant = random_relevance(ones)
    matrix = relevant.double()
    made = of_relevance(relevant)
    width = equal_width(made.num_parameters, N, N)
    assert torch.allclose(made.matrix(), matrix, rtol=0, atol=1e-9)
    least = torch.linalg.svdvals(matrix)[width:].square().sum().sqrt()  # Eckart and Young
    assert (best_of_rank(matrix, width) - matrix).norm() == pytest.approx(float(least))
    assert least > 0.5 * matrix.norm()
    assert (made.matrix() - matrix).norm() < 1e-8 * least


def test_a_permutation_is_furthest_from_low_rank() -> None:
    """All its singular values are 1: a dot product of width d leaves n - d of n."""
    matrix = random_relevance(1).double()
    for width in (1, 10, 40):
        assert (best_of_rank(matrix, width) - matrix).square().sum() == pytest.approx(N - width)


@pytest.mark.parametrize("ones", [1, 2, 3])
def test_a_dot_product_suffices_to_rank_few_relevant_items_first(ones: int) -> None:
    relevant = random_relevance(ones)
    f, g = separating(relevant)
    scores = f @ g.T
    assert (g[:, 2 * ones + 1 :] == 0).all()  # so that 2 r + 1 numbers suffice
    assert scores[relevant].max() - scores[relevant].min() < 1e-12
    assert scores[relevant].min() > scores[~relevant].max() + 1e-7
    assert (scores.topk(ones, dim=1).indices.sort(dim=1).values == relevant.nonzero()[:, 1].view(N, ones)).all()


def test_a_dot_product_suffices_for_low_rank() -> None:
    matrix = random_matrix()[:, :5] @ random_matrix(seed=1)[:5]
    assert torch.allclose(best_of_rank(matrix, 5), matrix, rtol=0, atol=1e-12)
    assert not torch.allclose(best_of_rank(matrix, 4), matrix, rtol=0, atol=0.1)


def test_relevance_of_uneven_rows() -> None:
    relevant = random_relevance(2)
    relevant[3] = False
    with pytest.raises(ValueError, match="rows must have as many ones each, got 0 to 2"):
        of_relevance(relevant)
