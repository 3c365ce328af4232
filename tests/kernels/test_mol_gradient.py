"""Scores for training and their gradient by hand, against the plain version and its automatic gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rails_ray.kernels import mol_gradient
from rails_ray.kernels.mol_scan import Activation
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, map_tensors, take
from support.examples import random_states, small_mixture
from support.tried import tried


def leaves_of(mixture: MixtureOfLogits, query: QueryState, items: ItemState) -> list[Tensor]:
    states = [query.components, query.gate, items.components, items.gate]
    return [*(state.requires_grad_() for state in states), *mixture.parameters()]


def doubled(
    b: int, x: int, p_q: int, p_x: int, seed: int, own: bool, activation: Activation = "silu"
) -> tuple[MixtureOfLogits, QueryState, ItemState]:
    """With candidates of each query's own if asked: x items of three times as many."""
    states = random_states(b, 3 * x, p_q=p_q, p_x=p_x, seed=seed)
    query, items = (map_tensors(torch.Tensor.double, state) for state in states)
    if own:
        rows = torch.randint(3 * x or 1, (b, x), generator=torch.Generator().manual_seed(seed))
        items = take(items, rows) if x else map_tensors(lambda tensor: tensor.new_empty(b, 0, *tensor.shape[1:]), items)
    return small_mixture(p_q, p_x, seed, activation).double(), query, items


@tried(40)
@given(
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(["silu", "relu"]),
)
def test_scores_and_gradients_are_the_plain_versions(
    b: int, x: int, p_q: int, p_x: int, seed: int, own: bool, activation: Activation
) -> None:
    mixture, query, items = doubled(b, x, p_q, p_x, seed, own, activation)
    leaves = leaves_of(mixture, query, items)
    plain = mixture(query, items).scores
    by_hand = mixture.training_scores(query, items)
    assert torch.allclose(by_hand, plain, atol=1e-12)
    weights = torch.randn(plain.shape, dtype=plain.dtype, generator=torch.Generator().manual_seed(seed))
    expected = torch.autograd.grad((plain * weights).sum(), leaves)
    found = torch.autograd.grad((by_hand * weights).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-10)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_with_dropout_the_gradient_is_the_slope(own: bool, activation: Activation) -> None:
    mixture, query, items = doubled(3, 4, 2, 3, 0, own, activation)
    gate = mixture.gate_weights()
    kept = mol_gradient.drawn(
        (6, query.components.shape[0] * items.components.shape[-3]), 0.3, 0.4, torch.device("cpu")
    )

    def scores(f: Tensor, u: Tensor, g: Tensor, v: Tensor, *weights: Tensor) -> Tensor:
        fields = ("first", "first_bias", "second", "second_bias")
        return mol_gradient.scores(f, u, g, v, gate._replace(**dict(zip(fields, weights, strict=True))), kept=kept)

    assert torch.autograd.gradcheck(scores, tuple(leaves_of(mixture, query, items)))


def test_what_dropout_keeps_is_mixed_and_renormalised() -> None:
    """Against the equation, with masks in the order of the products, p_x first."""
    mixture, query, items = doubled(2, 5, 2, 3, 1, False)
    count = len(items)
    kept = mol_gradient.drawn((6, 2 * count), 0.3, 0.4, torch.device("cpu"))
    states = (query.components, query.gate, items.components, items.gate)
    found = mol_gradient.scores(*states, mixture.gate_weights(), kept=kept)

    def by_query_first(mask: Tensor) -> Tensor:
        return mask.view(3, 2, 2, count).permute(2, 3, 1, 0).flatten(2)  # [B, X, P]

    cosines = torch.einsum("bqd,xpd->bxqp", query.components, items.components).flatten(2)
    dropped = cosines * by_query_first(kept.logits) / kept.share / mixture.temperature
    z = query.gate[:, None] * items.gate + mixture.logit_gate[3](
        torch.nn.functional.silu(mixture.logit_gate[1](dropped))
    )
    gates = torch.softmax(z * torch.sigmoid(z), dim=-1) * by_query_first(kept.gates)
    assert torch.allclose(found, (gates * cosines).sum(-1) / gates.sum(-1).clamp(min=1e-6), atol=1e-12)


def test_a_pair_without_any_gate_scores_0() -> None:
    mixture, query, items = doubled(1, 1, 2, 2, 0, False)
    nothing = mol_gradient.Kept(gates=torch.zeros(4, len(items), dtype=torch.bool))
    leaves = leaves_of(mixture, query, items)
    found = mol_gradient.scores(*leaves[:4], mixture.gate_weights(), kept=nothing)
    assert torch.equal(found, torch.zeros_like(found))
    assert all(
        gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), leaves_of(mixture, query, items))
    )


def test_dropped_shares() -> None:
    torch.manual_seed(0)
    kept = mol_gradient.drawn((32, 4000), 0.1, 0.2, torch.device("cpu"))
    assert kept.logits.double().mean() == pytest.approx(0.9, abs=0.005)
    assert kept.share == pytest.approx(0.9, abs=1 / 512)
    assert kept.gates.double().mean() == pytest.approx(0.8, abs=0.005)
    assert mol_gradient.drawn((32, 4000), 0.0, 0.0, torch.device("cpu")) == mol_gradient.ALL


def test_in_bfloat16_a_score_and_its_gradient_are_close() -> None:
    """At the paper's size: products are rounded to 8 bits, scores stay mixtures of cosines in full precision."""
    torch.manual_seed(0)
    config = MixtureOfLogitsConfig(num_query_components=8, num_item_components=4, gate_precision="bfloat16")
    mixture = MixtureOfLogits(config).eval()
    query, items = random_states(6, 50, p_q=8, p_x=4, width=64)
    leaves = leaves_of(mixture, query, items)
    plain, rounded = mixture(query, items).scores, mixture.training_scores(query, items)
    assert 0 < (plain - rounded).abs().max() < 2e-3
    expected, found = (torch.autograd.grad(scores.logsumexp(1).sum(), leaves) for scores in (plain, rounded))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()
