import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import oracles.losses
from rails_ray.modules.losses.glas import CoOccurrence, glas
from rails_ray.modules.losses.negatives import BatchRelevance

NUM_ITEMS = 6
RELEVANT = st.lists(st.lists(st.integers(0, NUM_ITEMS - 1), max_size=5), max_size=8)


def co_occurrence(relevant: list[list[int]]) -> CoOccurrence:
    pairs = [(query, row) for query, rows in enumerate(relevant) for row in rows]
    columns = [[pair[part] for pair in pairs] for part in (0, 1)]
    return CoOccurrence(BatchRelevance(*(torch.tensor(column, dtype=torch.int64) for column in columns)), NUM_ITEMS)


def unit_vectors(num_items: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(num_items, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(drawn, dim=1)


@given(RELEVANT, st.lists(st.integers(0, NUM_ITEMS - 1), min_size=1, max_size=8), st.integers(0, 100))
def test_glas_equals_the_equation(relevant: list[list[int]], item_rows: list[int], seed: int) -> None:
    """Queries without an answer, pairs given twice and items drawn twice included."""
    vectors = unit_vectors(len(item_rows), seed)
    loss = glas(vectors, co_occurrence(relevant).targets(torch.tensor(item_rows)))
    assert loss.item() == pytest.approx(oracles.losses.glas(vectors.tolist(), item_rows, relevant), rel=1e-6, abs=1e-6)


def test_a_target_is_the_mean_of_the_shares_both_ways() -> None:
    """Item 0 answers four queries, one of them with item 1, which answers two; items 4 and 5 answer none."""
    targets = co_occurrence([[0, 1], [0], [0], [0, 2], [1]]).targets(torch.tensor([1, 0, 4, 5, 1]))
    shared = (1 / 4 + 1 / 2) / 2
    assert targets.tolist() == [
        [1, shared, 0, 0, 1],
        [shared, 1, 0, 0, shared],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [1, shared, 0, 0, 1],
    ]


def test_a_corpus_that_answers_nothing_is_spread_out() -> None:
    found = CoOccurrence(BatchRelevance(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)), 3)
    assert torch.equal(found.targets(torch.arange(3)), torch.eye(3))
    assert glas(torch.eye(3), found.targets(torch.arange(3))).item() == 0


@given(RELEVANT, st.permutations(range(NUM_ITEMS)))
def test_the_order_of_the_items_does_not_matter(relevant: list[list[int]], order: list[int]) -> None:
    found, vectors = co_occurrence(relevant), unit_vectors(NUM_ITEMS)
    loss = glas(vectors, found.targets(torch.arange(NUM_ITEMS)))
    assert glas(vectors[order], found.targets(torch.tensor(order))).item() == pytest.approx(loss.item())


def test_the_gradient_is_that_of_the_equation() -> None:
    targets = co_occurrence([[0, 1], [1, 2, 3]]).targets(torch.arange(5)).double()
    vectors = unit_vectors(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: glas(v, targets), (vectors,))


def test_items_of_the_same_queries_come_near_and_others_part() -> None:
    targets = co_occurrence([[0, 1], [2, 3]]).targets(torch.arange(4))
    raw = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    optimizer = torch.optim.Adam([raw], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        glas(F.normalize(raw, dim=1), targets).backward()
        optimizer.step()
    vectors = F.normalize(raw.detach(), dim=1)
    assert torch.allclose(vectors @ vectors.T, targets, atol=1e-2)
