import pytest
import torch

from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.explain import explain_look_ups, explain_mixture
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import Codes, Tables, map_tensors
from support.examples import random_states, small_mixture


def test_the_parts_make_the_score() -> None:
    query, items = random_states(3, 5)
    mixture = small_mixture()
    explained = explain_mixture(mixture, query, items)
    assert explained.cosines.shape == explained.gates.shape == (3, 5, 2, 3)
    assert torch.allclose(explained.gates.sum(dim=(2, 3)), torch.ones(3, 5))
    assert torch.allclose((explained.gates * explained.cosines).sum(dim=(2, 3)), explained.scores, atol=1e-6)
    assert torch.allclose(explained.scores, mixture.scores(query, items), atol=1e-6)
    expected = query.components[1, 1] @ items.components[4, 2]
    assert torch.allclose(explained.cosines[1, 4, 1, 2], expected, atol=1e-6)


def test_a_dot_product_has_one_cosine() -> None:
    query, items = random_states(2, 3, p_q=1, p_x=1)
    explained = explain_mixture(DotProduct(DotProductConfig()), query, items)
    assert explained.gates.flatten().tolist() == [1] * 6
    assert torch.allclose(explained.cosines[:, :, 0, 0], explained.scores)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["dot product", "mixture"])
def test_items_stored_in_fewer_bits_are_explained_as_they_are_stored(stored: torch.dtype, kind: str) -> None:
    p_q, p_x = (1, 1) if kind == "dot product" else (2, 3)
    similarity = DotProduct(DotProductConfig()) if kind == "dot product" else small_mixture(p_q, p_x)
    query, items = random_states(3, 5, p_q=p_q, p_x=p_x)
    items = map_tensors(lambda tensor: tensor.to(stored), items)
    explained = explain_mixture(similarity, query, items)
    expected = explain_mixture(similarity, query, map_tensors(torch.Tensor.float, items))
    assert all(torch.equal(found, wide) for found, wide in zip(explained, expected, strict=True))
    assert torch.allclose(explained.scores, similarity.scores(query, items), atol=1e-6)


@pytest.mark.parametrize("missing", [[], [1]])
def test_a_sum_of_look_ups_is_what_its_chunks_say(missing: list[int]) -> None:
    """What each chunk says is a probability; one that is missing has no weight in their mean."""
    torch.manual_seed(0)
    probabilities = torch.rand(2, 3, 5)
    probabilities[:, missing] = 0
    query = Tables(probabilities / (3 - len(missing)), torch.ones(2))
    codes = torch.tensor([[4, 0, 1], [2, 2, 2], [0, 3, 4], [1, 1, 0]], dtype=torch.int32)
    explained = explain_look_ups(LookUp(5), query, Codes(codes))
    assert explained.cosines.shape == explained.gates.shape == (2, 4, 1, 3)
    expected = [0.0 if chunk in missing else 1 / (3 - len(missing)) for chunk in range(3)]
    assert torch.allclose(explained.gates, torch.tensor(expected).expand(2, 4, 1, 3))
    assert torch.allclose((explained.gates * explained.cosines).sum(dim=(2, 3)), explained.scores)
    assert torch.equal(explained.scores, LookUp(5).scores(query, Codes(codes)))
    for asked in range(2):
        for row, code in enumerate(codes.tolist()):
            said = [probabilities[asked, chunk, bucket].item() for chunk, bucket in enumerate(code)]
            assert explained.cosines[asked, row, 0].tolist() == pytest.approx(said)
