import torch

from examples import random_states, small_mixture
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.explain import explain


def test_the_parts_make_the_score() -> None:
    query, items = random_states(3, 5)
    mixture = small_mixture()
    explained = explain(mixture, query, items)
    assert explained.cosines.shape == explained.gates.shape == (3, 5, 2, 3)
    assert torch.allclose(explained.gates.sum(dim=(2, 3)), torch.ones(3, 5))
    assert torch.allclose((explained.gates * explained.cosines).sum(dim=(2, 3)), explained.scores, atol=1e-6)
    assert torch.allclose(explained.scores, mixture.scores(query, items), atol=1e-6)
    expected = query.components[1, 1] @ items.components[4, 2]
    assert torch.allclose(explained.cosines[1, 4, 1, 2], expected, atol=1e-6)


def test_a_dot_product_has_one_cosine() -> None:
    query, items = random_states(2, 3, p_q=1, p_x=1)
    explained = explain(DotProduct(DotProductConfig()), query, items)
    assert explained.gates.flatten().tolist() == [1] * 6
    assert torch.allclose(explained.cosines[:, :, 0, 0], explained.scores)
