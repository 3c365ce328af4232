import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.scores
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import Codes, Tables


@given(st.integers(0, 3), st.integers(0, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_a_score_is_the_sum_of_what_its_code_is_worth(
    num_queries: int, num_items: int, num_chunks: int, num_buckets: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(num_queries, num_chunks, num_buckets, generator=generator)
    codes = torch.randint(num_buckets, (num_items, num_chunks), generator=generator, dtype=torch.int32)
    query, items = Tables(tables, torch.ones(num_queries)), Codes(codes)
    scored = LookUp(num_buckets)(query, items)
    expected = [[oracles.scores.look_up(table, code) for code in codes.tolist()] for table in tables.tolist()]
    assert scored.scores.shape == (num_queries, num_items)
    assert scored.scores.tolist() == [pytest.approx(line, abs=1e-6) for line in expected]
    assert scored.gates is None
    assert torch.equal(scored.scores, LookUp(num_buckets).scores(query, items, torch.full((num_queries,), 9.0)))


def test_tables_of_mean_probabilities_give_scores_from_0_to_1() -> None:
    """The mean probability of an item's buckets, as `Solar` divides by the chunks."""
    probabilities = torch.tensor([[0.0, 1.0], [0.25, 0.75], [1.0, 0.0]])
    query = Tables(probabilities.unsqueeze(0) / 3, torch.ones(1))
    items = Codes(torch.tensor([[0, 0, 1], [1, 1, 0], [1, 0, 0]]))
    scores = LookUp(2).scores(query, items)
    assert scores[0].tolist() == pytest.approx([0.25 / 3, 2.75 / 3, 2.25 / 3])


def test_items_score_the_same_in_any_order() -> None:
    torch.manual_seed(0)
    query, codes = Tables(torch.rand(2, 3, 7), torch.ones(2)), torch.randint(7, (20, 3))
    order = torch.randperm(20)
    scores = [LookUp(7).scores(query, Codes(rows)) for rows in (codes, codes[order])]
    assert torch.equal(scores[0][:, order], scores[1])


def test_it_learns_nothing() -> None:
    similarity = LookUp(7)
    assert list(similarity.parameters()) == []
    assert similarity.num_components == (1, 1)
    tables = torch.rand(1, 2, 7, requires_grad=True)
    assert not similarity(
        Tables(tables, torch.ones(1)), Codes(torch.zeros(3, 2, dtype=torch.int64))
    ).scores.requires_grad
