"""What FAISS's indexes have beside the contract of `tests/contracts/test_index.py`."""

import gc
import io
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles
from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.indexes import faiss_index, grown_lists, ivf
from rails_ray.indexes.faiss_index import Built, FaissIndex, IndexConfig, build, fit, on_gpu
from rails_ray.indexes.flat import FlatConfig
from rails_ray.indexes.grown_lists import Growth
from rails_ray.indexes.hnsw import HnswConfig
from rails_ray.indexes.ivf import IvfConfig
from rails_ray.indexes.probing import Probing
from rails_ray.masks import Exclusions
from rails_ray.wanted import Found, Wanted
from support.bitmap import Bitmap

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
ALL_LISTS = Probing(nprobe=6)


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
    return FaissIndex.read(*built(config, items))


def stored(index: FaissIndex) -> Tensor:
    """The vectors as FAISS reads them back."""
    if isinstance(index.index, faiss.IndexIVF):
        own = faiss.clone_index(index.index)
        own.make_direct_map()
        return torch.from_numpy(own.reconstruct_n(0, own.ntotal))
    return torch.from_numpy(index.index.reconstruct_n(0, index.num_items))


def check_equals_oracle(
    found: Found, index: FaissIndex, queries: Tensor, wanted: Wanted, excluded: list[list[int]]
) -> None:
    """`found` is what the oracle finds in the stored vectors, but for the order of scores that differ by rounding."""
    scores = stored(index).double() @ queries.double().T  # [X, B]
    for line, out in enumerate(excluded):
        own = scores[:, line].tolist()
        reach = math.inf if wanted.threshold is None else float(wanted.threshold[line])
        at_least = wanted.k if wanted.threshold is None else wanted.at_least
        rows, is_truncated = oracles.items_above(own, reach, wanted.k, at_least, out)
        num = int(found.num_found()[line])
        assert num == len(rows)
        assert found.scores[line, :num].tolist() == pytest.approx([own[row] for row in rows], abs=1e-5)
        assert [own[row] for row in found.item_rows[line, :num].tolist()] == pytest.approx(
            [own[row] for row in rows], abs=1e-5
        )
        assert len({*found.item_rows[line, :num].tolist()} - {*out}) == num
        if wanted.threshold is not None:
            assert found.is_truncated[line] == is_truncated
        else:
            assert found.is_truncated[line] == (len(own) - len(out) > wanted.k)


# Equals the oracle


@storages
@pytest.mark.parametrize("kind", [FlatConfig, IvfConfig])
@given(st.integers(0, 40), st.sampled_from([0, 1, 3, 21]), st.integers(0, 99), st.data())
def test_all_that_is_looked_at_equals_the_oracle(
    kind: type, storage: Any, num_items: int, num_queries: int, seed: int, data: st.DataObject
) -> None:
    """Flat, and ivf with nprobe = nlist: thresholds, exclusions that are dropped and others that FAISS passes over.
    FAISS takes another way from 20 queries on."""
    config = kind(storage=storage) if kind is FlatConfig else kind(storage=storage, nlist=6)
    index = opened(config, vectors(num_items, seed))
    queries = vectors(num_queries, seed + 1)
    k = data.draw(st.integers(1, num_items + 2))
    row = st.lists(st.integers(0, max(num_items - 1, 0)), max_size=12 if num_items else 0, unique=True)
    excluded = [data.draw(row) for _ in range(min(num_queries, 3))] + [[] for _ in range(num_queries - 3)]
    threshold = torch.tensor(
        [data.draw(st.sampled_from([-torch.inf, torch.inf, 0.1])) for _ in range(min(num_queries, 3))]
        + [0.3] * max(num_queries - 3, 0)
    )
    mask = Exclusions.of(excluded)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grown_lists, "MOST_DROPPED", data.draw(st.sampled_from([0, 3, 1000])))
        patched.setattr(index.kind, "growth", Growth(data.draw(st.sampled_from([1, 256])), 2, is_loose=False))
        patched.setattr(faiss_index, "LONGEST_LIST", data.draw(st.sampled_from([1, 4, 1000])))
        patched.setattr(faiss_index, "MOST_PLACES", data.draw(st.sampled_from([1, 60, 10**6])))
        patched.setattr(grown_lists, "SPARE", data.draw(st.sampled_from([0, 2])))
        for wanted in (Wanted(k, mask=mask), Wanted(k, threshold, data.draw(st.integers(0, k)), mask)):
            found = index.search(queries, wanted, ALL_LISTS)
            check_equals_oracle(found, index, queries, wanted, excluded)
            assert found.num_scored.tolist() == [num_items] * num_queries
            assert found.reason is None


