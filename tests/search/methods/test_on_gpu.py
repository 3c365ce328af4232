"""The exact scan of a GPU. Where there is none, scores that are off by noise stand for the fused kernel's."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from jobs.benches.gpu_measuring import Operators
from rails_ray.kernels import fused_scan, top_k
from rails_ray.kernels.fused_scan import FusedScan, select
from rails_ray.kernels.top_k import TopK
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig, PreparedMixture
from rails_ray.modules.similarities.states import ItemState, QueryState, map_tensors, take, to
from rails_ray.search.masks import Exclusions, Mask, Remaining
from rails_ray.search.methods import on_gpu
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.on_gpu import Answer, FastScores, GpuScan
from rails_ray.search.searcher import ByComponents
from rails_ray.search.selected import Selected
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.started import search_each
from support.examples import random_states, small_mixture


class Noisy:
    """Scores that are off by at most `error`, some of them inf."""

    def __init__(self, scan: BruteForce, error: float, share_of_inf: float = 0.0) -> None:
        self.scan = scan
        self.error = error
        self.share_of_inf = share_of_inf
        self.num_calls = 0

    def __call__(self, query: QueryState, items: ItemState, rows: Tensor | None = None) -> Tensor:
        self.num_calls += 1
        scores = self.scan.similarity.scores(query, items if rows is None else items.taken(rows))
        scores = scores + self.error * (2 * torch.rand_like(scores) - 1)
        return scores.masked_fill(torch.rand_like(scores) < self.share_of_inf, torch.inf)


def check_equal(found: SearchResult, expected: SearchResult) -> None:
    assert torch.equal(found.item_rows, expected.item_rows)
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)
    assert torch.equal(found.bound, expected.bound)
    assert torch.equal(found.is_truncated, expected.is_truncated)
    assert found.reasons == expected.reasons


@given(
    st.integers(0, 5),
    st.integers(0, 600),
    st.integers(1, 30),
    st.sampled_from([None, 1e-5, 1e-3, 0.1]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
def test_an_answer_is_that_of_brute_force(
    b: int, x: int, k: int, error: float | None, has_threshold: bool, is_masked: bool, has_inf: bool, seed: int
) -> None:
    """Whatever the error of the first scores: where an answer cannot be closed, every item is scored."""
    torch.manual_seed(seed)
    query, items = random_states(b, x, seed=seed)
    scan = BruteForce(small_mixture(seed=seed).prepared(), items, prune=False)
    fast: FastScores | None = None if error is None else Noisy(scan, error, 0.02 if has_inf else 0.0)
    threshold = 0.3 * torch.randn(b) if has_threshold else None
    mask = Exclusions.of([torch.randint(0, x, (5,)).tolist() for _ in range(b)]) if is_masked and x else None
    spec = SearchSpec(k, threshold, at_least=min(k, seed % 3) if has_threshold else 0, mask=mask)
    check_equal(GpuScan(scan, fast).search(query, spec), scan.search(query, spec))


@given(st.integers(0, 5), st.integers(1, 60), st.sampled_from([None, 1e-5, 0.1]), st.booleans(), st.integers(0, 1000))
def test_some_items_are_searched_as_if_there_were_no_others(
    b: int, k: int, error: float | None, has_threshold: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    query, items = random_states(b, 400, seed=seed)
    similarity = small_mixture(seed=seed).prepared()
    whole, rows = BruteForce(similarity, items), torch.randperm(400)[: 1 + seed % 300].sort().values
    some = BruteForce(similarity, Selected(items, rows), prune=False)
    threshold = 0.3 * torch.randn(b) if has_threshold else None
    mask = Exclusions.of([torch.randint(0, len(rows), (5,)).tolist() for _ in range(b)]) if seed % 2 else None
    spec = SearchSpec(k, threshold, mask=mask)
    found = GpuScan(whole, None if error is None else Noisy(whole, error)).of_rows(rows)
    check_equal(found.search(query, spec), some.search(query, spec))
    sums = (own.log_sum_exp(query, lambda scores, _: 3 * scores, mask) for own in (found, some))
    assert torch.equal(*sums)


def test_the_kernel_reads_the_states_of_some_items_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of candidates alone are copied, and in blocks of any size."""
    pytest.importorskip("triton", reason="needs Triton")
    query, items = random_states(3, 700)
    scan = BruteForce(small_mixture().prepared(), items, prune=False)
    assert isinstance(scan.similarity, PreparedMixture)
    kernel = FusedScan(scan.similarity.gate, scan.similarity.num_components, items.width, torch.float32)
    rows = torch.arange(1, 700, 2)
    expected = BruteForce(scan.similarity, Selected(items, rows), prune=False).search(query, SearchSpec(5))
    taken, take_some = list[torch.Size](), Selected.taken

    def noted(self: Selected, own: Tensor) -> ItemState:
        taken.append(own.shape)
        return take_some(self, own)

    monkeypatch.setattr(Selected, "taken", noted)
    found = GpuScan(scan, partial(on_gpu._fused, kernel), select, "fused").of_rows(rows)
    for most in (on_gpu.BLOCK_SCORES, 3 * 101):
        monkeypatch.setattr(on_gpu, "BLOCK_SCORES", most)
        check_equal(found.search(query, SearchSpec(5)), expected)
    assert taken == [(3, 2 * 6 + on_gpu.SPARE)] * 2


