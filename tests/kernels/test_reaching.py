"""The few scores that reach a threshold, against a loop."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from rails_ray.kernels.reaching import MOST_SCORES, num_reaching, reaching

SCORES = st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 1.0, torch.inf, torch.nan])


@given(st.lists(st.lists(SCORES, min_size=5, max_size=5), min_size=1, max_size=7), st.lists(SCORES, min_size=7))
def test_every_score_that_reaches_and_no_other(lines: list[list[float]], least: list[float]) -> None:
    scores, reach = torch.tensor(lines), torch.tensor(least[: len(lines)])
    expected = [
        (query, column)
        for query, line in enumerate(lines)
        for column, score in enumerate(line)
        if score >= least[query]
    ]
    for given_scores in (scores, torch.cat([scores, scores], dim=1)[:, :5], scores.double()):
        num = num_reaching(given_scores, reach)
        query, column = reaching(given_scores, reach, num)
        assert list(zip(query.tolist(), column.tolist(), strict=True)) == expected
        assert num.tolist() == [sum(one == query for one, _ in expected) for query in range(len(lines))]


@pytest.mark.parametrize("width", [MOST_SCORES // 2 + 1, MOST_SCORES // 3, 7])
def test_lines_that_are_compared_together(width: int) -> None:
    scores = torch.randn(8, width, generator=torch.Generator().manual_seed(0))
    reach = torch.tensor([-9.0, 0.0, 1.0, 2.0, 9.0, 0.5, -1.0, 3.0])
    num = num_reaching(scores, reach)
    assert torch.equal(num, (scores >= reach[:, None]).sum(dim=1))
    expected = (scores >= reach[:, None]).nonzero(as_tuple=True)
    assert all(map(torch.equal, reaching(scores, reach, num), expected))


def test_no_scores() -> None:
    scores, reach = torch.empty(2, 0), torch.zeros(2)
    assert num_reaching(scores, reach).tolist() == [0, 0]
    assert reaching(scores, reach, num_reaching(scores, reach))[0].tolist() == []
