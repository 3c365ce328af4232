"""Inner products in either order."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rails_ray.kernels import products
from rails_ray.kernels.products import FEW, inner_products


@pytest.mark.parametrize("num", [0, 1, 2, 3, FEW, FEW + 1])
@pytest.mark.parametrize("num_items", [0, 1, 77])
@pytest.mark.parametrize("has_place", [True, False])
@pytest.mark.parametrize("maker", ["intel", "other"])
def test_they_equal_float64(
    num: int, num_items: int, has_place: bool, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MANY", 64)
    monkeypatch.setattr(products, "maker", lambda: maker)
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


@pytest.mark.parametrize(
    ("text", "maker"),
    [("vendor_id\t: GenuineIntel\n", "intel"), ("vendor_id\t: AuthenticAMD\n", "other"), (None, "other")],
)
def test_the_maker_of_a_cpu_is_read_where_linux_tells_it(
    text: str | None, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert products.maker.__wrapped__() == maker


def test_few_queries_come_first_on_an_intel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MANY", 64)
    shapes, multiply = list[tuple[int, ...]](), torch.mm

    def noted(left: Tensor, right: Tensor, **given: Any) -> Tensor:
        shapes.append(left.shape)
        return multiply(left, right, **given)

    monkeypatch.setattr(torch, "mm", noted)
    items = torch.randn(77, 16)
    for maker, first in (("intel", [True, True, True, False]), ("other", [False] * 4)):
        monkeypatch.setattr(products, "maker", lambda maker=maker: maker)
        with torch.no_grad():
            for num in (1, 2, 3, 4):
                inner_products(torch.randn(num, 16), items)
        assert [shape != items.shape for shape in shapes] == first
        shapes.clear()
