import pytest
import torch

from rails_ray.modules.similarities.mol import MixtureOfLogits
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.two_pass import TwoPass
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, sharp_mixture, small_mixture


@pytest.mark.parametrize("mixture", [small_mixture(), sharp_mixture()], ids=["flat", "sharp"])
@pytest.mark.parametrize("num_per_embedding", [1, 3, 50])
@pytest.mark.parametrize("k", [1, 10])
def test_it_is_brute_force(mixture: MixtureOfLogits, num_per_embedding: int, k: int) -> None:
    query, items = random_states(6, 300, seed=3)
    expected = BruteForce(mixture, items, prune=False).search(query, SearchSpec(k))
    found = TwoPass(mixture, items, num_per_embedding).search(query, SearchSpec(k))
    assert torch.equal(found.item_rows, expected.item_rows)
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)


def test_with_sharp_gates_few_items_are_gated() -> None:
    query, items = random_states(8, 4000, width=8, seed=1)
    found = TwoPass(sharp_mixture(), items, 20).search(query, SearchSpec(10))
    assert found.num_scored.float().mean() <= 0.05 * len(items)
    flat = TwoPass(small_mixture(), items, 20).search(query, SearchSpec(10))
    assert (flat.num_scored > found.num_scored).all()


def test_with_sharp_gates_and_a_high_threshold_few_items_are_gated() -> None:
    """With at_least, the candidates say from which score on items can be of use."""
    query, items = random_states(8, 4000, width=8, seed=1)
    search, scan = TwoPass(sharp_mixture(), items, 20), BruteForce(sharp_mixture(), items, prune=False)
    for threshold, at_least in ((0.9, 0), (0.9, 3), (2.0, 3)):
        spec = SearchSpec(4000, torch.full((8,), threshold), at_least)
        found = search.search(query, spec)
        expected = scan.search(query, spec)
        assert torch.equal(found.item_rows, expected.item_rows)
        assert found.num_scored.float().mean() <= 0.05 * len(items)


@pytest.mark.parametrize("mixture", [small_mixture(), sharp_mixture()], ids=["flat", "sharp"])
@pytest.mark.parametrize("k", [1, 10, 299, 400])
def test_a_floor_by_a_few_items_changes_no_answer(
    mixture: MixtureOfLogits, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rails_ray.search.methods.two_pass.LEAST_ITEMS", 0)
    monkeypatch.setattr("rails_ray.search.methods.two_pass.ITEMS_PER_FIRST", 0)
    query, items = random_states(6, 300, seed=3)
    excluded = Exclusions.of([[0, 7], [], list(range(300)), list(range(5, 300)), [3], [299]])
    searcher = ByComponents(mixture, items)
    for spec in (
        SearchSpec(k),
        SearchSpec(k, mask=excluded),
        SearchSpec(k, torch.full((6,), 0.1), mask=excluded),
        SearchSpec(k, torch.full((6,), 2.0), at_least=min(k, 5)),
    ):
        expected = BruteForce(mixture, items, prune=False).search(query, spec)
        found = searcher.search(query, spec)
        assert torch.equal(found.item_rows, expected.item_rows)
        assert torch.allclose(found.scores, expected.scores, atol=1e-6)
        assert torch.equal(found.is_truncated, expected.is_truncated)
        assert (found.num_scored <= 300).all()


def test_a_floor_from_the_start_spares_gates() -> None:
    query, items = random_states(8, 10_000, width=8, seed=1)
    searcher = ByComponents(sharp_mixture(), items)
    plain, found = searcher.brute_force.search(query, SearchSpec(10)), searcher.search(query, SearchSpec(10))
    assert torch.equal(found.item_rows, plain.item_rows)
    assert found.num_scored.sum() < plain.num_scored.sum() / 4


@pytest.mark.parametrize(("num_items", "k"), [(9_999, 1), (10_000, 21)])
def test_where_a_floor_would_take_long_none_is_looked_for(num_items: int, k: int) -> None:
    query, items = random_states(1, num_items, width=8, seed=1)
    searcher = ByComponents(sharp_mixture(), items)
    searcher.first_stage.by_average.index = None
    assert searcher.search(query, SearchSpec(k)).k == k
