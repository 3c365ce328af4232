"""Inner products in either order."""

import pytest
import torch

from rails_ray.kernels import products
from rails_ray.kernels.products import FEW, inner_products


@pytest.mark.parametrize("num", [0, 1, 2, 3, FEW, FEW + 1])
@pytest.mark.parametrize("num_items", [0, 1, 77])
@pytest.mark.parametrize("has_place", [True, False])
def test_they_equal_float64(num: int, num_items: int, has_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MANY", 64)
    generator = torch.Generator().manual_seed(num)
    queries, items = (torch.randn(own, 16, generator=generator) for own in (num, num_items))
    out = torch.full((num, num_items), torch.nan) if has_place else None
    with torch.no_grad():
        found = inner_products(queries, items, out)
    assert found.is_contiguous()
    assert out is None or found.data_ptr() == out.data_ptr()
    assert torch.allclose(found.double(), queries.double() @ items.double().T, atol=1e-5)


def test_they_have_a_gradient_where_one_is_wanted() -> None:
    queries, items = torch.randn(2, 4, requires_grad=True), torch.randn(products.MANY // 4, 4)
    inner_products(queries, items).sum().backward()
    assert queries.grad is not None
    assert torch.allclose(queries.grad, items.sum(dim=0).expand(2, -1), rtol=1e-3, atol=1e-2)
