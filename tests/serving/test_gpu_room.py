"""Room on a GPU by the manifest: each refusal is a sentence, before any item is read. The GPU's memory is simulated."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rails_ray import local
from rails_ray.errors import UnavailableError
from rails_ray.families.version import Version
from rails_ray.modules.similarities.states import ItemState, on_device
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.indexes.faiss_on_gpu import GPU_WORKSPACE
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.flat import Storage as VectorStorage
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.serving import gpu_room, loaded
from rails_ray.serving.gpu_room import (
    CONTEXT_BYTES,
    SCORE_BYTES,
    GpuMemory,
    check_gpu_room,
    gpu_memory,
    needed_bytes,
    row_bytes,
)
from rails_ray.serving.held_versions import HeldVersions
from rails_ray.serving.loaded import Loaded
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import StateEntry
from support.examples import publish_here, random_states
from support.planned import rows

WIDTH, NUM_ITEMS = 8, 40
BYTES = NUM_ITEMS * (4 * WIDTH + SCORE_BYTES)  # of all items
Memory = Callable[..., None]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Sets the memory of the GPU, in bytes beside what a process takes."""

    def of(total: float, free: float | None = None, taken: float = 0.0, share: float = 1.0) -> None:
        whole = (total + CONTEXT_BYTES) / share
        found = GpuMemory(whole, whole if free is None else free, taken)
        monkeypatch.setattr(gpu_room, "gpu_memory", lambda device: found)

    return of


@pytest.fixture
def version(tmp_path: Path) -> Version:
    vectors = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
    return local.build(vectors, folder=str(tmp_path)).version


def test_an_item_takes_what_its_columns_and_scores_take() -> None:
    state = StateEntry(
        kind="components",
        shapes={"components": [8, 32], "average": [32], "gate": [64]},
        dtypes={"components": "float16", "average": "bfloat16", "gate": "float32"},
    )
    assert row_bytes(state) == 2 * 8 * 32 + 2 * 32 + 4 * 64
    assert row_bytes(StateEntry(kind="codes", shapes={"codes": [16]}, dtypes={"codes": "int32"})) == 3 * 4 * 16
    assert row_bytes(StateEntry(kind="codes", shapes={"codes": []}, dtypes={"codes": "uint8"})) == 3


def test_the_computed_memory_is_what_was_measured() -> None:
    """On an H100, a router and a shard together took the memory that is computed for both."""
    is_start = {"section": "large", "case": "start", "on": "cuda"}
    [row] = [row for row in rows("gpu_system.jsonl") if is_start.items() <= row.items()]
    shapes = {"components": [8, 32], "average": [32], "gate": [64]}
    state = StateEntry(kind="components", shapes=shapes, dtypes=dict.fromkeys(shapes, "float32"))
    planned = 2 * CONTEXT_BYTES + row["items"] * (row_bytes(state) + SCORE_BYTES)
    assert 1.0 <= planned / (1e6 * row["gpu_mb_above"]) <= 1.1


def test_a_version_that_fits_and_one_that_does_not(version: Version, memory: Memory) -> None:
    assert needed_bytes(version, 0) == BYTES
    memory(BYTES)
    check_gpu_room(version, {0: None}, "cuda")
    memory(BYTES - 1)
    with pytest.raises(
        UnavailableError,
        match="version v1 must fit into 950 MB, all of the GPU's memory, got 950 MB: encode it in at least 2 shards, "
        "or take a larger GPU",
    ):
        check_gpu_room(version, {0: None}, "cuda")
    check_gpu_room(version, {0: None}, "cpu")


def test_a_model_that_encodes_there_needs_room_too(version: Version, memory: Memory) -> None:
    weights = sum(entry.size_bytes for entry in version.described.weights)
    assert weights > 0
    memory(BYTES + weights)
    check_gpu_room(version, {0: None}, "cuda", encodes=True)
    memory(BYTES + weights - 1)
    check_gpu_room(version, {0: None}, "cuda")
    with pytest.raises(UnavailableError, match=r"must fit into 950 MB.*: encode it in at least 2 shards, or take"):
        check_gpu_room(version, {0: None}, "cuda", encodes=True)


