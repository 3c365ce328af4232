"""Vectors at length 1, whatever their length."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.kernels.unit import unit


@given(st.integers(-44, 37), st.integers(1, 40), st.integers(0, 99))
def test_it_equals_float64_of_any_length(exponent: int, width: int, seed: int) -> None:
    vectors = (torch.randn(5, width, generator=torch.manual_seed(seed), dtype=torch.float64) * 10.0**exponent).float()
    wide = vectors.double()
    expected = torch.where(wide == 0, 0, wide / wide.norm(dim=1, keepdim=True).clamp(min=1e-300))
    assert torch.allclose(unit(vectors).double(), expected, atol=1e-6)


@given(st.integers(-10, 10), st.integers(0, 99), st.sampled_from([0.0, 1e-6]))  # no length is below torch's eps
def test_ordinary_vectors_are_scaled_to_the_last_bit_as_before(exponent: int, seed: int, shortest: float) -> None:
    vectors = torch.randn(5, 2, 7, generator=torch.manual_seed(seed)) * 10.0**exponent
    expected = F.normalize(vectors, dim=-1, eps=max(shortest, 1e-12))
    assert torch.equal(unit(vectors, shortest), expected)
    with torch.no_grad():  # by fewer steps
        assert torch.equal(unit(vectors, shortest), expected)


def test_zeros_stay_and_what_is_short_stays_short() -> None:
    assert unit(torch.zeros(2, 3)).tolist() == [[0, 0, 0]] * 2
    assert unit(torch.tensor([[1e-9, 0.0], [1e-20, 0.0]]), 1e-6)[:, 0].tolist() == pytest.approx([1e-3, 1e-14])
    assert unit(torch.zeros(0, 3)).shape == (0, 3)


def test_its_gradient_is_finite_and_that_of_the_direction() -> None:
    for length in (1.0, 1e20, 1e-25):
        vector = torch.tensor([[3.0, 4.0]]).mul(length / 5).requires_grad_()
        unit(vector)[0, 0].backward()
        assert vector.grad is not None
        assert (vector.grad * length).tolist()[0] == pytest.approx([0.64, -0.48], rel=1e-5)
