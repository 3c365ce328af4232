"""What a certificate claims, against float64 and against the theorem as it is printed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.kernels import mol_scan
from rails_ray.modules.similarities.states import ItemState, QueryState, map_tensors
from rails_ray.search.certificates import rounding_slack
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.spec import SearchSpec, gap_to
from support.examples import random_states, sharp_mixture, small_mixture


def test_the_printed_theorem_2_is_false_and_ours_holds() -> None:
    """Item 2 stands behind item 1 in both lists, but the gate looks only at its good component.

    By the paper the gap is at most the best *score* among the items next to the lists, less S_min: below 0 here.
    """
    cosines = torch.tensor([[0.95, 0.0], [0.9, -0.5], [0.8, -0.6]])  # [X, P]
    chosen = torch.tensor([1, 1, 0])  # the component that each item's gate looks at
    query = QueryState(torch.tensor([[[1.0, 0.0]]]), torch.ones(1, 2), torch.ones(1))
    components = torch.stack([cosines, (1 - cosines**2).sqrt()], dim=-1)
    gate = torch.full((3, 2), -50.0)
    gate[torch.arange(3), chosen] = 50
    items = ItemState(components, gate, components.mean(dim=1))
    mixture = small_mixture(1, 2)
    for parameter in mixture.parameters():
        parameter.data.zero_()  # w = 0: the gate is u * v

    scores = mixture.scores(query, items)[0]
    assert scores.tolist() == pytest.approx([0.0, -0.5, 0.8], abs=1e-6)
    found = Approximate(mixture, items, CandidateLists(num_per_embedding=1)).search(query, SearchSpec(1))
    assert found.item_rows.tolist() == [[0]]
    true_gap = (scores.max() - found.scores[0, 0]).item()
    printed = (scores[1] - found.scores[0, 0]).item()  # the second of both lists
    assert true_gap == pytest.approx(0.8)
    assert printed < 0
    assert found.gap(SearchSpec(1)).item() >= true_gap


@given(
    st.integers(0, 10_000),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.booleans(),
    st.integers(1, 12),
    st.integers(0, 9),
)
def test_random_trials(seed: int, stored: torch.dtype, is_sharp: bool, num_per_embedding: int, by_average: int) -> None:
    """In float64 on the items as they are stored: none that is missing scores above what is certified."""
    query, items = random_states(4, 60, seed=seed)
    items = map_tensors(lambda tensor: tensor.to(stored), items)
    mixture = sharp_mixture() if is_sharp else small_mixture(seed=seed)
    lists = CandidateLists(num_per_embedding=num_per_embedding, num_by_average=by_average)
    found = Approximate(mixture, items, lists).search(query, SearchSpec(3))
    gate = mol_scan.Gate(
        *(part.double() if isinstance(part, torch.Tensor) else part for part in mixture.gate_weights())
    )
    query, items = map_tensors(torch.Tensor.double, query), map_tensors(torch.Tensor.double, items)
    with torch.no_grad():
        exact = mol_scan.plain_scores(query.components, query.gate, items.components, items.gate, gate)
    kth = found.scores[:, -1]
    exact = exact.scatter(1, found.item_rows, -torch.inf)
    gap = found.gap(SearchSpec(3))
    assert (exact.amax(dim=1) - kth <= gap + 1e-6).all()


def test_an_item_like_the_one_found_leaves_a_gap_of_the_slack() -> None:
    """All cosines of two items are .5, which float32 holds exactly, and so are their scores; lists of one item see the
    first. Without the slack the gap would be 0, and the search be taken for exact."""
    query = QueryState(torch.tensor([[1.0, 0.0]]).expand(1, 2, 2), torch.ones(1, 4), torch.ones(1))
    components = torch.tensor([0.5, 0.75**0.5]).expand(2, 2, 2)
    items = ItemState(components, torch.ones(2, 4), components.mean(dim=1))
    mixture = small_mixture(2, 2)
    assert mixture.scores(query, items).tolist() == [[0.5, 0.5]]
    found = Approximate(mixture, items, CandidateLists(num_per_embedding=1)).search(query, SearchSpec(1))
    assert (found.item_rows.tolist(), found.num_scored.tolist()) == ([[0]], [1])
    slack, kth = rounding_slack(4, 2, torch.float32), found.scores[:, -1]
    assert 0 < found.gap(SearchSpec(1)).item() == pytest.approx(slack)
    assert gap_to(found.bound, kth + 2 * slack).item() == 0


def test_slack_grows_with_what_is_rounded() -> None:
    assert 0 < rounding_slack(4, 32, torch.float32) < rounding_slack(64, 768, torch.float32) < 2e-4
    assert rounding_slack(4, 32, torch.bfloat16) > rounding_slack(4, 32, torch.float32)