@pytest.mark.parametrize(("part", "shards"), [(0.5, 2), (0.3, 4), (0.1, 10)])
def test_as_many_shards_fit_as_are_told(version: Version, memory: Memory, part: float, shards: int) -> None:
    memory(part * BYTES)
    with pytest.raises(UnavailableError, match=f"in at least {shards} shards"):
        check_gpu_room(version, {0: None}, "cuda")


def test_a_gpu_without_room_for_an_item(version: Version, memory: Memory) -> None:
    for total in (BYTES / NUM_ITEMS - 1, -CONTEXT_BYTES / 2):
        memory(total, share=0.25)
        with pytest.raises(UnavailableError, match=re.escape("MB: reserve more of a GPU")):
            check_gpu_room(version, {0: None}, "cuda", 0.25)


def test_two_replicas_have_no_more_than_their_parts(version: Version, memory: Memory) -> None:
    """All of the GPU is free: the second one would not find it so."""
    memory(BYTES, share=0.5)
    check_gpu_room(version, {0: None}, "cuda", 0.5)
    with pytest.raises(
        UnavailableError, match=r"must fit into .* MB, 0\.25 of the GPU's memory, got .* MB: reserve more"
    ):
        check_gpu_room(version, {0: None}, "cuda", 0.25)
    check_gpu_room(version, {0: None}, "cuda", 2.0)


def test_what_others_and_this_process_have_taken(version: Version, memory: Memory) -> None:
    for free, taken in ((BYTES - 1.0, 0.0), (None, 1.0)):
        memory(BYTES, free, taken)
        with pytest.raises(
            UnavailableError,
            match="the GPU must have 0 MB free to load version v1, got 0 MB: stop what else uses it, or start",
        ):
            check_gpu_room(version, {0: None}, "cuda")


def test_a_former_version_shares_its_base(version: Version, memory: Memory) -> None:
    former = ShardSearch(version, 0)
    writer = local.open(str(version.storage))
    writer.add(np.ones((3, WIDTH), np.float32), [100, 101, 102])
    later = local.open(str(version.storage)).version
    own = 3 * BYTES / NUM_ITEMS
    assert needed_bytes(later, 0) == BYTES + own
    assert needed_bytes(later, 0, former) == own
    memory(BYTES + own, free=own, taken=BYTES)
    check_gpu_room(later, {0: former}, "cuda")
    with pytest.raises(UnavailableError, match="the GPU must have"):
        check_gpu_room(later, {0: None}, "cuda")


@pytest.mark.parametrize(
    ("index", "is_there"),
    [
        ("flat", True),
        (FlatConfig(storage="fp16"), True),
        (FlatConfig(storage="sq8"), False),
        (IvfConfig(nlist=2, storage="sq8"), True),
        ("hnsw", False),
    ],
)
def test_indexes_that_have_a_copy_on_a_gpu_count(tmp_path: Path, index: str | IndexConfig, is_there: bool) -> None:
    vectors = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
    version = local.build(vectors, folder=str(tmp_path), index=index).version
    sizes = sum(entry.size_bytes for entry in version.described.indexes)
    assert needed_bytes(version, 0) == BYTES + is_there * sizes


@pytest.mark.parametrize(("storage", "copies"), [("fp32", 2), ("fp16", 3)])
def test_a_graph_counts_where_faiss_has_one_for_gpus(
    storage: VectorStorage, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_room, "has_cagra", lambda: True)
    vectors = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
    version = local.build(vectors, folder=str(tmp_path), index=HnswConfig(storage=storage)).version
    assert needed_bytes(version, 0) == BYTES + copies * sum(entry.size_bytes for entry in version.described.indexes)