@kinds
def test_a_bitmap_that_hides_most_items(config: IndexConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    items, queries = vectors(300), vectors(5, 1)
    index = opened(config, items)
    is_hidden = torch.arange(300) % 10 > 0
    hidden = is_hidden.nonzero()[:, 0].tolist()
    for most in (1000, 10):
        monkeypatch.setattr(grown_lists, "MOST_DROPPED", most)
        for wanted in (Wanted(7, mask=Bitmap(is_hidden)), Wanted(9, torch.full((5,), 0.1), 2, Bitmap(is_hidden))):
            found = index.search(queries, wanted, Probing(nprobe=6, ef_search=300))
            check_equals_oracle(found, index, queries, wanted, [hidden] * 5)


@kinds
def test_hidden_items_that_are_shared_or_ones_own_are_as_one_by_one(config: IndexConfig) -> None:
    """Queries with many hidden items are asked apart; all come back in their places."""
    index, queries = opened(config, vectors(3000)), vectors(4, 1)
    rows = [list(range(0, 3000, 2)), [], list(range(1, 3000, 2)), list(range(0, 3000, 2))]
    together = index.search(queries, Wanted(5, mask=Exclusions.of(rows)))
    for line, own in enumerate(rows):
        alone = index.search(queries[line : line + 1], Wanted(5, mask=Exclusions.of([own])))
        assert torch.equal(together.item_rows[line], alone.item_rows[0])
        assert not {*together.item_rows[line].tolist()} & {*own}


@pytest.mark.parametrize("config", [FlatConfig(), IvfConfig(nlist=6)], ids=["flat", "ivf"])
@pytest.mark.parametrize("longest", [1, 100, 10_000], ids="longest list {}".format)
def test_equal_scores_by_the_lower_row(config: IndexConfig, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more items tie with the last place than it has room for."""
    items = torch.cat([vectors(700), torch.ones(900, WIDTH), vectors(30, 2), torch.ones(5, WIDTH)])
    index = opened(config, items)
    query = torch.ones(2, WIDTH)
    num = 6
    for wanted in (Wanted(num), Wanted(num, torch.tensor([8.0, -1.0])), Wanted(num, torch.full((2,), torch.inf), num)):
        found = index.search(query, wanted, ALL_LISTS)
        assert found.item_rows.tolist() == [list(range(700, 706))] * 2
    every = index.search(query, Wanted(2000, torch.full((2,), 8.0)), ALL_LISTS)
    assert every.item_rows[1].tolist() == [*range(700, 1600), *range(1630, 1635)]
    assert not every.is_truncated.any()
    monkeypatch.setattr(faiss_index, "LONGEST_LIST", longest)
    queries = torch.stack([query[0], torch.zeros(WIDTH), query[0], torch.zeros(WIDTH)])  # to which all items are equal
    for wanted in (Wanted(3), Wanted(3, torch.tensor([9.0, 0.0, 8.0, -torch.inf]), at_least=1)):
        found = index.search(queries, wanted, ALL_LISTS)
        assert found.item_rows[[1, 3]].tolist() == [[0, 1, 2]] * 2
        assert found.item_rows[2].tolist() == [700, 701, 702]
        assert found.item_rows[0, : int(found.num_found()[0])].tolist() in ([700, 701, 702], [700])
        assert found.is_truncated.tolist() == [wanted.threshold is None, True, True, True]


def test_more_lists_never_find_worse_items() -> None:
    index, queries = opened(IvfConfig(nlist=20), vectors(2000)), vectors(50, 1)
    before = index.search(queries, Wanted(10), Probing(nprobe=1))
    for nprobe in range(2, 21):
        found = index.search(queries, Wanted(10), Probing(nprobe=nprobe))
        assert (found.scores >= before.scores - 1e-6).all()
        assert (found.num_scored >= before.num_scored).all()
        before = found
    assert before.num_scored.tolist() == [2000] * 50


def test_recall_grows_with_the_beam() -> None:
    items, queries = torch.randn(3000, 16, generator=torch.Generator().manual_seed(0)), vectors(50, 1, 16)
    index, exact = opened(HnswConfig(M=4), items), opened(FlatConfig(), items).search(queries, Wanted(10))
    recall = []
    for ef_search in (10, 20, 80, 640):
        found = index.search(queries, Wanted(10), Probing(ef_search=ef_search)).item_rows
        recall.append((found[:, :, None] == exact.item_rows[:, None]).any(2).float().mean().item())
    assert recall == sorted(recall)
    assert recall[0] < 0.9 < 0.98 < recall[-1]


def test_a_threshold_finds_all_in_the_lists_that_are_scanned() -> None:
    """Far more than the first list holds."""
    index, queries = opened(IvfConfig(nlist=6), vectors(4000)), vectors(3, 1)
    two = Probing(nprobe=2)
    reached = index.search(queries, Wanted(4000), two)
    assert (reached.num_found() == reached.num_scored).all()
    for place in (10, 400, 900):
        threshold = reached.scores[:, place].clone()
        found = index.search(queries, Wanted(4000, threshold), two)
        assert found.num_found().tolist() == [place + 1] * 3
        assert torch.equal(found.item_rows, reached.item_rows[:, : place + 1])
        capped = index.search(queries, Wanted(place, threshold), two)
        assert capped.is_truncated.all()
        assert torch.equal(capped.item_rows, reached.item_rows[:, :place])


def test_a_threshold_in_a_graph_is_not_cut_by_the_beam() -> None:
    """FAISS's own range search stops where the beam does."""
    items, queries = F.normalize(vectors(4000, width=16)), F.normalize(vectors(3, 1, 16))
    data, error = built(HnswConfig(), items)
    threshold = opened(FlatConfig(), items).search(queries, Wanted(1000)).scores[:, -1]
    found = FaissIndex.read(data, error).search(queries, Wanted(4000, threshold))
    assert (found.num_found() >= 980).all()
    theirs = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    theirs.hnsw.efSearch = 64
    for line in range(3):
        limits, _, _ = theirs.range_search(queries[line : line + 1].numpy(), float(threshold[line]))
        assert limits[1] < 900


@kinds
@pytest.mark.parametrize("num_items", [0, 1])
def test_few_items(config: IndexConfig, num_items: int) -> None:
    items = vectors(num_items)
    index, queries = opened(config, items), torch.ones(2, WIDTH)
    every = Probing(nprobe=6)
    best = index.search(queries, Wanted(3), every)
    above = index.search(queries, Wanted(3, torch.tensor([-torch.inf, torch.inf]), 1), every)
    hidden = index.search(queries, Wanted(3, mask=Exclusions.of([[0], []])), every)
    assert best.item_rows.tolist() == above.item_rows.tolist() == [[0] * num_items] * 2
    assert best.num_found().tolist() == above.num_found().tolist() == [num_items] * 2
    assert hidden.num_found().tolist() == [0, num_items]
    for found in (best, above, hidden):
        assert found.bound.tolist() == [-torch.inf] * 2
        assert not found.is_truncated.any()
    none = index.search(queries[:0], Wanted(3), every)
    assert none.item_rows.shape == (0, num_items)


@kinds
def test_more_items_than_there_are(config: IndexConfig) -> None:
    found = opened(config, vectors(20)).search(vectors(2, 1), Wanted(50), ALL_LISTS)
    assert found.item_rows.sort(dim=1).values.tolist() == [list(range(20))] * 2


@kinds
def test_a_query_that_is_not_finite_finds_nothing_for_itself(config: IndexConfig) -> None:
    index, queries = opened(config, vectors(50)), vectors(3, 1)
    queries[1] = torch.nan
    for wanted in (Wanted(4), Wanted(50, torch.zeros(3), 2)):
        assert index.search(queries, wanted).num_found()[1] == 0
        assert torch.equal(
            index.search(queries[2:], Wanted(4)).item_rows[0], index.search(queries, Wanted(4)).item_rows[2]
        )


# Bounds


@storages
@pytest.mark.parametrize("kind", [FlatConfig, IvfConfig])
@given(st.integers(1, 40), st.integers(0, 99), st.floats(1e-2, 1e2), st.data())
def test_no_item_that_was_passed_over_scores_above_the_bound(
    kind: type, storage: Any, num_items: int, seed: int, scale: float, data: st.DataObject
) -> None:
    """In float64, of the vectors that were given, which may lie outside the range of the sample."""
    items, queries = vectors(num_items, seed) * scale, vectors(4, seed + 1)
    config = kind(storage=storage) if kind is FlatConfig else kind(storage=storage, nlist=6)
    index = FaissIndex.read(*build(fit(config, vectors(20, seed + 2), num_items, 0), [items]))
    k = data.draw(st.integers(1, num_items))
    threshold = torch.tensor([data.draw(st.floats(-1, 1, width=32)) for _ in queries])
    mask = Exclusions.of([[0], [], [], []])
    exact = queries.double() @ items.double().T
    exact[0, 0] = -torch.inf
    for wanted in (Wanted(k, mask=mask), Wanted(k, threshold, data.draw(st.integers(0, k)), mask)):
        found = index.search(queries, wanted, ALL_LISTS)
        for line in range(4):
            is_missing = torch.ones(num_items, dtype=torch.bool)
            is_missing[found.item_rows[line, : int(found.num_found()[line])]] = False
            missing = exact[line, is_missing]
            missing = missing[missing > -torch.inf]
            if storage != "fp32":
                assert (missing <= found.bound[line].double()).all()
                assert found.bound[line] < torch.inf
                assert (found.bound[line] == -torch.inf) == (not len(missing))
        if storage == "fp32":
            assert found.bound.tolist() == [-torch.inf] * 4
        assert found.reason is None
    assert index.is_exact == (config == FlatConfig())


def test_the_bound_is_the_last_score_and_what_rounding_hides() -> None:
    data, error = built(FlatConfig(storage="sq8"), vectors(100))
    distance = (stored(FaissIndex.read(data, error)) - vectors(100)).norm(dim=1).max()
    assert distance < error < distance + 1e-4
    query = 2 * vectors(1, 1)
    found = FaissIndex.read(data, error).search(query, Wanted(10))
    assert found.bound.tolist() == pytest.approx([float(found.scores[0, -1] + error * query.norm())])
    assert found.gap(Wanted(10)).tolist() == pytest.approx([float(error * query.norm())], abs=1e-6)
    above = FaissIndex.read(data, error).search(query, Wanted(100, torch.tensor([0.5])))
    assert above.bound.tolist() == pytest.approx([float(0.5 + error * query.norm())])
    assert not above.is_truncated.any()


@pytest.mark.parametrize(("config", "article"), [(IvfConfig(nlist=6), "an ivf"), (HnswConfig(), "an hnsw")])
def test_nothing_is_known_of_items_that_were_not_looked_at(config: IndexConfig, article: str) -> None:
    index, queries = opened(config, vectors(40)), vectors(2, 1)
    found = index.search(queries, Wanted(3), Probing(nprobe=2))
    assert found.bound.tolist() == [torch.inf] * 2
    assert found.reason == f"candidates by {article} index, which may pass over any item"
    assert not index.is_exact


# What is made


@kinds
def test_the_same_vectors_make_the_same_bytes(config: IndexConfig) -> None:
    """Whatever the number of threads, which is as before afterwards."""
    before = faiss.omp_get_max_threads()
    made = []
    try:
        for threads in (1, 4):
            faiss.omp_set_num_threads(threads)
            fitted = fit(config, vectors(2000), 2000, seed=3)
            assert faiss.omp_get_max_threads() == threads
            made.append((fitted, build(fitted, vectors(2000).split(700))))
            assert faiss.omp_get_max_threads() == threads
    finally:
        faiss.omp_set_num_threads(before)
    assert made[0] == made[1]
    if config.kind == "ivf":
        assert fit(config, vectors(2000), 2000, seed=4) != made[0][0]


@pytest.mark.parametrize("config", [FlatConfig(storage="sq8"), IvfConfig(nlist=6, storage="fp16")], ids=["flat", "ivf"])
def test_blocks_do_not_change_the_bytes(config: IndexConfig) -> None:
    fitted = fit(config, vectors(200), 200, seed=0)
    whole = build(fitted, [vectors(200)])
    assert build(fitted, vectors(200).split(17)) == whole
    assert build(fitted, [vectors(200)[:0], vectors(200)]) == whole


@kinds
def test_plain_faiss_opens_the_bytes(config: IndexConfig) -> None:
    data, _ = built(config, vectors(200))
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    assert index.ntotal == 200
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    if config.kind == "ivf":
        index.nprobe = 2
    if config.kind == "hnsw":
        index.hnsw.efSearch = 64
        assert index.hnsw.efConstruction == 40
    queries = vectors(3, 1)
    scores, rows = index.search(queries.numpy(), 5)
    found = FaissIndex.read(data, 0.0).search(queries, Wanted(5), Probing(nprobe=2))
    assert found.item_rows.tolist() == rows.tolist()
    assert found.scores.tolist() == scores.tolist()
    memory = io.BytesIO(data)
    reader = faiss.PyCallbackIOReader(memory.read)
    assert faiss.read_index(reader).ntotal == 200
    assert faiss.serialize_index(index).tobytes()[:4] == data[:4]


def test_vectors_of_any_dtype_and_layout_are_float32() -> None:
    items = vectors(60).half()
    data = built(FlatConfig(), items.float())
    for same in (items, items.bfloat16().half() * 0 + items, items.double(), items.T.contiguous().T):
        assert built(FlatConfig(), same) == data
    assert built(FlatConfig(), items.bfloat16()) == built(FlatConfig(), items.bfloat16().float())
    index = FaissIndex.read(*data)
    query = vectors(2, 1).half()
    found = index.search(query.float(), Wanted(3))
    for same in (query, query.double(), query.float().requires_grad_(), query.T.contiguous().T):
        again = index.search(same, Wanted(3))
        assert torch.equal(again.scores, found.scores)
        assert again.scores.dtype == torch.float32
        assert again.item_rows.dtype == again.num_scored.dtype == torch.int64


def test_an_index_lies_in_the_memory_that_it_was_read_from() -> None:
    for config in KINDS.values():
        data, error = built(config, vectors(100))
        queries = vectors(3, 1)
        expected = FaissIndex.read(data, error).search(queries, Wanted(4)).item_rows
        memory = bytearray(data)
        index = FaissIndex.read(memoryview(memory).toreadonly(), error)
        if config == FlatConfig():
            assert index.search(queries, Wanted(4)).item_rows.tolist() == expected.tolist()
            memory[-400:] = bytes(400)
            assert not stored(index)[-1].any()
            continue
        del memory
        gc.collect()
        assert torch.equal(index.search(queries, Wanted(4)).item_rows, expected)


def test_many_threads_find_what_one_finds() -> None:
    items, queries = vectors(3000, width=16), vectors(48, 1, 16)
    masks = [None, Exclusions.of([[row] for row in range(12)]), Exclusions.of([list(range(2000))] * 12)]
    for config in (FlatConfig(), FlatConfig(storage="sq8"), IvfConfig(nlist=6, storage="sq8"), HnswConfig(M=8)):
        index = opened(config, items)
        jobs = [
            (
                queries[first : first + 12],
                Wanted(5, threshold, mask=mask),
                Probing(nprobe=nprobe, ef_search=nprobe * 20),
            )
            for nprobe in (1, 3)
            for first in range(0, 48, 12)
            for threshold in (None, torch.full((12,), 0.2))
            for mask in masks
        ]
        alone = [index.search(*job) for job in jobs]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(index.search, *zip(*jobs, strict=True)))
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one.item_rows, other.item_rows)
            assert torch.equal(one.scores, other.scores)
            assert torch.equal(one.num_scored, other.num_scored)


