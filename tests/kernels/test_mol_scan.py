from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rails_ray.kernels import mol_scan
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, map_tensors, take
from support.examples import random_states, small_mixture


def double_scores(mixture: MixtureOfLogits, query: QueryState, items: ItemState) -> torch.Tensor:
    """By the plain version in float64."""
    gate = mol_scan.Gate(
        *(part.double() if isinstance(part, torch.Tensor) else part for part in mixture.gate_weights())
    )
    query, items = map_tensors(torch.Tensor.double, query), map_tensors(torch.Tensor.double, items)
    with torch.no_grad():
        return mol_scan.plain_scores(query.components, query.gate, items.components, items.gate, gate)


def largest_cosines(query: QueryState, items: ItemState) -> torch.Tensor:
    return torch.einsum("bqd,xpd->bxqp", query.components, items.components).amax(dim=(2, 3))


def of_books(num_queries: int, num_items: int, seed: int = 0) -> tuple[MixtureOfLogits, QueryState, ItemState]:
    """The paper's 8 x 8 x 32."""
    torch.manual_seed(seed)
    mixture = MixtureOfLogits(MixtureOfLogitsConfig(num_query_components=8, num_item_components=8)).eval()
    return mixture, *random_states(num_queries, num_items, p_q=8, p_x=8, width=32, seed=seed)


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_the_plain_version_equals_the_equation(activation: mol_scan.Activation) -> None:
    """`MixtureOfLogits`, which is tested against loops."""
    query, items = random_states(4, 9)
    mixture = small_mixture(activation=activation).double()
    query, items = map_tensors(torch.Tensor.double, query), map_tensors(torch.Tensor.double, items)
    assert torch.allclose(double_scores(mixture, query, items), mixture(query, items).scores, atol=1e-12)


@given(
    st.integers(0, 3),
    st.integers(0, 30),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from(["silu", "relu"]),
)
def test_scores_equal_the_plain_version_in_float64(
    b: int, x: int, p_q: int, p_x: int, seed: int, activation: mol_scan.Activation
) -> None:
    query, items = random_states(b, x, p_q=p_q, p_x=p_x, seed=seed)
    mixture = small_mixture(p_q, p_x, seed, activation)
    assert torch.allclose(mixture.scores(query, items).double(), double_scores(mixture, query, items), atol=1e-4)


