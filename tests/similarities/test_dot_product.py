import pytest
import torch

import oracles
from examples import random_states
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.states import map_tensors


def test_equals_the_cosine() -> None:
    query, items = random_states(3, 5, p_q=1, p_x=1)
    scores = DotProduct(DotProductConfig())(query, items).scores
    for b in range(3):
        for x in range(5):
            expected = oracles.dot(query.components[b, 0].tolist(), items.components[x, 0].tolist())
            assert scores[b, x].item() == pytest.approx(expected, abs=1e-6)


def test_candidates_of_each_query_score_as_in_the_corpus() -> None:
    query, items = random_states(2, 5, p_q=1, p_x=1)
    rows = torch.tensor([[4, 0], [1, 1]])
    similarity = DotProduct(DotProductConfig())
    candidates = map_tensors(lambda tensor: tensor[rows], items)
    assert torch.allclose(similarity(query, candidates).scores, similarity(query, items).scores.gather(1, rows))


def test_temperature_out_of_range() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0, got -1"):
        DotProductConfig(temperature=-1.0)
