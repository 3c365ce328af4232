"""Top share against its equation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.losses
from rails_ray.modules.losses.top_share import top_share


@given(st.integers(1, 4), st.integers(1, 8), st.data())
def test_it_is_the_equation(num_queries: int, num_items: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    estimated = torch.randn(num_queries, num_items, generator=generator)
    relevance = torch.randint(4, (num_queries, num_items), generator=generator).float()  # some level
    num_best = data.draw(st.integers(1, num_items))
    loss = top_share(estimated, relevance, num_best)
    expected = [
        oracles.losses.top_share(*own, num_best) for own in zip(estimated.tolist(), relevance.tolist(), strict=True)
    ]
    assert loss.tolist() == pytest.approx(expected, abs=1e-5)
    assert loss.abs().max() <= 1 + 1e-6


def test_it_falls_where_the_best_items_rise() -> None:
    estimated = torch.zeros(1, 4, requires_grad=True)
    top_share(estimated, torch.tensor([[3.0, 1.0, 2.0, 0.0]]), 2).sum().backward()
    assert estimated.grad is not None
    assert (estimated.grad[0] < 0).tolist() == [True, False, True, False]


def test_an_item_without_a_relevance_takes_no_part() -> None:
    estimated, relevance = torch.randn(2, 5), torch.rand(2, 5)
    relevance[:, 3] = torch.nan
    left = [0, 1, 2, 4]
    loss = top_share(estimated, relevance, 2)
    assert torch.allclose(loss, top_share(estimated[:, left], relevance[:, left], 2))


def test_numbers_that_cannot_be() -> None:
    for num_best in (0, 6):
        with pytest.raises(ValueError, match=rf"num_best must be 1 to 5 \(the items\), got {num_best}"):
            top_share(torch.zeros(1, 5), torch.zeros(1, 5), num_best)
