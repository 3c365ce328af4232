import pytest
import torch

import oracles.vectors
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import map_tensors, take
from support.examples import random_states


def test_equals_the_cosine() -> None:
    query, items = random_states(3, 5, p_q=1, p_x=1)
    scores = DotProduct(DotProductConfig())(query, items).scores
    for b in range(3):
        for x in range(5):
            expected = oracles.vectors.dot(query.components[b, 0].tolist(), items.components[x, 0].tolist())
            assert scores[b, x].item() == pytest.approx(expected, abs=1e-6)


def test_candidates_of_each_query_score_as_in_the_corpus() -> None:
    query, items = random_states(2, 5, p_q=1, p_x=1)
    rows = torch.tensor([[4, 0], [1, 1]])
    similarity = DotProduct(DotProductConfig())
    candidates = map_tensors(lambda tensor: tensor[rows], items)
    assert torch.allclose(similarity(query, candidates).scores, similarity(query, items).scores.gather(1, rows))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [None, torch.tensor([[4, 0], [1, 1], [2, 3]])])
def test_items_stored_in_fewer_bits_score_as_they_are_stored(stored: torch.dtype, rows: torch.Tensor | None) -> None:
    query, items = random_states(3, 5, p_q=1, p_x=1)
    items = map_tensors(lambda tensor: tensor.to(stored), items if rows is None else take(items, rows))
    similarity = DotProduct(DotProductConfig())
    expected = similarity(query, map_tensors(torch.Tensor.float, items)).scores
    assert expected.dtype == torch.float32
    assert torch.equal(similarity(query, items).scores, expected)
    assert torch.equal(similarity.scores(query, items), expected)


def test_temperature_out_of_range() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0, got -1"):
        DotProductConfig(temperature=-1.0)
