import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.codes
from rails_ray.kernels import compiled, lookup_scan, postings
from rails_ray.kernels.postings import HiddenRows, Postings, Summed
from rails_ray.kernels.top_k import TopK, select
from rails_ray.search.masks import Exclusions

INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]
a_shape = st.tuples(  # B, X, K, R, m as a share of R, seed
    *(st.integers(0, 3), st.integers(0, 30), st.integers(1, 4), st.integers(1, 9), st.floats(0, 1), st.integers(0, 99))
)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def random_case(
    b: int, x: int, k: int, r: int, share: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [X, K], buckets and weights [B, K, m]; weights of halves, so that sums are exact and often equal."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(r, (x, k), generator=generator)
    m = max(round(share * r), 1)
    buckets = torch.rand(b, k, r, generator=generator).argsort(dim=2)[:, :, :m]
    return codes, buckets, torch.randint(-4, 5, buckets.shape, generator=generator) / 2


def hidden_rows(excluded: Sequence[Sequence[int]], made: Postings) -> HiddenRows:
    return Exclusions.of(excluded).hidden_rows(len(excluded), made.rows.shape[1])


def assert_equal(found: Summed, expected: Summed) -> None:
    assert torch.equal(found.num_touched, expected.num_touched)
    assert torch.equal(found.top_k.scores, expected.top_k.scores)
    assert torch.equal(found.top_k.item_rows, expected.top_k.item_rows)


@given(a_shape, st.sampled_from(INTEGERS))
def test_items_stand_in_their_buckets(shape: tuple[int, int, int, int, float, int], dtype: torch.dtype) -> None:
    codes, _, _ = random_case(*shape)
    num_chunks, num_buckets = shape[2:4]
    expected = oracles.codes.postings(codes.tolist(), num_chunks, num_buckets)
    plain = postings.plain_sort_by_bucket(codes.to(dtype), num_buckets)
    for made in (plain, postings.sort_by_bucket(codes.to(dtype), num_buckets)):
        assert (made.starts.dtype, made.rows.dtype) == (torch.int64, torch.int32)
        rows = [
            [made.rows[chunk, starts[bucket] : starts[bucket + 1]].tolist() for bucket in range(num_buckets)]
            for chunk, starts in enumerate(made.starts.tolist())
        ]
        assert rows == expected


@given(a_shape, st.data())
def test_both_ways_equal_the_oracle(shape: tuple[int, int, int, int, float, int], data: st.DataObject) -> None:
    """Ties and exclusions, of rows that there are not too, included."""
    codes, buckets, weights = random_case(*shape)
    num_items = len(codes)
    excluded = [data.draw(st.lists(st.integers(-1, num_items + 1), max_size=5)) for _ in buckets]
    num = data.draw(st.integers(1, num_items + 2))
    made = postings.sort_by_bucket(codes, shape[3])
    hidden = hidden_rows(excluded, made) if any(excluded) else None
    found = postings.best_sums(made, buckets, weights, num, hidden)
    assert_equal(found, postings.plain_best_sums(made, buckets, weights, num, hidden))
    assert found.top_k.k == min(num, num_items)
    for line, out in enumerate(excluded):
        sums = oracles.codes.posted_sums(codes.tolist(), buckets[line].tolist(), weights[line].tolist(), out)
        best = sorted(sums, key=lambda row: (-sums[row], row))[:num]
        nothing = found.top_k.k - len(best)
        assert found.num_touched[line] == len(sums)
        assert found.top_k.item_rows[line].tolist() == best + [0] * nothing
        assert found.top_k.scores[line].tolist() == [sums[row] for row in best] + [-torch.inf] * nothing


@pytest.mark.parametrize("num", [1, 3, 40, 200])
@pytest.mark.parametrize("block", [1, 7, 64, 2**18])
def test_blocks_of_any_size_give_one_answer(monkeypatch: pytest.MonkeyPatch, block: int, num: int) -> None:
    """Far more items than are kept, so that the worst are thrown away again and again."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(20, (200, 4), generator=generator)
    made = postings.sort_by_bucket(codes, 20)
    buckets = torch.rand(5, 4, 20, generator=generator).argsort(dim=2)[:, :, :9]
    weights = torch.randn(buckets.shape, generator=generator)
    hidden = hidden_rows([[3, 100, 7], [], [199, 0], [64], [63, 65]], made)
    expected = postings.plain_best_sums(made, buckets, weights, num, hidden)
    monkeypatch.setattr(postings, "BLOCK_ITEMS", block)
    monkeypatch.setattr(postings, "BLOCK_SUMS", 2 * 200)
    monkeypatch.setattr(postings, "KEYS_KEPT", 1)
    assert_equal(postings.best_sums(made, buckets, weights, num, hidden), expected)
    assert_equal(postings.plain_best_sums(made, buckets, weights, num, hidden), expected)


@pytest.mark.parametrize("order", ["ascending", "descending", "equal"])
def test_sums_in_the_worst_order(order: str) -> None:
    """Each item better than all before it, or none."""
    num_items = 5000
    codes = torch.arange(num_items)[:, None]
    made = postings.sort_by_bucket(codes, num_items)
    weights = {"ascending": codes[:, 0] / 4, "descending": -codes[:, 0] / 4, "equal": torch.zeros(num_items)}[order]
    arguments = made, codes.T[None], weights[None, None], 10
    assert_equal(postings.best_sums(*arguments), postings.plain_best_sums(*arguments))


def test_two_threads_give_the_answer_of_one(two_threads: None) -> None:
    codes, buckets, weights = random_case(3, 30, 4, 9, 0.5, 0)
    made = postings.sort_by_bucket(codes, 9)
    assert_equal(postings.best_sums(made, buckets, weights, 9), postings.plain_best_sums(made, buckets, weights, 9))


def test_rows_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, buckets, weights = random_case(3, 30, 4, 9, 0.5, 1)
    expected = postings.best_sums(postings.sort_by_bucket(codes, 9), buckets, weights, 9)
    monkeypatch.setattr(postings, "MOST_NARROW_ITEMS", 29)
    made = postings.sort_by_bucket(codes, 9)
    assert made.rows.dtype == torch.int64
    assert_equal(postings.best_sums(made, buckets, weights, 9), expected)


def test_too_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "MOST_ITEMS", 29)
    with pytest.raises(ValueError, match="an inverted index must have at most 29 items, got 30: use more shards"):
        postings.sort_by_bucket(torch.zeros(30, 1, dtype=torch.int64), 1)


def assert_same(found: TopK, expected: TopK) -> None:
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.item_rows, expected.item_rows)


@given(st.integers(0, 4), st.integers(1, 40), st.floats(0, 1), st.integers(0, 99))
def test_top_entries_equal_the_rule(num_lines: int, num_entries: int, share: float, seed: int) -> None:
    """With many equal entries."""
    values = torch.randn(num_lines, num_entries, generator=torch.Generator().manual_seed(seed)).round(decimals=1)
    num = max(round(share * num_entries), 1)
    assert_same(postings.top_entries(values, num), select(values, num))


@pytest.mark.parametrize("num", [1, 31, 32, 33, 100, 2047, 2600])
@pytest.mark.parametrize("kind", ["any", "equal", "ascending", "few", "tiny"])
def test_top_entries_of_long_lines(kind: str, num: int, two_threads: None) -> None:
    """Of which most groups are passed over."""
    values = torch.randn(5, 2600, generator=torch.Generator().manual_seed(0))
    values = {
        "any": values,
        "equal": torch.ones(5, 2600),
        "ascending": torch.arange(2600.0).expand(5, -1),
        "few": values.round(),
        "tiny": values * 1e-42,
    }[kind]
    assert_same(postings.top_entries(values, num), select(values, num))


def test_zeros_of_both_signs_are_equal() -> None:
    values = torch.tensor([[-0.0, 0.0, -0.0, -1.0]])
    assert postings.top_entries(values, 3).item_rows.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("largest", [1e-45, 1.0, 3e38])
def test_sums_of_any_size(largest: float) -> None:
    codes = torch.arange(4)[:, None]
    weights = torch.tensor([[[-largest, 0.0, largest, -0.0]]])
    found = postings.best_sums(postings.sort_by_bucket(codes, 4), codes.T[None], weights, 4).top_k
    assert found.item_rows.tolist() == [[2, 1, 3, 0]]
    assert found.scores.tolist() == weights[0, :, found.item_rows[0]].tolist()


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, buckets, weights = random_case(3, 30, 4, 9, 0.5, 2)
    expected = postings.best_sums(postings.sort_by_bucket(codes, 9), buckets, weights, 9)
    monkeypatch.setattr(compiled, "loops", lambda: None)
    assert_equal(postings.best_sums(postings.sort_by_bucket(codes, 9), buckets, weights, 9), expected)
    assert postings.top_entries(weights[0], 1).k == 1


def test_a_machine_without_numba_searches() -> None:
    """In a process of its own, in which it cannot be imported."""
    code = """
import sys
sys.modules["numba"] = None
import torch
from rails_ray.search.indexes.inverted import InvertedIndex
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.methods.look_up import Inverted, FullLookUp
from rails_ray.modules.similarities.states import Codes, Tables
from rails_ray.search.spec import SearchSpec
items = Codes(torch.tensor([[0, 1], [1, 0]]))
query = Tables(torch.eye(2)[None], torch.ones(1))
for retriever in (FullLookUp(items, LookupIndex(items.codes)), Inverted(items, InvertedIndex(items.codes, 2), 2, 2)):
    assert retriever.search(query, SearchSpec(1)).item_rows.tolist() == [[0]]
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr


def test_what_can_be_compiled_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests cannot tell, as both versions give the same."""
    for name in ("plain_sort_by_bucket", "plain_best_sums", "select"):
        monkeypatch.setattr(postings, name, None)
    codes, buckets, weights = random_case(2, 9, 3, 4, 0.5, 0)
    made = postings.sort_by_bucket(codes, 4)
    postings.best_sums(made, buckets, weights, 2)
    postings.top_entries(weights.flatten(end_dim=1), 1)
    monkeypatch.setattr(lookup_scan, "plain_scores", None)
    lookup_scan.scores(torch.ones(2, 3, 4), codes)


@pytest.mark.long
def test_what_is_compiled_is_kept_where_a_folder_is_named(tmp_path: Path) -> None:
    code = """
import torch
from rails_ray.kernels import lookup_scan
lookup_scan.scores(torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.int32))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=True)
    assert list(tmp_path.rglob("*look_up*"))
    assert not list((root / "rails_ray" / "kernels").rglob("*.nb[ic]"))  # and nowhere else


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(50, (3000, 4), generator=generator)
    tables = torch.randn(3, 4, 50, generator=generator)
    top = postings.top_entries(tables.flatten(end_dim=1), 7)
    top_on_gpu = postings.top_entries(tables.flatten(end_dim=1).cuda(), 7)
    assert torch.equal(top_on_gpu.item_rows.cpu(), top.item_rows)
    buckets, weights = top.item_rows.view(3, 4, 7), top.scores.view(3, 4, 7)
    made, on_gpu = postings.sort_by_bucket(codes, 50), postings.sort_by_bucket(codes.cuda(), 50)
    assert torch.equal(on_gpu.rows.cpu(), made.rows)
    assert torch.equal(on_gpu.starts.cpu(), made.starts)
    hidden = hidden_rows([[1, 2], [], [5]], made)
    found = postings.best_sums(on_gpu, buckets.cuda(), weights.cuda(), 100, hidden)
    expected = postings.best_sums(made, buckets, weights, 100, hidden)
    assert torch.equal(found.top_k.scores.cpu(), expected.top_k.scores)
    assert torch.equal(found.top_k.item_rows.cpu(), expected.top_k.item_rows)
    assert torch.equal(found.num_touched.cpu(), expected.num_touched)
