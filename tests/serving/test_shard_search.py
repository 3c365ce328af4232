"""A shard of vectors in memory: its vectors once, and no package that it has no use for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.cli.main import main
from rails_ray.families.shards import with_vectors_of
from rails_ray.families.version import Version
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.serving import local
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_vector_data
from support.sources import ROOT

UNUSED = {"numba", "scipy", "scipy.special", "scipy.sparse", "faiss", "pandas", "ray"}
SEARCH = """
import sys
from rails_ray.serving import local
opened = local.open({root!r}, {version!r})
for options in ({{"k": 3}}, {{"cutoff": {{"score": 0.1}}}}, {{"method": "ann"}}):
    assert opened.search([{{"embedding": [1.0] * 7, "exclude": ["item-3"]}}], **options).results[0].items
print(sorted({unused!r} & {{*sys.modules}}))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Storage with the versions `flat` and `hnsw` of 60 vectors of 7 numbers."""
    root = tmp_path_factory.mktemp("vectors")
    data = write_vector_data(root / "data")
    for index in ("flat", "hnsw"):
        words = ["--recipe", "vector-cosine", "--folder", str(data), "--version", index, "--index", index]
        assert main(["encode", *words, "--storage", str(root)]) == 0
        assert main(["publish", "--version", index, "--storage", str(root)]) == 0
    return root


@pytest.mark.parametrize(("version", "used"), [("flat", set()), ("hnsw", {"faiss"})])
def test_a_search_of_vectors_loads_no_package_for_others(root: Path, version: str, used: set[str]) -> None:
    code = SEARCH.format(root=str(root), version=version, unused=UNUSED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted(used))


def test_vectors_that_an_index_holds_are_in_memory_once(root: Path) -> None:
    shard = ShardSearch(Version.published(Storage(str(root)), "hnsw"), 0)
    state: Any = shard.items.state
    searcher: Any = shard.searcher
    assert state.components.data_ptr() == searcher.first_stage.by_average.index.vectors.data_ptr()


@pytest.mark.parametrize("method", ["brute_force", "ann"])
def test_they_give_the_answers_of_a_version_without_an_index(root: Path, method: str) -> None:
    queries = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    flat, hnsw = (
        local.open(str(root), version).search(queries, k=20, method=method).results for version in ("flat", "hnsw")
    )
    assert [one.items for one in hnsw] == [one.items for one in flat]
    assert np.allclose([one.scores for one in hnsw], [one.scores for one in flat], rtol=0, atol=1e-6)


def test_vectors_that_differ_from_an_index_are_kept(root: Path) -> None:
    version = Version.published(Storage(str(root)), "hnsw")
    indexes, state = version.indexes(0), version.base(0).state
    assert isinstance(state, ItemState)
    state.components[59, 0, 6] += 0.5
    kept: Any = with_vectors_of(indexes, state)
    assert kept.components.data_ptr() == state.components.data_ptr()
    assert torch.equal(kept.components, state.components)


def test_some_rows_of_a_shard_are_searched_as_if_there_were_no_others(tmp_path: Path) -> None:
    """The others are excluded by their ids in the whole shard; of zeros, which no cosine compares, one is left."""
    vectors = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    vectors[[3, 8]] = 0
    names = [f"title {row}" for row in range(30)]
    built = local.build(vectors, titles=names, folder=str(tmp_path), zero_vectors="keep", index="hnsw")
    [shard] = built.shards
    rows = np.array([0, 2, 8, 9, 20, 29])
    others = [row for row in range(30) if row not in rows]
    items: Any = take(shard.items.state, torch.tensor([0, 4]))
    queries = QueryState(items.components, None, torch.ones(2))
    request = ShardRequest("brute_force", SearchParams(), k=6)
    found, expected = (
        shard.of_rows(rows).search(queries, request, [[], [9]]),
        shard.search(queries, request, [others] * 2),
    )
    assert found.item_ids[0] == expected.item_ids[0]
    assert found.item_ids[1] == [item for item in expected.item_ids[1] if item != 9]
    assert found.titles is not None
    assert found.titles[0] == [names[int(item)] for item in found.item_ids[0]]
    assert found.item_ids[0][-1] == 8
    assert len(shard) == 30, "the shard itself is as it was"


def test_vectors_of_which_two_are_equal_are_in_memory_once_and_both_found(tmp_path: Path) -> None:
    """As docs/indexes.md says: a copy is a node of the graph that nothing links."""
    vectors = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    vectors[20] = vectors[3]
    local.build(vectors, folder=str(tmp_path), index="hnsw")
    opened = local.open(str(tmp_path))
    searcher: Any = opened.shards[0].searcher
    kept = searcher.first_stage.by_average.index.vectors
    assert kept.data_ptr() == searcher.items.vectors(None).data_ptr()
    [found] = opened.search(vectors[3:4], k=2, method="ann").results
    assert found.items == [3, 20]