def test_a_first_query_finds_compiled_what_it_selects_by() -> None:
    """Of all items, and of long and of short lists of rows."""
    items, sizes = random_states(1, 21_000)[1], set[int]()
    scan = BruteForce(small_mixture().prepared(), items)

    def noted(scores: Tensor, k: int) -> TopK:
        sizes.add(scores.shape[1])
        return top_k.select_by_tiles(scores, k)

    GpuScan(scan, None, noted).warm_up()
    assert sizes == {21_000}
    GpuScan(scan, Noisy(scan, 1e-5), noted).warm_up()
    assert sizes == {21_000, 20_000, 1_000}
    for k in on_gpu.WARMED_K:
        width = 2 * (k + 1) + on_gpu.SPARE
        steps = {
            tuple(-(-num // tile) > 4 * width for tile in fused_scan.TILES[:2])  # which `fused_scan.select` takes
            for num in (*on_gpu.WARMED_ROWS, 10**6)
        }
        assert steps == {(False, False), (False, True), (True, True)}


def test_blocks_of_items_and_of_queries_do_not_change_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    query, items = random_states(7, 900)
    scan = BruteForce(small_mixture().prepared(), items, prune=False)
    spec = SearchSpec(12)
    expected = scan.search(query, spec)
    monkeypatch.setattr(on_gpu, "BLOCK_SCORES", 700)
    monkeypatch.setattr(on_gpu, "BLOCK_QUERIES", 3)
    check_equal(GpuScan(scan, Noisy(scan, 1e-5)).search(query, spec), expected)
    check_equal(GpuScan(scan, None).search(query, spec), expected)


def test_more_candidates_are_taken_before_every_item_is_scored_again() -> None:
    query, items = random_states(3, 5000)
    scan = BruteForce(small_mixture().prepared(), items, prune=False)
    spreads = scan.scores(query).sort(dim=1, descending=True).values
    calls = []
    for error in (1e-7, float((spreads[:, 5] - spreads[:, 60]).mean() / 5), 0.5):
        fast = Noisy(scan, error)
        check_equal(GpuScan(scan, fast).search(query, SearchSpec(5)), scan.search(query, SearchSpec(5)))
        calls.append(fast.num_calls)
    assert calls == [1, 2, 2]


def test_the_host_looks_at_nothing_before_the_end() -> None:
    """A read of a tensor in Python is one that a GPU would have to be waited for; the flags' own is by `tolist`."""
    query, items = random_states(3, 5000, p_q=1, p_x=1)
    scan = BruteForce(DotProduct(DotProductConfig()).prepared(), items, prune=False)
    for fast in (None, Noisy(scan, 1e-6)):
        for spec in (SearchSpec(10), SearchSpec(10, torch.tensor([0.9, 2.0, -2.0]), at_least=3)):
            with Operators() as seen:
                GpuScan(scan, fast).search(query, spec)
            assert seen.num_reads == 0


def test_several_scans_are_started_before_the_host_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of queries and segments of a shard are waited for together, unless an answer stays open."""
    query, items = random_states(5, 900)
    scans = [BruteForce(small_mixture().prepared(), take(items, own), prune=False) for own in ROWS.split(400)]
    specs = [SearchSpec(k, mask=mask) for k, mask in ((7, None), (3, Exclusions.of([[1, 2]] * 5)), (9, None))]
    expected = [scan.search(query, spec) for scan, spec in zip(scans, specs, strict=True)]
    looks, to_list = list[int](), Tensor.tolist

    def noted(self: Tensor) -> Any:
        looks.append(self.numel())
        return to_list(self)

    monkeypatch.setattr(on_gpu, "BLOCK_QUERIES", 2)
    for error, num_looks in ((1e-6, 1), (10.0, 1 + 9)):  # all nine stay open, and are looked at again, one by one
        monkeypatch.setattr(Tensor, "tolist", noted)
        found = search_each([GpuScan(scan, Noisy(scan, error)) for scan in scans], query, specs)
        monkeypatch.setattr(Tensor, "tolist", to_list)
        assert looks[: num_looks + 1] == [27, *[3] * (num_looks - 1)]
        looks.clear()
        for own, wanted in zip(found, expected, strict=True):
            check_equal(own, wanted)
    assert search_each([GpuScan(scans[0], None)], take(query, slice(0, 0)), specs[:1])[0].scores.shape[0] == 0


def test_blocks_of_queries_are_cut_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a mask, in the host's memory, is cut with them."""
    monkeypatch.setattr(on_gpu, "BLOCK_QUERIES", 2)
    query, items = random_states(5, 40)
    scan = GpuScan(BruteForce(small_mixture().to("meta").prepared(), to(items, "meta"), prune=False), None)
    mask = Remaining.of(torch.arange(40) > 7, [[row] for row in range(5)])
    blocks = scan.query_blocks(to(query, "meta"), SearchSpec(3, torch.zeros(5, device="meta"), mask=mask))
    assert [len(own) for own, _ in blocks] == [2, 2, 1]
    left = [part.mask.num_left(len(own), 40).tolist() for own, part in blocks if part.mask is not None]
    assert left == [[32, 32], [32, 32], [32]]


ROWS = torch.arange(900)
HALF = torch.arange(5000) % 2 == 0
LISTS = [[1, 2], [], [4999]]


@pytest.mark.parametrize("mask", [None, Exclusions.of(LISTS), Remaining.of(HALF, LISTS)], ids=["none", "pairs", "half"])
@pytest.mark.parametrize("has_threshold", [False, True])
@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("is_listed", [False, True])
def test_all_of_a_mixtures_scan_is_started_without_a_look(
    mask: Mask | None, has_threshold: bool, is_fast: bool, is_listed: bool
) -> None:
    """Tensors on the device `meta` have no numbers: a look at one, in whatever way, is an error."""
    query, items = random_states(3, 5000)
    query, items = to(query, "meta"), to(items, "meta")
    whole = BruteForce(small_mixture().to("meta").prepared(), items, prune=False)
    scan = GpuScan(whole, Noisy(whole, 1e-6) if is_fast else None)
    if is_listed:
        scan = scan.of_rows(torch.arange(5000, device="meta"))
    threshold = torch.zeros(3, device="meta") if has_threshold else None
    spec = SearchSpec(10, threshold, at_least=3 if has_threshold else 0, mask=mask)
    found, flags = scan._answer(query, spec, 50)
    assert (found.item_rows.shape, flags.shape) == ((3, 10), (3,))
    with pytest.raises(NotImplementedError, match="meta tensor"):
        flags.tolist()  # which shows that a look above would have failed: this is how torch refuses it


FILL: Any = on_gpu._Graph.fill  # which reads the query alone


class Recorded:
    """Stands for a CUDA graph: it runs the function anew on its own query, as a replay does."""

    made: ClassVar[list[int]] = []

    def __init__(self, function: Callable[[QueryState], Answer], query: QueryState, size: int, pool: object) -> None:
        self.made.append(size)
        self.function = function
        self.graph = SimpleNamespace(pool=lambda: "shared")
        self.query = map_tensors(lambda own: own.new_ones(size, *own.shape[1:]), query)

    def run(self, query: QueryState) -> Answer:
        FILL(self, query)
        scores, rows, is_truncated, flags = self.function(self.query)
        num = len(query)
        return Answer(scores[:num], rows[:num], is_truncated[:num], flags)


def test_batches_are_recorded_when_they_come_again_and_filled_up_to_a_power_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_gpu, "_Graph", Recorded)
    monkeypatch.setattr(Recorded, "made", [])
    query, items = random_states(8, 300)
    scan = GpuScan(BruteForce(small_mixture().prepared(), items, prune=False), None)
    graphs = scan.graphs

    def asked(lines: slice, k: int) -> Answer:
        return graphs.run(partial(scan._top, k=k, width=k + 1), take(query, lines), (k, k + 1))

    for lines in (slice(0, 3), slice(4, 8), slice(2, 5), slice(0, 1), slice(1, 2)):  # sizes 4, 4, 4, 1, 1
        expected = scan.scan.search(take(query, lines), SearchSpec(7))
        found = asked(lines, 7)
        assert torch.equal(found.item_rows, expected.item_rows)
        assert torch.equal(found.is_truncated, expected.is_truncated)
        assert found.flags.tolist() == [False, True]
    assert Recorded.made == [4, 1]
    assert graphs.pool == "shared"
    for k in range(1, on_gpu.MOST_GRAPHS + 1):  # as many others, each once: nothing is recorded, and the first are gone
        asked(slice(0, 3), 100 + k)
    assert Recorded.made == [4, 1]
    asked(slice(0, 3), 7)
    assert Recorded.made == [4, 1], "forgotten, and so asked for the first time"


def test_a_query_that_is_not_finite_is_refused() -> None:
    query, items = random_states(3, 50)
    query.components[1, 0, 0] = torch.nan
    scan = BruteForce(small_mixture().prepared(), items)
    with pytest.raises(ValueError, match="query components must be finite, got NaN or infinity in query 1"):
        GpuScan(scan, Noisy(scan, 1e-6)).search(query, SearchSpec(5))


def check_as_good(scan: GpuScan, query: QueryState, found: SearchResult, expected: SearchResult) -> None:
    """Items whose scores differ by rounding may change places: cuBLAS adds up in an order of its own for each shape."""
    assert found.scores.shape == expected.scores.shape
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)
    is_there = found.scores > -torch.inf
    own = scan.scan.scores(query).gather(1, found.item_rows)
    assert torch.allclose(own[is_there], expected.scores[is_there], atol=1e-6)
    for rows, there in zip(found.item_rows, is_there, strict=True):
        assert len(set(rows[there].tolist())) == there.sum()


