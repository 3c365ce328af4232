import torch

from examples import random_states, small_mixture
from rails_ray.retrieval import brute_force
from rails_ray.retrieval.brute_force import BruteForce


def test_blocks_of_any_size_give_one_answer(monkeypatch) -> None:
    query, items = random_states(3, 37)
    search = BruteForce(small_mixture(), items)
    whole = search.search(query, 9)
    for pairs in (1, 3 * 6 * 5, 3 * 6 * 36):
        monkeypatch.setattr(brute_force, "BLOCK_PAIRS", pairs)
        parts = search.search(query, 9)
        assert torch.equal(parts.item_rows, whole.item_rows)
        assert torch.allclose(parts.scores, whole.scores, atol=1e-6)


def test_a_block_holds_at_most_its_share_of_pairs(monkeypatch) -> None:
    monkeypatch.setattr(brute_force, "BLOCK_PAIRS", 100)
    query, items = random_states(3, 37)  # 18 pairs of components per item
    sizes = [scores.shape[1] for _, scores in BruteForce(small_mixture(), items).blocks(query)]
    assert max(sizes) == 100 // 18
    assert sum(sizes) == 37
