import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles.losses
import oracles.ranking
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.losses.exp_nce import exp_logit
from rails_ray.modules.losses.maximum_likelihood import BetaParameters, maximum_likelihood
from rails_ray.modules.losses.mutual_information import mutual_information
from rails_ray.modules.losses.negatives import BatchRelevance, roles
from rails_ray.modules.losses.sampled_softmax import ScaledLogit, sampled_softmax


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_sampled_softmax_equals_the_equation(num_queries: int, num_items: int, data: st.DataObject) -> None:
    number = st.floats(-20, 20)
    logits = [data.draw(st.lists(number, min_size=num_items, max_size=num_items)) for _ in range(num_queries)]
    positive = [data.draw(st.integers(0, num_items - 1)) for _ in range(num_queries)]
    hidden = [[data.draw(st.booleans()) and column != own for column in range(num_items)] for own in positive]
    double = torch.tensor(logits, dtype=torch.float64)  # so that the equation is compared, not float32's rounding
    loss = sampled_softmax(double, torch.tensor(positive), torch.tensor(hidden))
    assert loss.mean().item() == pytest.approx(oracles.losses.sampled_softmax(logits, positive, hidden), abs=1e-9)


def test_sampled_softmax_of_the_positive_alone_is_zero() -> None:
    loss = sampled_softmax(torch.tensor([[3.0, 9.0]]), torch.tensor([0]), torch.tensor([[False, True]]))
    assert loss.item() == 0


def test_sampled_softmax_survives_huge_logits() -> None:
    logits = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = sampled_softmax(logits, torch.tensor([1]), torch.zeros(1, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(2e4)
    assert logits.grad.tolist() == [[1.0, -1.0]]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=5), st.floats(0.01, 1))
def test_beta_logit_equals_the_equation(scores: list[float], tau_q: float) -> None:
    logits = beta_logit(torch.tensor([scores], dtype=torch.float64), torch.tensor([tau_q], dtype=torch.float64))
    assert logits[0].tolist() == pytest.approx(
        [oracles.losses.beta_logit(s, tau_q) for s in scores], rel=1e-9, abs=1e-9
    )


def test_beta_logit_of_the_lowest_score_is_finite_with_a_finite_gradient() -> None:
    scores = torch.tensor([[-1.0]], requires_grad=True)
    logits = beta_logit(scores, torch.tensor([0.01]))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert scores.grad.isfinite().all()


def test_exp_logit_is_the_score_below_1_over_the_temperature_of_its_query() -> None:
    logits = exp_logit(torch.tensor([[0.5, -1.0], [0.5, 1.0]]), torch.tensor([0.5, 0.25]))
    assert logits.tolist() == [[-1.0, -4.0], [-2.0, 0.0]]


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_maximum_likelihood_equals_the_equation(num_queries: int, num_items: int, data: st.DataObject) -> None:
    scores = [[data.draw(st.floats(-0.99, 0.99)) for _ in range(num_items)] for _ in range(num_queries)]
    relevant = [[data.draw(st.booleans()) or column == 0 for column in range(num_items)] for _ in range(num_queries)]
    counts = [[data.draw(st.floats(0.5, 30)) for _ in range(4)] for _ in range(num_queries)]
    own, other = [(line[0], line[1]) for line in counts], [(line[2], line[3]) for line in counts]
    columns = torch.tensor(counts, dtype=torch.float64).unbind(dim=1)
    loss = maximum_likelihood(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(relevant),
        ~torch.tensor(relevant),
        BetaParameters(*columns[:2]),
        BetaParameters(*columns[2:]),
    )
    expected = oracles.losses.maximum_likelihood(scores, relevant, own, other)
    assert loss.mean().item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_maximum_likelihood_finds_the_parameters_that_scores_were_drawn_from() -> None:
    """Beta(8, 2) of relevant scores, Beta(5, 5) of the others."""
    torch.manual_seed(0)
    z = [torch.distributions.Beta(*map(torch.tensor, of)).sample((1, 4000)) for of in ((8.0, 2.0), (5.0, 5.0))]
    scores = 2 * torch.cat(z, dim=1) - 1
    is_relevant = torch.arange(8000).expand(1, 8000) < 4000
    counts = torch.zeros(4, 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([counts], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        alpha, beta, alpha_other, beta_other = counts.exp()
        found = BetaParameters(alpha, beta), BetaParameters(alpha_other, beta_other)
        loss = maximum_likelihood(scores, is_relevant, ~is_relevant, *found)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert counts.exp().flatten().tolist() == pytest.approx([8, 2, 5, 5], rel=0.1)


def test_maximum_likelihood_is_finite_at_the_ends_of_the_scale() -> None:
    scores = torch.tensor([[1.0, -1.0]], requires_grad=True)
    heads = BetaParameters(torch.tensor([3.0]), torch.tensor([4.0]))
    is_relevant = torch.tensor([[False, True]])
    loss = maximum_likelihood(scores, is_relevant, ~is_relevant, heads, heads)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad.isfinite().all()


def test_scaled_logit_is_phi() -> None:
    assert ScaledLogit(0.05)(torch.tensor([[0.5]]), torch.tensor([9.0])).item() == pytest.approx(10)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 100))
def test_mutual_information_equals_the_equation(num_pairs: int, num_gates: int, seed: int) -> None:
    gates = torch.rand(num_pairs, num_gates, generator=torch.Generator().manual_seed(seed)) + 1e-3
    gates = gates / gates.sum(1, keepdim=True)
    loss = mutual_information(gates, gates.mean(0), 1 / num_pairs)
    assert loss.item() == pytest.approx(oracles.losses.mutual_information(gates.tolist()), abs=1e-5)


def test_mutual_information_is_least_where_each_pair_has_a_gate_of_its_own() -> None:
    assert mutual_information(torch.eye(4), torch.full((4,), 0.25), 1 / 4).item() == pytest.approx(-math.log(4))


def test_mutual_information_has_finite_gradients_at_closed_gates() -> None:
    gates = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    mutual_information(gates, gates.mean(0), 1 / 2).backward()
    assert gates.grad.isfinite().all()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.data())
def test_hidden_items_equal_the_definition(item_rows: list[int], data: st.DataObject) -> None:
    num_queries = data.draw(st.integers(1, 4))
    positive = [data.draw(st.integers(0, len(item_rows) - 1)) for _ in range(num_queries)]
    relevant = [sorted({item_rows[own], *data.draw(st.lists(st.integers(0, 6), max_size=4))}) for own in positive]
    pairs = [(query, row) for query, rows in enumerate(relevant) for row in rows]
    relevance = BatchRelevance(torch.tensor([query for query, _ in pairs]), torch.tensor([row for _, row in pairs]))
    found = roles(torch.tensor(item_rows), torch.tensor(positive), relevance)
    assert found.is_hidden.tolist() == oracles.ranking.hidden_items(item_rows, positive, relevant)
    assert torch.equal(found.is_relevant, ~found.is_negative)
