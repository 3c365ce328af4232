import pytest
import torch

from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.two_pass import TwoPass
from rails_ray.similarities.mol import MixtureOfLogits
from rails_ray.wanted import Wanted
from support.examples import random_states, sharp_mixture, small_mixture


@pytest.mark.parametrize("mixture", [small_mixture(), sharp_mixture()], ids=["flat", "sharp"])
@pytest.mark.parametrize("num_per_embedding", [1, 3, 50])
@pytest.mark.parametrize("k", [1, 10])
def test_it_is_brute_force(mixture: MixtureOfLogits, num_per_embedding: int, k: int) -> None:
    query, items = random_states(6, 300, seed=3)
    expected = BruteForce(mixture, items, prune=False).search(query, Wanted(k))
    found = TwoPass(mixture, items, num_per_embedding).search(query, Wanted(k))
    assert torch.equal(found.item_rows, expected.item_rows)
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)


def test_with_sharp_gates_few_items_are_gated() -> None:
    query, items = random_states(8, 4000, width=8, seed=1)
    found = TwoPass(sharp_mixture(), items, 20).search(query, Wanted(10))
    assert found.num_scored.float().mean() <= 0.05 * len(items)
    flat = TwoPass(small_mixture(), items, 20).search(query, Wanted(10))
    assert (flat.num_scored > found.num_scored).all()


def test_with_sharp_gates_and_a_high_threshold_few_items_are_gated() -> None:
    """With at_least, the candidates say from which score on items can be of use."""
    query, items = random_states(8, 4000, width=8, seed=1)
    search, scan = TwoPass(sharp_mixture(), items, 20), BruteForce(sharp_mixture(), items, prune=False)
    for threshold, at_least in ((0.9, 0), (0.9, 3), (2.0, 3)):
        wanted = Wanted(4000, torch.full((8,), threshold), at_least)
        found = search.search(query, wanted)
        expected = scan.search(query, wanted)
        assert torch.equal(found.item_rows, expected.item_rows)
        assert found.num_scored.float().mean() <= 0.05 * len(items)
