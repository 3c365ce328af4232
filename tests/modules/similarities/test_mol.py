import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles.scores
import oracles.vectors
from rails_ray.kernels.mol_scan import Activation
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import QueryState, map_tensors
from support.examples import random_states, small_mixture


@settings(deadline=None)
@given(
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from(["silu", "relu"]),
)
def test_equals_the_equation(
    num_queries: int, num_items: int, p_q: int, p_x: int, seed: int, activation: Activation
) -> None:
    query, items = random_states(num_queries, num_items, p_q=p_q, p_x=p_x, seed=seed)
    mixture = small_mixture(p_q, p_x, seed, activation)
    scored = mixture(query, items)
    first, second = mixture.logit_gate[1], mixture.logit_gate[3]
    w = [(layer.weight.tolist(), layer.bias.tolist()) for layer in (first, second)]
    assert scored.scores.shape == (num_queries, num_items)
    for b in range(num_queries):
        for x in range(num_items):
            score, gates = oracles.scores.mixture_of_logits(
                query.components[b].tolist(),
                items.components[x].tolist(),
                query.gate[b].tolist(),
                items.gate[x].tolist(),
                lambda logits: oracles.vectors.two_layers(w[0], w[1], logits, activation),
                mixture.temperature,
            )
            assert scored.scores[b, x].item() == pytest.approx(score, abs=1e-4)
            assert scored.gates[b, x].tolist() == pytest.approx(gates, abs=1e-4)


def test_candidates_of_each_query_score_as_in_the_corpus() -> None:
    query, items = random_states(3, 7)
    mixture = small_mixture()
    rows = torch.tensor([[0, 6, 3], [2, 2, 1], [5, 4, 0]])
    candidates = map_tensors(lambda tensor: tensor[rows], items)
    assert torch.allclose(mixture(query, candidates).scores, mixture(query, items).scores.gather(1, rows), atol=1e-6)


def test_scores_are_cosines_at_most() -> None:
    query, items = random_states(20, 50)
    assert small_mixture()(query, items).scores.abs().max() <= 1 + 1e-6


def test_permuting_items_permutes_scores() -> None:
    query, items = random_states(3, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    mixture = small_mixture()
    permuted = mixture(query, map_tensors(lambda tensor: tensor[order], items)).scores
    assert torch.allclose(permuted, mixture(query, items).scores[:, order], atol=1e-6)


def test_dropout_of_gates_renormalises() -> None:
    """With all component vectors equal every cosine is 1, and so is any mixture whose gates sum to 1."""
    query, items = random_states(4, 30)
    ones = torch.ones(1)
    query = QueryState(
        torch.zeros_like(query.components).index_fill_(2, torch.tensor([0]), 1.0), query.gate, ones.expand(4)
    )
    items = map_tensors(lambda tensor: tensor, items)
    items = type(items)(
        torch.zeros_like(items.components).index_fill_(2, torch.tensor([0]), 1.0), items.gate, items.average
    )
    torch.manual_seed(0)
    config = MixtureOfLogitsConfig(num_query_components=2, num_item_components=3, gate_dropout=0.5, logit_dropout=0.0)
    scored = MixtureOfLogits(config).train()(query, items)
    dropped_all = scored.scores < 0.5  # every gate of a pair dropped: its score is 0
    assert torch.allclose(scored.scores[~dropped_all], torch.tensor(1.0), atol=1e-5)
    assert scored.gates.sum(-1).allclose(torch.tensor(1.0))


def test_a_state_without_its_gate() -> None:
    query, items = random_states(1, 2)
    with pytest.raises(ValueError, match="needs the gate of query and item"):
        small_mixture()(QueryState(query.components, None, query.temperature), items)


@pytest.mark.parametrize("scores", ["forward", "training_scores", "scores"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"p_q": 3}, "query and item must have the 2 and 3 components of the mixture, got 3 and 3"),
        ({"p_x": 2}, "query and item must have the 2 and 3 components of the mixture, got 2 and 2"),
        ({"width": 5}, "components of query and item must have one width, got 4 and 5"),
    ],
)
def test_components_that_do_not_fit(scores: str, shape: dict[str, int], message: str) -> None:
    query, items = random_states(2, 4)
    other_query, other_items = random_states(2, 4, **shape)
    query = other_query if "p_q" in shape else query
    items = items if "p_q" in shape else other_items
    with pytest.raises(ValueError, match=message):
        getattr(small_mixture(), scores)(query, items)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_query_components", -1, "num_query_components must be at least 0, got -1"),
        ("gate_hidden", 0, "gate_hidden must be at least 1, got 0"),
        ("gate_inputs", (), "gate_inputs must name query, item or logits, got none"),
        ("temperature", 0.0, "temperature must be above 0, got 0.0"),
        ("gate_dropout", 1.0, r"gate_dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_config_out_of_range(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixtureOfLogitsConfig(**{field: value})


@pytest.mark.parametrize("inputs", [("query", "item"), ("query",), ("logits",), ("item", "logits")])
def test_a_gate_that_reads_less(inputs: tuple[str, ...]) -> None:
    """Without the logits, w is a bias that training moves; the scan and training scores see the same gate."""
    torch.manual_seed(0)
    config = MixtureOfLogitsConfig(
        num_query_components=2,
        num_item_components=3,
        gate_hidden=5,
        gate_dropout=0.0,
        logit_dropout=0.0,
        gate_inputs=inputs,
    )
    mixture, (query, items) = MixtureOfLogits(config), random_states(3, 7)
    scored = mixture(query, items)
    z = query.gate[:, None] * items.gate
    if "logits" not in inputs:
        z = z + mixture.logit_gate[3].bias
        assert torch.allclose(scored.gates, torch.softmax(torch.nn.functional.silu(z), dim=2), atol=1e-6)
    assert torch.allclose(mixture.scores(query, items), scored.scores, atol=1e-5)
    assert torch.allclose(mixture.training_scores(query, items), scored.scores, atol=1e-5)
    before = {name: weights.clone() for name, weights in mixture.named_parameters()}
    optimizer = torch.optim.AdamW(mixture.parameters(), lr=0.1)
    mixture.training_scores(query, items).sum().backward()
    optimizer.step()
    moved = {name for name, weights in mixture.named_parameters() if not torch.equal(weights, before[name])}
    assert moved == (set(before) if "logits" in inputs else {"logit_gate.3.bias"})
