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
