import pytest
import torch

from examples import random_states, sharp_mixture, small_mixture
from rails_ray.retrieval import brute_force
from rails_ray.retrieval.brute_force import BruteForce


def test_blocks_of_any_size_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    query, items = random_states(3, 37)
    search = BruteForce(small_mixture(), items)
    whole = search.search(query, 9).top_k
    for scores in (1, 3 * 5, 3 * 36):
        monkeypatch.setattr(brute_force, "BLOCK_SCORES", scores)
        parts = search.search(query, 9).top_k
        assert torch.equal(parts.item_rows, whole.item_rows)
        assert torch.allclose(parts.scores, whole.scores, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_pruning_saves_scores_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(brute_force, "BLOCK_SCORES", 3 * 50)  # several looks at the k-th best
    query, items = random_states(3, 500, seed=seed)
    plain = BruteForce(sharp_mixture(), items, prune=False).search(query, 5)
    pruned = BruteForce(sharp_mixture(), items).search(query, 5)
    assert torch.equal(pruned.top_k.item_rows, plain.top_k.item_rows)
    assert plain.num_scored.tolist() == [500] * 3
    assert (pruned.num_scored < 250).all()