# CI has no GPU: `python -m jobs.benches.gpu --only tests` runs it on a machine that has one.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_every_way_gives_the_answer_of_brute_force() -> None:
    """Recorded or not, any number of queries, with thresholds and masks, from several threads."""
    torch.manual_seed(0)
    config = MixtureOfLogitsConfig(num_query_components=8, num_item_components=8)
    query, items = random_states(40, 30_000, p_q=8, p_x=8, width=32)
    query, items = to(query, "cuda"), to(items, "cuda")
    searcher = ByComponents(MixtureOfLogits(config).eval().cuda(), items)
    scan = searcher.exact
    assert isinstance(scan, GpuScan)
    assert scan.fast is not None
    for _ in range(3):
        for num in (1, 2, 3, 5, 32, 40):
            own = take(query, slice(num))
            threshold = scan.scan.scores(own).topk(30, dim=1).values[:, -1]
            mask = Exclusions.of([[1, 2, 3]] * num)
            for spec in (SearchSpec(50), SearchSpec(50, threshold), SearchSpec(20, mask=mask)):
                check_as_good(scan, own, scan.search(own, spec), scan.scan.search(own, spec))
    rows = torch.arange(1, 30_000, 3, device="cuda")
    some, alone = scan.of_rows(rows), BruteForce(scan.scan.similarity, Selected(items, rows))
    for num in (1, 32):
        own = take(query, slice(num))
        check_as_good(some, own, some.search(own, SearchSpec(50)), alone.search(own, SearchSpec(50)))
    expected = scan.scan.search(query, SearchSpec(50))
    with ThreadPoolExecutor(4) as pool:
        numbers = [number % 40 for number in range(200)]
        answers = pool.map(lambda number: scan.search(take(query, [number]), SearchSpec(50)), numbers)
        for number, found in zip(numbers, answers, strict=True):
            check_as_good(scan, take(query, [number]), found, expected.of_queries(torch.tensor([number])))