@pytest.mark.parametrize(
    ("index", "workspace"),
    [("flat", 0), (FlatConfig(storage="fp16"), 0), (IvfConfig(nlist=2), GPU_WORKSPACE), ("hnsw", 0)],
)
def test_what_faiss_works_with_counts_once_in_a_process(
    tmp_path: Path, memory: Memory, index: str | IndexConfig, workspace: int
) -> None:
    vectors = np.random.default_rng(0).standard_normal((NUM_ITEMS, WIDTH)).astype(np.float32)
    version = local.build(vectors, folder=str(tmp_path), index=index).version
    needed = needed_bytes(version, 0)
    memory(needed + workspace)
    check_gpu_room(version, {0: None}, "cuda")
    memory(needed + workspace - 1)
    with pytest.raises(UnavailableError, match="must fit into"):
        check_gpu_room(version, {0: None}, "cuda")
    memory(2 * needed + workspace, free=needed + workspace - 1.0)
    with pytest.raises(UnavailableError, match="the GPU must have"):
        check_gpu_room(version, {0: None}, "cuda")
    memory(needed + workspace, free=0.0)
    check_gpu_room(version, {0: ShardSearch(version, 0)}, "cuda")  # all of it is there


def test_a_router_needs_room_for_the_model_alone(version: Version, memory: Memory) -> None:
    weights = sum(entry.size_bytes for entry in version.described.weights)
    memory(weights, share=0.25)
    check_gpu_room(version, {}, "cuda", 0.25, encodes=True)
    memory(weights - 1, share=0.25)
    with pytest.raises(UnavailableError, match=r"of the GPU's memory, got 950 MB: reserve more of a GPU$"):
        check_gpu_room(version, {}, "cuda", 0.25, encodes=True)


def test_another_model_needs_room_and_the_same_one_does_not(
    tmp_path: Path, version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, noted = Loaded.of(version, "cpu"), list[bool]()
    monkeypatch.setattr(loaded, "check_gpu_room", lambda *_, encodes: noted.append(encodes))
    local.open(str(version.storage)).add(np.ones((3, WIDTH), np.float32), [100, 101, 102])
    noted.clear()
    Loaded.of(Version.published(version.storage), "cpu", former)
    wider = np.ones((3, WIDTH + 1), np.float32)
    Loaded.of(local.build(wider, folder=str(tmp_path / "other"), version="v2").version, "cpu", former)
    assert noted[0] is False
    assert noted[-1] is True


def test_nothing_is_read_before_it_is_refused(version: Version, memory: Memory) -> None:
    for part in version.described.parts:
        (Path(str(version.storage)) / part.path).unlink()
    memory(BYTES / 3, share=0.5)
    with pytest.raises(UnavailableError, match="in at least 3 shards, or reserve more"):
        HeldVersions(Storage(str(version.storage)), 0, None, "cuda", 0.5)
    memory(BYTES / 3)
    with pytest.raises(UnavailableError, match="in at least 4 shards, or take a larger GPU"):
        Loaded.of(version, "cuda")  # the model is there, too


def test_all_shards_of_a_process_are_on_its_gpu(tmp_path: Path, memory: Memory) -> None:
    publish_here(tmp_path, 2)
    version = Version.published(Storage(str(tmp_path)))
    whole = needed_bytes(version, 0) + needed_bytes(version, 1)
    memory(whole)
    check_gpu_room(version, {0: None, 1: None}, "cuda")
    memory(whole - 1)
    with pytest.raises(UnavailableError, match="take a larger GPU, or serve its shards by replicas of their own"):
        check_gpu_room(version, {0: None, 1: None}, "cuda")
    check_gpu_room(version, {1: None}, "cuda")


def test_a_column_that_is_another_one_is_moved_once() -> None:
    components = random_states(1, 5, p_x=1)[1].components
    there = on_device(ItemState(components, None, components[:, 0]), "meta")
    assert isinstance(there, ItemState)
    assert there.average is not None
    assert there.average._base is there.components
    assert on_device(there, "cpu") is there


def test_the_memory_of_a_gpu_is_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"mem_get_info": (30, 100), "memory_allocated": 20, "memory_reserved": 25}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert gpu_memory("cuda") == GpuMemory(100, 35, 20)
