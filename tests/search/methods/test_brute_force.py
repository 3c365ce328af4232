import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.similarities.states import take
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods import brute_force
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, sharp_mixture, small_mixture


def test_blocks_of_any_size_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    query, items = random_states(3, 37)
    search = BruteForce(small_mixture(), items)
    whole = search.search(query, SearchSpec(9))
    for num in (1, 5, 36):
        monkeypatch.setattr(brute_force, "BLOCK_ITEMS", num)
        parts = search.search(query, SearchSpec(9))
        assert torch.equal(parts.item_rows, whole.item_rows)
        assert torch.allclose(parts.scores, whole.scores, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_pruning_saves_scores_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(brute_force, "BLOCK_ITEMS", 50)  # several looks at the k-th best
    query, items = random_states(3, 500, seed=seed)
    plain = BruteForce(sharp_mixture(), items, prune=False).search(query, SearchSpec(5))
    pruned = BruteForce(sharp_mixture(), items).search(query, SearchSpec(5))
    assert torch.equal(pruned.item_rows, plain.item_rows)
    assert plain.num_scored.tolist() == [500] * 3
    assert (pruned.num_scored < 250).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_threshold_saves_scores_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(brute_force, "BLOCK_ITEMS", 50)
    query, items = random_states(3, 500, seed=seed)
    plain = BruteForce(sharp_mixture(), items, prune=False).search(query, SearchSpec(500, torch.full((3,), 0.9)))
    pruned = BruteForce(sharp_mixture(), items).search(query, SearchSpec(500, torch.full((3,), 0.9)))
    assert torch.equal(pruned.item_rows, plain.item_rows)
    assert plain.num_scored.tolist() == [500] * 3
    assert (pruned.num_scored < 250).all()


def test_a_low_threshold_is_pruned_by_k_and_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the k-th best once more than k reach the threshold, by the at_least-th best where too few do."""
    monkeypatch.setattr(brute_force, "BLOCK_ITEMS", 50)
    query, items = random_states(3, 500)
    search = BruteForce(sharp_mixture(), items)
    best = search.search(query, SearchSpec(5))
    capped = search.search(query, SearchSpec(5, torch.full((3,), -1.0)))
    least = search.search(query, SearchSpec(5, torch.full((3,), 2.0), at_least=5))
    for found in (capped, least):
        assert torch.equal(found.item_rows, best.item_rows)
        assert (found.num_scored < 250).all()
    assert capped.is_truncated.tolist() == [True] * 3
    assert least.is_truncated.tolist() == [False] * 3


@pytest.mark.parametrize("method", ["brute_force", "two_pass"])
def test_very_many_queries_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Of which each knows its own threshold, floor and hidden items."""
    query, items = random_states(7, 60)
    search = ByComponents(sharp_mixture(), items)
    threshold = torch.linspace(-0.5, 0.9, 7)
    for spec in (SearchSpec(4), SearchSpec(9, threshold, 2, Exclusions.of([[n, n + 1] for n in range(7)]))):
        whole = search.search(query, spec, method)
        with monkeypatch.context() as patched:
            patched.setattr(brute_force, "BLOCK_QUERIES", 3)
            parts = search.search(query, spec, method)
        assert torch.equal(parts.item_rows, whole.item_rows)
        assert torch.allclose(parts.scores, whole.scores, atol=1e-6)
        assert torch.equal(parts.num_scored, whole.num_scored)
        assert (parts.reasons, parts.bound.tolist()) == (whole.reasons, whole.bound.tolist())


def plain_logit(scores: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    return scores / temperature.unsqueeze(1)


@settings(deadline=None)
@given(
    st.tuples(st.integers(0, 4), st.integers(1, 40), st.integers(0, 99)),
    st.integers(1, 50),
    st.sampled_from([plain_logit, beta_logit]),
    st.data(),
)
def test_log_sum_exp_over_blocks_and_over_shards(
    shape: tuple[int, int, int], block: int, logit: ScoreLogit, data: st.DataObject
) -> None:
    num_queries, num_items, seed = shape
    query, items = random_states(num_queries, num_items, seed=seed)
    rows = st.lists(st.integers(0, num_items - 1), unique=True)
    excluded = [data.draw(rows) for _ in range(num_queries)]
    logits = logit(small_mixture().scores(query, items), query.temperature).double()
    for line, out in enumerate(excluded):
        logits[line, out] = -torch.inf
    expected = logits.logsumexp(dim=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brute_force, "BLOCK_SCORES", block)
        found = BruteForce(small_mixture(), items).log_sum_exp(query, logit, Exclusions.of(excluded))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-4)
    cut = data.draw(st.integers(0, num_items))
    shards = [
        BruteForce(small_mixture(), take(items, slice(first, last))).log_sum_exp(
            query, logit, Exclusions.of([[row - first for row in out if first <= row < last] for out in excluded])
        )
        for first, last in ((0, cut), (cut, num_items))
    ]
    assert torch.allclose(torch.stack(shards).logsumexp(dim=0), expected, rtol=1e-5, atol=1e-4)


def test_log_sum_exp_of_large_logits_and_of_nothing() -> None:
    query, items = random_states(2, 9)
    search = BruteForce(small_mixture(), items)
    found = search.log_sum_exp(query, lambda scores, temperature: 0 * scores + 1e4)
    assert found.tolist() == pytest.approx([1e4 + torch.log(torch.tensor(9.0)).item()] * 2)
    nothing = search.log_sum_exp(query, plain_logit, Exclusions.of([list(range(9)), []]))
    assert nothing.isneginf().tolist() == [True, False]


def test_log_sum_exp_of_a_query_that_is_not_finite() -> None:
    query, items = random_states(2, 9)
    query.components[1, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="query components must be finite, got NaN or infinity in query 1"):
        BruteForce(small_mixture(), items).log_sum_exp(query, plain_logit)


def test_a_normaliser_is_added_up_without_a_look() -> None:
    """Tensors on the device `meta` have no numbers: a look at one is an error."""
    scores, temperature = torch.zeros(2, 9, device="meta"), torch.ones(2, device="meta")
    found = brute_force.log_sum_exp([(0, scores), (9, scores)], temperature, beta_logit, Exclusions.of([[1], []]))
    assert found.shape == (2,)
