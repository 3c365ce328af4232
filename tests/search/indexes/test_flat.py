"""What a flat index has beside the contract of `tests/contracts/test_index.py`: it equals FAISS."""

import faiss
import pytest
import torch

from rails_ray.search.indexes import flat
from rails_ray.search.indexes.flat import FlatIndex
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec


def test_equals_faiss(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(500, 16, generator=generator)
    queries = torch.randn(7, 16, generator=generator)
    index = faiss.IndexFlatIP(16)
    index.add(vectors.numpy())
    scores, rows = index.search(queries.numpy(), 20)
    for block in (flat.BLOCK_SCORES, 7 * 33):
        monkeypatch.setattr(flat, "BLOCK_SCORES", block)
        found = FlatIndex(vectors).search(queries, SearchSpec(20))
        assert torch.equal(found.item_rows, torch.from_numpy(rows))
        assert torch.allclose(found.scores, torch.from_numpy(scores), atol=1e-5)


def test_excluded_items_leave_places_at_minus_infinity() -> None:
    found = FlatIndex(torch.eye(3)).search(torch.ones(2, 3), SearchSpec(3, mask=Exclusions.of([[1], []])))
    assert found.num_found().tolist() == [2, 3]
    assert 1 not in found.item_rows[0, :2].tolist()


def test_more_items_than_there_are() -> None:
    assert FlatIndex(torch.eye(3)).search(torch.ones(1, 3), SearchSpec(4)).item_rows.tolist() == [[0, 1, 2]]


def test_threshold_search_equals_faiss(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(500, 16, generator=generator)
    queries = torch.randn(7, 16, generator=generator)
    index = faiss.IndexFlatIP(16)
    index.add(vectors.numpy())
    limits, scores, rows = index.range_search(queries.numpy(), 5.0)
    for block in (flat.BLOCK_SCORES, 7 * 33):
        monkeypatch.setattr(flat, "BLOCK_SCORES", block)
        found = FlatIndex(vectors).search(queries, SearchSpec(500, torch.full((7,), 5.0)))
        assert not found.is_truncated.any()
        for line, num in enumerate(found.num_found().tolist()):
            own = slice(limits[line], limits[line + 1])
            best = scores[own].argsort()[::-1]
            assert found.item_rows[line, :num].tolist() == rows[own][best].tolist()
            assert found.scores[line, :num].tolist() == pytest.approx(scores[own][best].tolist(), abs=1e-5)


def test_threshold_search_excludes_and_caps() -> None:
    index = FlatIndex(torch.eye(3))
    found = index.search(
        torch.ones(2, 3), SearchSpec(2, torch.tensor([-torch.inf, 1.0]), mask=Exclusions.of([[0, 1], []]))
    )
    assert found.item_rows.tolist() == [[2, 0], [0, 1]]
    assert found.num_found().tolist() == [1, 2]
    assert found.is_truncated.tolist() == [False, True]
    assert index.search(torch.ones(1, 3), SearchSpec(9, torch.tensor([2.0]), at_least=1)).item_rows.tolist() == [[0]]


def test_a_vector_that_is_not_finite_is_not_found() -> None:
    vectors = torch.eye(40)
    vectors[7] = torch.nan
    for spec in (SearchSpec(3), SearchSpec(3, torch.zeros(1)), SearchSpec(3, torch.ones(1) * 9, 3)):
        found = FlatIndex(vectors).search(vectors[6:7] + vectors[9:10] / 2, spec)
        assert found.item_rows.tolist() == [[6, 9, 0]]
