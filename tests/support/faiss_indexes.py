"""Small indexes of FAISS of each kind and storage, and the oracle of what they find."""

import math

import faiss
import pytest
import torch
from torch import Tensor

import oracles.ranking
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_building import Built, build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.spec import SearchResult, SearchSpec

WIDTH = 8
STORAGES = ("fp32", "fp16", "sq8")
KINDS: dict[str, IndexConfig] = {
    f"{kind} {storage}": config
    for storage in STORAGES
    for kind, config in (
        ("flat", FlatConfig(storage=storage)),
        ("ivf", IvfConfig(nlist=6, storage=storage)),
        ("hnsw", HnswConfig(M=8, ef_construction=40, storage=storage)),
    )
}
kinds = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
storages = pytest.mark.parametrize("storage", STORAGES)
ALL_LISTS = SearchParams(nprobe=6)


def vectors(num: int, seed: int = 0, width: int = WIDTH) -> Tensor:
    """Clustered, of length about 1."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, width, generator=generator)
    near = centres[torch.randint(12, (num,), generator=generator)]
    found = near + torch.randn(num, width, generator=generator) / 2
    return found / math.sqrt(width)


def built(config: IndexConfig, items: Tensor, seed: int = 0) -> Built:
    sample = items if len(items) >= 6 else vectors(6)
    return build(fit(config, sample, len(items), seed), [items])


def opened(config: IndexConfig, items: Tensor) -> FaissIndex:
    data, error = built(config, items)
    return FaissIndex.read(memoryview(bytearray(data)), error)  # memory that torch may write to, as a server's is


def stored(index: FaissIndex) -> Tensor:
    """The vectors as FAISS reads them back."""
    if isinstance(index.index, faiss.IndexIVF):
        own = faiss.clone_index(index.index)
        own.make_direct_map()
        return torch.from_numpy(own.reconstruct_n(0, own.ntotal))
    return torch.from_numpy(index.index.reconstruct_n(0, index.num_items))


def check_equals_oracle(
    found: SearchResult, index: FaissIndex, queries: Tensor, spec: SearchSpec, excluded: list[list[int]]
) -> None:
    """`found` is what the oracle finds in the stored vectors, but for the order of scores that differ by rounding."""
    scores = stored(index).double() @ queries.double().T  # [X, B]
    for line, out in enumerate(excluded):
        own = scores[:, line].tolist()
        reach = math.inf if spec.threshold is None else float(spec.threshold[line])
        at_least = spec.k if spec.threshold is None else spec.at_least
        rows, is_truncated = oracles.ranking.items_above(own, reach, spec.k, at_least, out)
        num = int(found.num_found()[line])
        assert num == len(rows)
        assert found.scores[line, :num].tolist() == pytest.approx([own[row] for row in rows], abs=1e-5)
        assert [own[row] for row in found.item_rows[line, :num].tolist()] == pytest.approx(
            [own[row] for row in rows], abs=1e-5
        )
        assert len({*found.item_rows[line, :num].tolist()} - {*out}) == num
        if spec.threshold is not None:
            assert found.is_truncated[line] == is_truncated
        else:
            assert found.is_truncated[line] == (len(own) - len(out) > spec.k)