# Configs and errors


def test_lists_are_four_times_the_root_but_leave_39_items_each() -> None:
    assert ivf.num_lists(0, 1_000_000, 1_000_000) == 4000
    assert ivf.num_lists(0, 1_000_000, 39_000) == 1000
    assert ivf.num_lists(0, 0, 1) == ivf.num_lists(0, 3, 1) == 1
    assert ivf.num_lists(17, 1_000_000, 17) == 17
    fitted = fit(IvfConfig(), vectors(400), 400, seed=0)
    assert FaissIndex.read(fitted, 0.0).index.nlist == 10


def test_default_probing() -> None:
    index, queries = opened(IvfConfig(nlist=25), vectors(500)), vectors(3, 1)
    for one, other in ((None, Probing()), (None, Probing(nprobe=5)), (None, Probing(ef_search=3))):
        found, same = index.search(queries, Wanted(3), one), index.search(queries, Wanted(3), other)
        assert found.num_scored.tolist() == same.num_scored.tolist()
        assert torch.equal(found.item_rows, same.item_rows)
    graph = opened(HnswConfig(), vectors(500))
    assert torch.equal(
        graph.search(queries, Wanted(3)).item_rows,
        graph.search(queries, Wanted(3), Probing(ef_search=64, nprobe=10**6)).item_rows,
    )
    assert graph.search(queries, Wanted(100), Probing(ef_search=1)).num_found().tolist() == [100] * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IvfConfig(nlist=-1), "nlist must be at least 0, got -1"),
        (lambda: HnswConfig(M=1), "M must be at least 2 and at most 256, got 1"),
        (lambda: HnswConfig(M=257), "M must be at least 2 and at most 256, got 257"),
        (lambda: HnswConfig(ef_construction=0), "ef_construction must be at least 1 and at most 4096, got 0"),
        (lambda: HnswConfig(ef_construction=4097), "ef_construction must be at least 1 and at most 4096, got 4097"),
        (lambda: Probing(nprobe=0), "nprobe must be at least 1, got 0"),
        (lambda: Probing(ef_search=-5), "ef_search must be at least 1, got -5"),
        (
            lambda: fit(IvfConfig(nlist=1000), vectors(17), 17, 0),
            "nlist must be at most the 17 items of the sample, got 1000",
        ),
        (lambda: fit(FlatConfig(), vectors(0), 0, 0), "sample must hold at least 1 item, got 0"),
        (
            lambda: fit(IvfConfig(), torch.tensor([[0.0], [torch.nan]]), 2, 0),
            "sample must be finite, got NaN or infinity in row 1",
        ),
        (
            lambda: build(fit(FlatConfig(), vectors(5), 5, 0), [vectors(3), vectors(2) / 0]),
            "vectors must be finite, got NaN or infinity in row 0",
        ),
        (
            lambda: build(fit(FlatConfig(), vectors(5), 5, 0), [torch.ones(2, 7)]),
            "vectors must have the 8 numbers of an indexed vector, got 7",
        ),
        (
            lambda: build(fit(FlatConfig(storage="fp16"), vectors(5), 5, 0), [vectors(5) * 1e6]),
            "vectors must fit the storage of the index, got one that is read back as infinite",
        ),
        (
            lambda: build(fit(FlatConfig(storage="sq8"), 6e38 * torch.eye(8).double() - 3e38, 8, 0), [torch.eye(8)]),
            "vectors must fit the storage of the index, got one that is read back as infinite",
        ),
        (
            lambda: build(built(FlatConfig(), vectors(17)).data, [vectors(1)]),
            "fitted must be an index without items, got 17",
        ),
        (
            lambda: opened(FlatConfig(), vectors(5)).search(torch.ones(1, 9), Wanted(1)),
            "queries must have the 8 numbers of an indexed vector, got 9",
        ),
        (
            lambda: opened(IvfConfig(nlist=6), vectors(50)).search(vectors(1), Wanted(1), Probing(nprobe=7)),
            "nprobe must be at most the 6 lists of the index, got 7",
        ),
        (
            lambda: opened(FlatConfig(), vectors(5)).search(vectors(2), Wanted(1, torch.zeros(3))),
            "threshold must be one number for each of 2 queries, got 3",
        ),
    ],
)
def test_what_must_hold(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@kinds
def test_bytes_that_faiss_cannot_read(config: IndexConfig) -> None:
    data, error = built(config, vectors(30))
    for num in (0, 3, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(
            DamagedError, match=f"an index must be what FAISS wrote, got {num} bytes that it cannot read"
        ):
            FaissIndex.read(data[:num], error)
    with pytest.raises(DamagedError, match=f"got {len(data) + 1} bytes that it cannot read"):
        FaissIndex.read(data + b"\0", error)
    with pytest.raises(DamagedError, match="an index must be what FAISS wrote, got 9 bytes that it cannot read"):
        build(b"no index.", [])


def written(index: Any) -> bytes:
    return faiss.serialize_index(index).tobytes()


def test_indexes_of_another_shape() -> None:
    with pytest.raises(ValueError, match="metric_type must be METRIC_INNER_PRODUCT, 0, got 1"):
        FaissIndex.read(written(faiss.IndexFlatL2(4)), 0.0)
    with pytest.raises(ValueError, match="an index must be flat, ivf or hnsw in fp32, fp16 or sq8, got an IndexPQ"):
        FaissIndex.read(written(faiss.IndexPQ(4, 2, 4, faiss.METRIC_INNER_PRODUCT)), 0.0)


def test_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    data, error = built(FlatConfig(), vectors(3))
    monkeypatch.setitem(sys.modules, "faiss", None)
    for use in (
        lambda: fit(FlatConfig(), vectors(3), 3, 0),
        lambda: build(data, []),
        lambda: FaissIndex.read(data, error),
    ):
        with pytest.raises(
            UnsupportedError, match="needs the package faiss, which is not installed: install faiss-cpu"
        ):
            use()


# On a GPU: its copy is stood in for by one on the CPU


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The n of each call of a copy "on the GPU"."""
    made: list[int] = []

    class Copy:
        def __init__(self, index: Any) -> None:
            self.index = faiss.clone_index(index)

        def search(self, queries: Any, n: int, params: Any) -> Any:
            made.append(n)
            assert n <= 2048
            assert params is None or params.sel is None
            return self.index.search(queries, n, params=params)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: None, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda _, device, index: Copy(index), raising=False)
    return made


@pytest.mark.parametrize("config", [FlatConfig(), *(IvfConfig(nlist=6, storage=storage) for storage in STORAGES)])
def test_a_copy_on_the_gpu_finds_the_same(config: IndexConfig, calls: list[int]) -> None:
    index, queries = opened(config, vectors(5000)), vectors(3, 1)
    copy = on_gpu(index)
    rows = [[1, 2, 3], [], list(range(0, 5000, 2))]
    for wanted in (
        Wanted(5),
        Wanted(5000, torch.full((3,), 0.3)),
        Wanted(4, mask=Exclusions.of(rows)),
        Wanted(3000),
    ):
        for probing in (None, ALL_LISTS):
            one, other = index.search(queries, wanted, probing), copy.search(queries, wanted, probing)
            assert torch.equal(one.item_rows, other.item_rows)
            assert torch.equal(one.bound, other.bound)
            assert torch.equal(one.num_scored, other.num_scored)
    assert calls


def test_what_has_no_copy_on_a_gpu(calls: list[int]) -> None:
    for config in (FlatConfig(storage="fp16"), HnswConfig(M=8)):
        index = opened(config, vectors(50))
        assert on_gpu(index) is index


def test_without_a_gpu_an_index_stays_as_it_is() -> None:
    index = opened(FlatConfig(), vectors(5))
    if not faiss.get_num_gpus():
        assert on_gpu(index) is index
