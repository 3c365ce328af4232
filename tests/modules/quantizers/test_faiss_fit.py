"""Quantizers by FAISS's names: their bytes, what they read back, and what they find."""

import pytest
import torch

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.modules.quantizers.faiss_fit import NAMES_BY_BYTES, FaissQuantizer, fit_by_faiss


def some(num: int, width: int = 128) -> torch.Tensor:
    vectors = torch.randn(num, width, generator=torch.Generator().manual_seed(3))
    return torch.nn.functional.normalize(vectors, dim=1)


@pytest.mark.parametrize(
    ("num_bytes", "name"), [(size, name) for size, names in NAMES_BY_BYTES.items() for name in names]
)
def test_bytes_are_those_that_an_item_takes(num_bytes: int, name: str) -> None:
    """Not nominal bits: RaBitQ takes 24 bytes for 128 numbers of one bit each."""
    faiss = faiss_library()
    assert FaissQuantizer(faiss.index_factory(128, name, faiss.METRIC_INNER_PRODUCT)).num_bytes == num_bytes


@pytest.mark.parametrize("name", ["PQ4x4fs", "SQ4", "PCAR8,SQ8", "RQ2x4"])
def test_codes_take_these_bytes_and_rank_as_what_they_are_read_back_as(name: str) -> None:
    vectors, queries = some(400, 16), some(3, 16)
    quantizer = fit_by_faiss(name, vectors)
    codes = quantizer.encode(vectors)
    assert codes.shape == (400, quantizer.num_bytes)
    back = quantizer.decode(codes)
    assert ((vectors - back).norm(dim=1) < 1).float().mean() > 0.9, "0 would be as near as 1"
    scores, rows = quantizer.search(queries, vectors, 5)
    assert torch.allclose(scores, (queries @ back.T).gather(1, rows), atol=0.05)
    assert (scores.diff(dim=1) <= 0).all()
    assert quantizer.index.ntotal == 0, "a search leaves it as it was"


def test_what_is_no_quantizer() -> None:
    with pytest.raises(
        ValueError, match=r"name must be an index of FAISS for inner products of 16 numbers, got 'PQ7'$"
    ):
        fit_by_faiss("PQ7", some(300, 16))
    with pytest.raises(ValueError, match=r"name must be an index of FAISS for .* 16 numbers, got 'nothing'$"):
        fit_by_faiss("nothing", some(300, 16))
    for name in ("PQ4", "OPQ4,PQ4x4", "RQ2x4", "IVF300,Flat"):
        with pytest.raises(ValueError, match=r"vectors must number at least 256, one for each .*, got 255"):
            fit_by_faiss(name, some(255, 16))
    with pytest.raises(ValueError, match=r"vectors must number at least 300, .*, got 299"):
        fit_by_faiss("OPQ4,PQ4", some(299, 300))  # FAISS would write beyond its memory
    with pytest.raises(
        ValueError, match=r"^FAISS must be able to train 'IVF300,Flat' on 299 vectors of 16 numbers, got"
    ):
        fit_by_faiss("IVF300,Flat", some(299, 16))
    with pytest.raises(ValueError, match="sample must have a sum of squares of at most"):
        fit_by_faiss("PQ4", some(300, 16) * 1e30)
    broken = some(300, 16)
    broken[7, 2] = torch.nan
    with pytest.raises(ValueError, match="vectors must be finite, got NaN or infinity in row 7"):
        fit_by_faiss("PQ4", broken)
    with pytest.raises(ValueError, match="vectors must be finite, got NaN or infinity in row 7"):
        fit_by_faiss("SQ4", some(300, 16)).encode(broken)