@pytest.mark.parametrize(("gate_dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_at_the_size_of_the_paper(gate_dtype: torch.dtype, tolerance: float) -> None:
    """At tau .05 and weights as initialised, which is all that the tolerance of bfloat16 holds for."""
    mixture, query, items = of_books(5, 600)
    scores = mixture.prepared(gate_dtype).scores(query, items)
    expected = double_scores(mixture, query, items)
    assert torch.allclose(scores.double(), expected, atol=tolerance, rtol=0)
    for line, true in zip(scores, expected, strict=True):  # away from ties the same ten best
        tenth = true.topk(10).values[-1]
        sure = (true > tenth + 2 * tolerance).nonzero()[:, 0].tolist()
        assert set(sure) <= set(line.topk(10).indices.tolist())


@pytest.mark.parametrize(
    ("shape", "tau", "scale", "low", "high"),
    [
        ((8, 8, 32, 128), 0.2, 1, 0.00005, 0.001),
        ((8, 8, 32, 128), 0.05, 1, 0.0005, 0.01),
        ((8, 8, 32, 128), 0.01, 1, 0.004, 0.05),
        ((8, 8, 32, 128), 0.05, 4, 0.01, 0.2),
        ((2, 3, 4, 5), 0.05, 1, 0.005, 0.1),
        ((2, 3, 4, 5), 0.01, 1, 0.02, 0.5),
    ],
)
def test_errors_of_a_gate_in_bfloat16_grow_with_the_weights_and_as_tau_falls(
    shape: tuple[int, int, int, int], tau: float, scale: int, low: float, high: float
) -> None:
    """The docstring's figures, within a factor of about five; what holds everywhere is that scores stay mixtures."""
    p_q, p_x, width, hidden = shape
    config = MixtureOfLogitsConfig(
        num_query_components=p_q, num_item_components=p_x, gate_hidden=hidden, temperature=tau
    )
    largest = 0.0
    for seed in range(3):
        torch.manual_seed(seed)
        mixture = MixtureOfLogits(config).eval()
        for parameter in mixture.parameters():
            parameter.data.mul_(scale)
        query, items = random_states(8, 400, p_q=p_q, p_x=p_x, width=width, seed=seed)
        scores = mixture.prepared(torch.bfloat16).scores(query, items)
        largest = max(largest, float((scores.double() - double_scores(mixture, query, items)).abs().max()))
        cosines = torch.einsum("bqd,xpd->bxqp", query.components, items.components).flatten(start_dim=2)
        assert (scores <= cosines.amax(dim=2) + 1e-6).all()
        assert (scores >= cosines.amin(dim=2) - 1e-6).all()
    assert low < largest < high


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_items_stored_in_fewer_bits_score_as_they_are_stored(stored: torch.dtype) -> None:
    mixture, query, items = of_books(3, 50)
    items = map_tensors(lambda tensor: tensor.to(stored), items)
    assert torch.allclose(
        mixture.scores(query, items).double(), double_scores(mixture, query, items), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("block_pairs", [1, 6 * 3 * 5, 6 * 3 * 37])
def test_blocks_of_any_size_give_one_answer(monkeypatch: pytest.MonkeyPatch, block_pairs: int) -> None:
    query, items = random_states(3, 37)
    whole = small_mixture().scores(query, items)
    monkeypatch.setattr(mol_scan, "BLOCK_PAIRS", block_pairs)
    assert torch.allclose(small_mixture().scores(query, items), whole, atol=1e-6)


@pytest.mark.parametrize("floor", [-2.0, 0.0, 0.5, 0.9, 2.0])
def test_only_items_that_can_reach_the_floor_need_a_score(floor: float) -> None:
    query, items = random_states(4, 200, seed=1)
    mixture = small_mixture()
    scores = mixture.scores(query, items, torch.full((4,), floor))
    expected = mixture.scores(query, items)
    largest = largest_cosines(query, items)
    is_scored = scores > -torch.inf
    assert is_scored[largest >= floor].all()
    assert torch.allclose(scores[is_scored], expected[is_scored], atol=1e-6)
    if floor >= 0.9:  # few items, so the others were passed over
        assert torch.equal(is_scored, largest >= floor)


def test_candidates_score_as_in_the_corpus() -> None:
    query, items = random_states(3, 7)
    rows = torch.tensor([[0, 6, 3], [2, 2, 1], [5, 4, 0]])
    scores = small_mixture().scores(query, take(items, rows))
    assert torch.allclose(scores, small_mixture().scores(query, items).gather(1, rows), atol=1e-6)


@pytest.mark.parametrize("floor", [-2.0, 0.0, 0.9, 2.0])
def test_only_candidates_that_can_reach_the_floor_need_a_score(floor: float) -> None:
    query, items = random_states(3, 50, seed=1)
    rows = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(line)) for line in range(3)])
    mixture = small_mixture()
    scores = mixture.scores(query, take(items, rows), torch.tensor([floor, floor, -2.0]))
    expected = mixture.scores(query, items).gather(1, rows)
    largest = largest_cosines(query, items).gather(1, rows)
    is_scored = scores > -torch.inf
    assert is_scored[largest >= floor].all()
    assert is_scored[2].all()
    assert torch.allclose(scores[is_scored], expected[is_scored], atol=1e-6)
    if floor >= 0.9:
        assert torch.equal(is_scored[:2], largest[:2] >= floor)


def test_no_score_exceeds_its_largest_cosine() -> None:
    mixture, query, items = of_books(4, 300, seed=2)
    largest = largest_cosines(query, items)
    assert (mixture.scores(query, items) <= largest + 1e-6).all()


def test_a_prepared_mixture_keeps_the_weights_of_its_moment() -> None:
    query, items = random_states(3, 20)
    mixture = small_mixture()
    prepared, before = mixture.prepared(), mixture.scores(query, items)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.mul_(2)
    assert torch.equal(prepared.scores(query, items), before)
    assert not torch.allclose(mixture.scores(query, items), before)


def test_threads_that_search_at_once_do_not_share_memory() -> None:
    mixture = small_mixture().prepared()
    cases = [random_states(3, 4000 + 100 * seed, seed=seed) for seed in range(8)]
    expected = [small_mixture().scores(*case) for case in cases]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            found = list(threads.map(lambda case: mixture.scores(*case), cases))
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


class Allocated(TorchDispatchMode):
    """The largest array that was asked of the system."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if "empty" in func.name():
            self.largest = max(self.largest, made.numel())
        return made


@pytest.mark.parametrize("of_candidates", [False, True])
def test_a_second_search_takes_the_memory_of_the_first(of_candidates: bool) -> None:
    query, items = random_states(3, 500)
    if of_candidates:
        items = take(items, torch.arange(500).expand(3, 500))
    mixture, largest = small_mixture().prepared(), []
    for _ in range(2):
        with Allocated() as allocated:
            mixture.scores(query, items)
        largest.append(allocated.largest)
    assert largest[0] >= 3 * 500 * 6
    assert largest[1] <= 3 * 500
