import faiss
import pytest
import torch

from rails_ray.indexes import flat
from rails_ray.indexes.flat import FlatIndex
from rails_ray.top_k import Exclusions


def test_equals_faiss(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(500, 16, generator=generator)
    queries = torch.randn(7, 16, generator=generator)
    index = faiss.IndexFlatIP(16)
    index.add(vectors.numpy())
    scores, rows = index.search(queries.numpy(), 20)
    for block in (flat.BLOCK_SCORES, 7 * 33):
        monkeypatch.setattr(flat, "BLOCK_SCORES", block)
        found = FlatIndex(vectors).search(queries, 20)
        assert torch.equal(found.item_rows, torch.from_numpy(rows))
        assert torch.allclose(found.scores, torch.from_numpy(scores), atol=1e-5)


def test_excluded_items_leave_places_at_minus_infinity() -> None:
    found = FlatIndex(torch.eye(3)).search(torch.ones(2, 3), 3, Exclusions.of([[1], []]))
    assert found.num_found().tolist() == [2, 3]
    assert 1 not in found.item_rows[0, :2].tolist()


def test_k_outside_the_corpus() -> None:
    with pytest.raises(ValueError, match="k must be at most the 3 indexed items, got 4"):
        FlatIndex(torch.eye(3)).search(torch.ones(1, 3), 4)


def test_threshold_search_equals_faiss(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(500, 16, generator=generator)
    queries = torch.randn(7, 16, generator=generator)
    index = faiss.IndexFlatIP(16)
    index.add(vectors.numpy())
    limits, scores, rows = index.range_search(queries.numpy(), 5.0)
    for block in (flat.BLOCK_SCORES, 7 * 33):
        monkeypatch.setattr(flat, "BLOCK_SCORES", block)
        found = FlatIndex(vectors).search_above(queries, torch.full((7,), 5.0), 500)
        assert not found.is_truncated.any()
        for line, num in enumerate(found.top_k.num_found().tolist()):
            own = slice(limits[line], limits[line + 1])
            best = scores[own].argsort()[::-1]
            assert found.top_k.item_rows[line, :num].tolist() == rows[own][best].tolist()
            assert found.top_k.scores[line, :num].tolist() == pytest.approx(scores[own][best].tolist(), abs=1e-5)


def test_threshold_search_excludes_and_caps() -> None:
    index = FlatIndex(torch.eye(3))
    found = index.search_above(torch.ones(2, 3), torch.tensor([-torch.inf, 1.0]), 2, Exclusions.of([[0, 1], []]))
    assert found.top_k.item_rows.tolist() == [[2, 0], [0, 1]]
    assert found.top_k.num_found().tolist() == [1, 2]
    assert found.is_truncated.tolist() == [False, True]
    assert index.search_above(torch.ones(1, 3), torch.tensor([2.0]), 9, at_least=1).top_k.item_rows.tolist() == [[0]]


def test_an_empty_index_has_nothing_above() -> None:
    found = FlatIndex(torch.empty(0, 3)).search_above(torch.ones(2, 3), torch.zeros(2), 1, at_least=1)
    assert found.top_k.item_rows.shape == (2, 0)


def test_a_threshold_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="threshold must not be NaN, got NaN for query 0"):
        FlatIndex(torch.eye(3)).search_above(torch.ones(1, 3), torch.tensor([torch.nan]), 4)
