"""Items whose components are codes, at random."""

import torch

from rails_ray.families.vector_items.quantized import read_back
from rails_ray.modules.quantizers.product import ProductQuantizer, pack, residual_norms
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity
from rails_ray.modules.similarities.mol import MixtureOfLogits
from rails_ray.modules.similarities.states import ItemState, QuantizedItems, QueryState
from support.examples import random_states
from support.quantizers import a_rotation

P_X, WIDTH, PARTS, NUM_CODEWORDS, NUM_LISTS = 3, 4, 2, 5, 3


def random_quantizer(seed: int, *, is_exact: bool) -> ProductQuantizer:
    """
    Args:
        is_exact: without a rotation, and with codewords whose sums have no rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    codebooks = torch.randn(P_X * PARTS, NUM_CODEWORDS, WIDTH // PARTS, generator=generator) / 2
    if is_exact:
        return ProductQuantizer.of(codebooks.mul(2).round().div(2).clamp(-0.5, 0.5))  # none longer than 1
    return ProductQuantizer.of(codebooks, a_rotation(WIDTH, generator))


def random_quantized(
    num_queries: int, num_items: int, seed: int, mixture: MixtureOfLogits, *, is_exact: bool, has_vectors: bool
) -> tuple[QuantizedSimilarity, QueryState, QuantizedItems, ItemState]:
    """What scores them, queries, items, and the same items as a mixture scores them."""
    query, items = random_states(num_queries, num_items, p_x=P_X, width=WIDTH, seed=seed)
    quantizer = random_quantizer(seed, is_exact=is_exact)
    generator = torch.Generator().manual_seed(seed)
    if is_exact:
        rows = torch.arange(num_items) // 2  # many equal ones
        components = items.components.mul(2).round().div(2)[rows]
        query = QueryState(query.components.round(), torch.zeros_like(query.gate), query.temperature)
        items = ItemState(components, torch.zeros_like(items.gate), components.mean(dim=1))
    flat = items.components.flatten(start_dim=1)
    codes = quantizer.encode(flat)
    residuals = residual_norms(quantizer, flat, codes, P_X)
    lists = torch.randint(NUM_LISTS, (num_items,), generator=generator, dtype=torch.int32)
    kept = (items.components, items.average) if has_vectors else (None, None)
    stored = QuantizedItems(pack(codes), residuals, items.gate, *kept, lists)
    centroids = torch.randn(NUM_LISTS, WIDTH, generator=generator)
    return QuantizedSimilarity(mixture, quantizer, centroids), query, stored, read_back(stored, quantizer)
