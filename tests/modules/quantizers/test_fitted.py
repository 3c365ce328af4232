"""PQ and OPQ, fitted by FAISS's k-means."""

import subprocess
import sys

import pytest
import torch

from rails_ray.kernels.faiss_library import MOST_SQUARES, training
from rails_ray.modules.quantizers.opq import OpqConfig, fit_opq, fit_rotation
from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.modules.quantizers.product import ProductQuantizer
from support.quantizers import a_rotation, some_vectors


def loss(quantizer: ProductQuantizer, vectors: torch.Tensor) -> float:
    """The mean squared distance to what is read back."""
    return float((vectors - quantizer.decode(quantizer.encode(vectors))).square().sum(dim=1).mean())


def of_few_axes(num: int, seed: int = 0) -> torch.Tensor:
    """Vectors with most of their spread in the first two of eight numbers."""
    return some_vectors(num, 8, seed) * torch.tensor([4.0, 3, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_the_same_sample_and_seed_give_the_same_codebooks() -> None:
    for fit in (fit_pq, fit_opq):
        one, again, other = (fit(of_few_axes(400), 4, 8, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one.codebooks, again.codebooks)
        assert not torch.equal(one.codebooks, other.codebooks)


def test_as_many_codewords_as_vectors_lose_nothing() -> None:
    vectors = some_vectors(7, 6)
    assert loss(fit_pq(vectors, 3, 7, seed=0), vectors) == pytest.approx(0, abs=1e-10)


def test_codewords_are_the_means_of_their_vectors() -> None:
    vectors = of_few_axes(500)
    quantizer = fit_pq(vectors, 4, 5, seed=0)
    codes = quantizer.encode(vectors)
    for subspace in range(4):
        for codeword in range(5):
            own = vectors[codes[:, subspace] == codeword, 2 * subspace : 2 * subspace + 2]
            assert torch.allclose(own.mean(dim=0), quantizer.codebooks[subspace, codeword], atol=0.1)


def test_a_rotation_loses_less_where_the_spread_is_uneven() -> None:
    vectors = of_few_axes(2000)
    plain, turned = fit_pq(vectors, 4, 16, seed=0), fit_opq(vectors, 4, 16, seed=0)
    assert turned.rotation is not None
    assert torch.allclose(turned.rotation @ turned.rotation.T, torch.eye(8), atol=1e-4)
    assert loss(turned, vectors) < 0.5 * loss(plain, vectors)


def test_vectors_of_an_item_share_a_rotation_and_no_codebook() -> None:
    items = torch.cat([of_few_axes(500), 10 + of_few_axes(500, 1)], dim=1)
    quantizer = fit_opq(items, 8, 16, seed=0, num_vectors=2)
    assert quantizer.rotation is not None
    assert quantizer.rotation.shape == (8, 8)
    assert quantizer.width == 16
    assert not torch.allclose(quantizer.codebooks[:4].mean(dim=1), quantizer.codebooks[4:].mean(dim=1), atol=1)
    assert loss(quantizer, items) < 0.2 * float((items - items.mean(dim=0)).square().sum(dim=1).mean())


def test_more_rounds_fit_the_rotation_better() -> None:
    vectors = of_few_axes(1000) @ a_rotation(8, torch.Generator().manual_seed(3))
    few, many = (loss(fit_opq(vectors, 4, 16, seed=0, num_rounds=num), vectors) for num in (1, 30))
    assert many < few


@pytest.mark.parametrize("num_codewords", [2, 3, 20, 256])
def test_any_number_of_codewords(num_codewords: int) -> None:
    vectors = of_few_axes(300)
    assert fit_opq(vectors, 2, num_codewords, seed=0).num_codewords == num_codewords
    assert fit_rotation(vectors, 2, num_codewords, seed=0, num_rounds=2).shape == (8, 8)


OF_ALL_SIZES = """
from rails_ray.modules.quantizers.opq import fit_opq
from support.quantizers import some_vectors
import torch

for num_vectors in (1, 2):
    for width, num_codewords in ((16, 4), (17 * 2, 16), (24, 3), (8, 8)):
        sizes = (num_codewords, num_codewords + 1, width // 2, width - 1, width, width + 1)
        for num in sorted(size for size in set(sizes) if size >= num_codewords):
            sample = some_vectors(num, width * num_vectors)
            equal = sample[:1].expand_as(sample)
            for vectors in (sample, equal, torch.zeros_like(sample), sample[: num // 2 + 1].repeat(2, 1)[:num]):
                fitted = fit_opq(vectors, 2 * num_vectors, num_codewords, seed=0, num_vectors=num_vectors, num_rounds=5)
                assert fitted.rotation.shape == (width, width)
                fitted.decode(fitted.encode(vectors))
"""


@pytest.mark.long
def test_opq_of_fewer_vectors_than_they_are_wide() -> None:
    """In a process of its own: FAISS would write beyond its memory, which ends the process sooner or later."""
    found = subprocess.run(
        [sys.executable, "-c", OF_ALL_SIZES], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


def test_few_vectors_gain_by_a_rotation_as_many_do() -> None:
    generator = torch.Generator().manual_seed(0)
    every = some_vectors(64, 64) / torch.arange(1, 65) @ a_rotation(64, generator)
    for num in (24, 63, 64):
        vectors = every[:num]
        plain, turned = fit_pq(vectors, 8, 16, seed=0), fit_opq(vectors, 8, 16, seed=0)
        assert loss(turned, vectors) < 0.7 * loss(plain, vectors)


def test_samples_that_cannot_be() -> None:
    for fit in (fit_pq, fit_opq):
        with pytest.raises(
            ValueError, match="a sample must have a vector for each of the 16 codewords of a codebook, got 9"
        ):
            fit(some_vectors(9, 6), 3, 16, seed=0)
        with pytest.raises(ValueError, match="num_subspaces must divide the 6 numbers of a vector, got 4"):
            fit(some_vectors(9, 6), 4, 4, seed=0)
        with pytest.raises(ValueError, match="sample must be finite, got NaN or infinity in row 0"):
            fit(torch.full((9, 6), torch.nan), 3, 4, seed=0)
        with pytest.raises(ValueError, match=r"sample must have a sum of squares of at most 4.3e\+37, .*, got more"):
            fit(some_vectors(9, 6) * 1e19, 3, 4, seed=0)  # FAISS would end the process
        fit(some_vectors(9, 6) / some_vectors(9, 6).norm() * 0.99 * MOST_SQUARES**0.5, 3, 4, seed=0)
    with pytest.raises(ValueError, match="num_subspaces must be a multiple of the 2 vectors of an item, got 3"):
        fit_opq(some_vectors(9, 6), 3, 4, seed=0, num_vectors=2)
    with pytest.raises(ValueError, match="num_rounds must be at least 1, got 0"):
        OpqConfig(num_rounds=0)


def test_an_error_of_faiss_is_told_in_our_words() -> None:
    sample = some_vectors(3, 6).numpy()
    with (
        pytest.raises(
            ValueError, match=r"^FAISS must be able to train codes on 3 vectors of 6 numbers, got an error"
        ) as told,
        training("codes", sample),
    ):
        raise RuntimeError("Error in faiss::Clustering at Clustering.cpp:12: 'nx >= static_cast<idx_t>(k)' failed")
    assert "static_cast" not in str(told.value)
    with pytest.raises(
        ValueError, match="FAISS must be able to train a rotation of 6 numbers on 0 vectors of 6 numbers"
    ):
        fit_rotation(some_vectors(0, 6), 2, 4, seed=0, num_rounds=1)
