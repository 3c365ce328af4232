import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.kernels.top_k import TopK, distinct, merge, select
from support.scores import tied_scores


@given(tied_scores(), st.integers(1, 12))
def test_select_orders_by_score_then_row(scores: torch.Tensor, k: int) -> None:
    found = select(scores, k)
    for line, rows, best in zip(scores.tolist(), found.item_rows.tolist(), found.scores.tolist(), strict=True):
        assert rows == oracles.ranking.top_k(line, k)
        assert best == [line[row] for row in rows]


@given(tied_scores(), st.integers(1, 12), st.permutations(range(12)))
def test_select_of_columns_in_any_order(scores: torch.Tensor, k: int, order: list[int]) -> None:
    order = [row for row in order if row < scores.shape[1]]
    rows = torch.tensor(order).expand(len(scores), -1)
    assert torch.equal(select(scores[:, order], k, rows).item_rows, select(scores, k).item_rows)


def test_merge_of_disjoint_parts() -> None:
    left = TopK(torch.tensor([[0.9, 0.1]]), torch.tensor([[3, 0]]))
    right = TopK(torch.tensor([[0.9, 0.5]]), torch.tensor([[7, 5]]))
    assert merge([right, left], 3).item_rows.tolist() == [[3, 7, 5]]


def test_no_query_and_no_item() -> None:
    assert select(torch.empty(0, 4), 2).item_rows.shape == (0, 2)
    assert select(torch.empty(4, 0), 2).item_rows.shape == (4, 0)


@given(tied_scores(), st.integers(1, 12), st.data())
def test_nan_counts_as_no_item(scores: torch.Tensor, k: int, data: st.DataObject) -> None:
    num = scores.numel()
    is_nan = torch.tensor(data.draw(st.lists(st.booleans(), min_size=num, max_size=num)), dtype=torch.bool)
    scores = scores.masked_fill(is_nan.view(scores.shape), torch.nan)
    found = select(scores, k)
    for line, rows, num_found in zip(scores.tolist(), found.item_rows.tolist(), found.num_found(), strict=True):
        nan = [row for row, score in enumerate(line) if score != score]
        assert rows[:num_found] == oracles.ranking.top_k(line, k, nan)
    assert not found.scores.isnan().any()


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=7, max_size=7), min_size=1, max_size=4))
def test_distinct_rows(lines: list[list[tuple[int, bool]]]) -> None:
    rows = torch.tensor([[row for row, _ in line] for line in lines], dtype=torch.int64).reshape(-1, 7)
    is_there = torch.tensor([[there for _, there in line] for line in lines], dtype=torch.bool).reshape(-1, 7)
    once, has = distinct(rows, is_there)
    expected = [sorted({row for row, there in line if there}) for line in lines]
    assert [line[own].tolist() for line, own in zip(once, has, strict=True)] == expected
    assert once.shape[1] == max(map(len, expected), default=0)


def test_scores_of_bfloat16_are_in_order_too() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]], dtype=torch.bfloat16)
    found = select(scores, 2)
    assert found.scores.tolist() == [[3.0, 3.0]]
    assert found.item_rows.tolist() == [[1, 2]]
