"""Scores that are cosines: within [-1, 1], and thresholds that allow for their rounding."""

import numpy as np
import pytest
import torch

from rails_ray.families import building
from rails_ray.families.items import ByModel
from rails_ray.families.vector_items.items import Narrowed
from rails_ray.search.spec import SearchResult
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion

VECTORS = np.random.default_rng(0).normal(size=(1000, 48)).astype(np.float32)
LOST = {"float32": 1e-5, "float16": 6e-4, "bfloat16": 4.5e-3}  # the most that a threshold may let pass


@pytest.fixture(scope="module", params=LOST)
def version(request: pytest.FixtureRequest) -> LocalVersion:
    with pytest.MonkeyPatch.context() as patched:
        dtype = getattr(torch, request.param)
        patched.setattr(building, "ByModel", lambda model: Narrowed(ByModel(model), dtype))
        found = local.build(np.concatenate([VECTORS, -VECTORS[:1]]))
    assert found.manifest.state.dtypes["components"] == request.param
    return found


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "ann"])
def test_a_score_of_one_finds_the_item_itself(version: LocalVersion, method: str) -> None:
    answer = version.search(VECTORS, cutoff={"score": 1.0}, method=method, num_candidates=1001)
    assert [result.items for result in answer.results] == [[number] for number in range(1000)]
    assert answer.is_exact
    least = 1 - LOST[version.manifest.state.dtypes["components"]]
    assert all(least <= result.threshold <= result.scores[0] <= 1 for result in answer.results)


def test_scores_and_cosines_are_within_one(version: LocalVersion) -> None:
    results = version.search(VECTORS[:200], k=1001).results
    for number, result in enumerate(results):
        assert max(map(abs, result.scores)) <= 1
        assert result.scores == sorted(result.scores, reverse=True)
        assert result.certificate.is_exact
        explained = version.explain(VECTORS[number], [number]).items[0]
        assert max(explained.score, explained.cosines[0][0]) <= 1
        assert explained.score == pytest.approx(result.scores[0], abs=1e-6)
    assert results[0].items[-1] == 1000


def test_other_thresholds_are_as_they_are_given(version: LocalVersion) -> None:
    [every] = version.search(VECTORS[:1], k=1001).results
    for place in (1, 4, 500):
        threshold = every.scores[place]
        [kept] = version.search(VECTORS[:1], cutoff={"score": threshold}).results
        assert kept.threshold == threshold
        assert kept.items == [item for item, score in zip(every.items, every.scores, strict=True) if score >= threshold]


def test_what_lies_outside_comes_in_with_its_bound_and_in_row_order() -> None:
    found = SearchResult(
        torch.tensor([[1.0004, 1.0002, 0.5], [-0.5, -1.0001, -torch.inf]]),
        torch.tensor([[7, 3, 1], [2, 4, 0]]),
        torch.tensor([1.0003, torch.inf]),
        torch.tensor([True, False]),
        torch.tensor([3, 2]),
        [None, "why"],
    ).as_cosines()
    assert found.scores.tolist() == [[1, 1, 0.5], [-0.5, -1, -torch.inf]]
    assert found.item_rows.tolist() == [[3, 7, 1], [2, 4, 0]]
    assert found.bound.tolist() == [1, torch.inf]


def test_a_bound_comes_in_whatever_the_scores_beside() -> None:
    for other in (0.5, 1.0001):
        found = SearchResult(
            torch.tensor([[0.5], [other]]),
            torch.tensor([[7], [3]]),
            torch.tensor([1.01, -torch.inf]),
            torch.tensor([True, False]),
            torch.tensor([3, 2]),
            [None, None],
        ).as_cosines()
        assert found.bound.tolist() == [1, -torch.inf]
