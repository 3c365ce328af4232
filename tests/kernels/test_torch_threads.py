"""Threads of a pool multiply as the thread that made it does."""

import torch

from rails_ray.kernels.torch_threads import torch_pool


def test_products_are_those_of_the_main_thread() -> None:
    """With as many threads as cores MKL adds up this product in another order, as it does where a thread is new."""
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(6, 6, generator=generator), torch.randn(30, 2, 6, generator=generator)

    def products() -> torch.Tensor:
        return torch.mm(queries, items[:, 1].T)

    with torch_pool(1, "products") as pool:
        assert pool.submit(products).result().equal(products())
