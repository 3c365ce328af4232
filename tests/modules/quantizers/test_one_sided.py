"""To learn queries towards fixed orthonormal labels is to learn both: SOLAR, Theorem 1 and Lemma 2, in small.

    A = P B,  P = sum_i a_i b_i^T,      <f_I(x), f_L(y)> = <P f_I(x), R(y)>

with b_i = f_L(y_i) and a_i = R(y_i). The proof in Appendix C prints P_ij = <a_i, b_j>, which mixes the vectors of a
basis and not their coordinates: it cannot be applied to f_I(x).

Axes: Q queries, N items, F features, D coordinates, K chunks.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rails_ray.modules.quantizers.random_codes import balanced

NUM_QUERIES, NUM_FEATURES = 40, 6
RIDGE = 0.01  # so that the minimum is one point


def basis(num_vectors: int, width: int, seed: int) -> Tensor:
    """Orthonormal vectors, one a line."""
    drawn = torch.randn(width, num_vectors, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].T


def code_vectors(codes: np.ndarray, num_buckets: int) -> Tensor:
    """The label vectors [N, K * R] of some codes, of length 1."""
    num_chunks = codes.shape[1]
    chunks = F.one_hot(torch.from_numpy(codes).long(), num_buckets).double()
    return chunks.flatten(start_dim=1) / math.sqrt(num_chunks)


def carrying(from_vectors: Tensor, to_vectors: Tensor) -> Tensor:
    """P: takes each vector of one orthonormal basis to that of another."""
    return to_vectors.T @ from_vectors


@pytest.mark.parametrize("width", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", range(3))
def test_an_orthogonal_matrix_carries_one_basis_to_another(width: int, seed: int) -> None:
    a, b = basis(width, width, seed), basis(width, width, seed + 100)
    p = carrying(b, a)
    assert torch.allclose(p @ b.T, a.T)
    assert torch.allclose(p @ p.T, torch.eye(width, dtype=torch.float64))
    assert torch.allclose(p.T @ p, torch.eye(width, dtype=torch.float64))


@pytest.mark.parametrize("width", [3, 5, 16])  # turns of a plane commute
def test_scores_are_the_same_on_either_side_of_it(width: int) -> None:
    learned, fixed, queries = basis(width, width, 0), basis(width, width, 1), basis(3, width + 3, 2)[:, :width]
    p = carrying(learned, fixed)
    scores = queries @ learned.T
    assert torch.allclose(queries @ p.T @ fixed.T, scores)
    printed = fixed @ learned.T  # <a_i, b_j>
    stretched = p + 0.1 * torch.outer(p[:, 0], learned[1])
    others = {"the identity": torch.eye(width, dtype=torch.float64), "as printed": printed, "stretched": stretched}
    for name, other in others.items():
        assert not torch.allclose(queries @ other.T @ fixed.T, scores, atol=1e-3), name


def loss(scores: Tensor, is_relevant: Tensor, weights: Tensor) -> Tensor:
    """Binary cross entropy over all labels of a query, and the ridge."""
    each = F.binary_cross_entropy_with_logits(scores, is_relevant, reduction="none").sum(dim=1)
    return each.mean() + RIDGE * weights.square().sum()


def trained(features: Tensor, is_relevant: Tensor, labels: Tensor | None, width: int) -> tuple[Tensor, Tensor, float]:
    """Weights [D, F] of a linear model and label vectors [N, D], at the least loss; labels are learned unless given."""
    num_items = is_relevant.shape[1]
    torch.manual_seed(0)
    query_side = nn.Linear(NUM_FEATURES, width, bias=False, dtype=torch.float64)
    item_side = nn.utils.parametrizations.orthogonal(nn.Linear(width, num_items, bias=False, dtype=torch.float64))
    parameters = [*query_side.parameters(), *([] if labels is not None else item_side.parameters())]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        towards = item_side.weight if labels is None else labels
        value = loss(query_side(features) @ towards.T, is_relevant, query_side.weight)
        value.backward()
        return value

    optimizer.step(closure)
    towards = item_side.weight if labels is None else labels
    return query_side.weight.detach(), towards.detach(), closure().item()


@pytest.fixture
def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(NUM_QUERIES, NUM_FEATURES, generator=generator, dtype=torch.float64)
    truth = torch.randn(NUM_FEATURES, 5, generator=generator, dtype=torch.float64)
    return features, (features @ truth > 1).double()


LABELS = {
    "a basis": basis(5, 5, seed=7),
    "in a wider space": basis(5, 9, seed=7),
    "codes": code_vectors(balanced(5, 4, 5, seed=7), 5),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_one_sided_learning_reaches_what_two_sided_does(examples: tuple[Tensor, Tensor], labels: Tensor) -> None:
    features, is_relevant = examples
    width = labels.shape[1]
    f, _, one_sided = trained(features, is_relevant, labels, width)
    f_i, f_l, two_sided = trained(features, is_relevant, None, width)
    assert torch.allclose(f_l @ f_l.T, torch.eye(5, dtype=torch.float64), atol=1e-8)
    assert one_sided == pytest.approx(two_sided, rel=1e-9)
    assert torch.allclose(features @ f.T @ labels.T, features @ f_i.T @ f_l.T, atol=1e-4)
    p = carrying(f_l, labels)
    assert torch.allclose(p @ f_i, f, atol=1e-4)
    assert not torch.allclose(f_i, f, atol=0.1), "they are not the same to begin with"


def test_labels_that_are_not_orthonormal_reach_another_loss(examples: tuple[Tensor, Tensor]) -> None:
    labels = LABELS["a basis"].clone()
    labels[1] = (labels[0] + labels[1]) / math.sqrt(2)
    losses = [trained(*examples, towards, 5)[2] for towards in (labels, LABELS["a basis"])]
    assert abs(losses[0] - losses[1]) > 0.01


def test_codes_that_share_no_bucket_are_orthonormal() -> None:
    vectors = code_vectors(balanced(30, 4, 30, seed=0), 30)
    assert vectors.shape == (30, 120)
    assert torch.allclose(vectors @ vectors.T, torch.eye(30, dtype=torch.float64))


def test_codes_that_share_buckets_are_near_orthogonal() -> None:
    """K / R of Equation 1, over K as the vectors have length 1 here; a balanced chunk is a little below it."""
    num_items, num_chunks, num_buckets = 600, 16, 100
    products = code_vectors(balanced(num_items, num_chunks, num_buckets, seed=0), num_buckets)
    products = products @ products.T
    assert torch.allclose(products.diagonal(), torch.ones(num_items, dtype=torch.float64))
    apart = num_chunks * products[~torch.eye(num_items, dtype=torch.bool)]
    exact = num_chunks * (num_items / num_buckets - 1) / (num_items - 1)  # of the others, those in one's bucket
    assert apart.mean().item() == pytest.approx(exact)
    assert exact == pytest.approx(num_chunks / num_buckets, rel=0.2)
    assert (apart > 2.5).double().mean() < 0.001
