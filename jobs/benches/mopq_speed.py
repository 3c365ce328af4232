"""Timings of `mopq`: in turns, the median of each.

Axes: B queries, X items, M subspaces, L codewords, d numbers of a vector.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from jobs.benches.indexes import COPIES, in_turns
from jobs.benches.record import Record
from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.modules.quantizers.faiss_convert import to_faiss
from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.modules.quantizers.product import ProductQuantizer, pack, residual_norms
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import QuantizedItems, QueryState
from rails_ray.schema.search_params import DEFAULT_PARAMS
from rails_ray.search.indexes.codes import CodeIndex
from rails_ray.search.indexes.fast_codes import FastCodeIndex
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.spec import SearchSpec

WIDTH, NUM_QUERIES, K, RESCORED = 128, 32, 10, 1000


def main(num_items: int, repeats: int) -> None:
    """Rows `choosing`, `looking up` and `rescoring`."""
    torch.set_num_threads(2)
    faiss_library().omp_set_num_threads(2)
    record, console = Record("mopq_speed"), Console()
    for row in (choosing(repeats), looking_up(num_items, repeats)):
        record.row(**row)
        console.print(row)


def choosing(repeats: int) -> dict[str, float | str]:
    """Codewords of 500 vectors: by inner products, and by all differences."""
    generator = torch.Generator().manual_seed(0)
    quantizer = ProductQuantizer.of(torch.randn(8, 256, WIDTH // 8, generator=generator))
    vectors = torch.randn(500, WIDTH, generator=generator)

    def naive() -> Tensor:
        difference = vectors.view(500, 8, 1, WIDTH // 8) - quantizer.codebooks  # [X, M, L, w]
        return difference.square().sum(dim=3).argmin(dim=2)

    assert torch.equal(quantizer.encode(vectors).long(), naive())
    ours, differences = in_turns(10 * repeats, lambda: quantizer.encode(vectors), naive)
    return {"kind": "choosing", "ms": 1000 * ours, "naive ms": 1000 * differences, "ratio": differences / ours}


def looking_up(num_items: int, repeats: int) -> dict[str, float | str]:
    """32 queries over codes in 16 parts of 256 codewords, and of 16; alone, and with vectors that score 1,000
    candidates. Items are clustered, as rescoring must find something."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(1000, WIDTH, generator=generator), dim=1)
    own = torch.randint(1000, (num_items,), generator=generator)
    vectors = F.normalize(centres[own] + 0.06 * torch.randn(num_items, WIDTH, generator=generator), dim=1)
    queries = F.normalize(vectors[:NUM_QUERIES] + 0.03 * torch.randn(NUM_QUERIES, WIDTH, generator=generator), dim=1)
    spec, asked = SearchSpec(K), queries.numpy()
    query = QueryState(queries.unsqueeze(1), None, torch.ones(NUM_QUERIES))
    widths = replace(DEFAULT_PARAMS, num_candidates=RESCORED)
    sample, ways = vectors[:: num_items // 2**15], dict[tuple[str, int], Callable[[], object]]()
    for num_codewords in (256, 16):
        quantizer = fitted(sample, num_codewords)
        codes = quantizer.encode(vectors)
        of_faiss = to_faiss(quantizer, codes)
        if num_codewords == 16:
            of_faiss = faiss_library().IndexPQFastScan(of_faiss)
        for copy in range(COPIES):
            own, in_faiss = codes.clone(), faiss_library().clone_index(of_faiss)
            index = CodeIndex(quantizer, own) if num_codewords == 256 else FastCodeIndex(quantizer, own)
            ways[f"ours {num_codewords}", copy] = lambda index=index: index.search(queries, spec)
            ways[f"FAISS {num_codewords}", copy] = lambda in_faiss=in_faiss: in_faiss.search(asked, K)
        stored = beside(quantizer, codes, vectors)
        ways[f"ours {num_codewords}, rescored", 0] = lambda stored=stored: stored.search(query, spec, "lookup", widths)
    flat = faiss_library().IndexFlatIP(WIDTH)
    flat.add(vectors.numpy())
    of_bytes = fitted(sample, 256)
    refined = faiss_library().IndexRefine(to_faiss(of_bytes, of_bytes.encode(vectors)), flat)
    refined.k_factor = RESCORED / K
    ways["FAISS 256, rescored", 0] = lambda: refined.search(asked, K)
    for way in ways.values():
        way()
    seconds = in_turns(repeats, *ways.values())
    of_copies = defaultdict[str, list[float]](list)
    for (name, _), one in zip(ways, seconds, strict=True):
        of_copies[name].append(1000 * one)
    return {"kind": "looking up", "num_items": num_items} | {
        f"{name} ms": median(own) for name, own in of_copies.items()
    }


def fitted(sample: Tensor, num_codewords: int) -> ProductQuantizer:
    """Codebooks by k-means."""
    return fit_pq(sample, 16, num_codewords, seed=0)


def beside(quantizer: ProductQuantizer, codes: Tensor, vectors: Tensor) -> ByQuantized:
    """Codes beside vectors, as a version of a dot product has them."""
    stored = pack(codes) if quantizer.is_packed else codes
    items = QuantizedItems(stored, residual_norms(quantizer, vectors, codes), None, vectors.unsqueeze(1), vectors, None)
    return ByQuantized(QuantizedSimilarity(DotProduct(DotProductConfig()), quantizer), items)
