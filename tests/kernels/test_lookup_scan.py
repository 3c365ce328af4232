from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.scores
from rails_ray.kernels import compiled, lookup_scan

INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(lookup_scan, "loops_for", lambda *tensors: None)
    return request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def random_case(b: int, x: int, m: int, num_entries: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables and codes."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(b, m, num_entries, generator=generator)
    return tables, torch.randint(num_entries, (x, m), generator=generator)


a_shape = st.tuples(
    *(
        st.integers(0, 4) | st.sampled_from([8, 31, 33, 70]),
        st.integers(0, 30),
        st.integers(0, 4),
        st.integers(1, 9),
        st.integers(0, 99),
    )
)


@given(a_shape, st.sampled_from(INTEGERS))
def test_both_ways_equal_the_equation(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    tables, codes = random_case(*shape)
    expected = [[oracles.scores.look_up(own, code) for code in codes.tolist()] for own in tables.double().tolist()]
    expected = torch.tensor(expected, dtype=torch.float64).reshape(len(tables), len(codes)).float()
    codes = codes.to(dtype)
    assert torch.equal(lookup_scan.plain_scores(tables, codes), expected)
    assert torch.equal(lookup_scan.scores(tables, codes), expected)
    assert torch.equal(lookup_scan.gathered_scores(tables, codes, torch.float32), expected)


@given(a_shape, st.integers(0, 7))
def test_candidates_score_as_in_the_corpus(shape: tuple[int, int, int, int, int], num_candidates: int) -> None:
    tables, codes = random_case(*shape)
    num_candidates = num_candidates if len(codes) else 0
    rows = torch.randint(max(len(codes), 1), (len(tables), num_candidates))
    own = codes[rows.flatten()].view(*rows.shape, codes.shape[1])
    expected = lookup_scan.scores(tables, codes).gather(1, rows)
    assert torch.equal(lookup_scan.scores(tables, own), expected)
    assert torch.equal(lookup_scan.gathered_candidate_scores(tables, own, torch.float32), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tables_of_any_dtype_are_taken_as_float32(way: str, dtype: torch.dtype) -> None:
    tables, codes = random_case(3, 20, 4, 5, 0)
    tables = tables.to(dtype)
    assert torch.equal(lookup_scan.scores(tables, codes), lookup_scan.scores(tables.float(), codes))
    assert lookup_scan.scores(tables, codes).dtype == torch.float32


def test_parts_add_up_in_float64(way: str) -> None:
    """Each part of the sum by itself, in either order."""
    tables, codes = random_case(3, 500, 8, 50, 1)
    for cut in (0, 3, 8):
        parts = [
            lookup_scan.scores(tables[:, own], codes[:, own], torch.float64) for own in (slice(cut), slice(cut, None))
        ]
        assert parts[0].dtype == torch.float64
        assert torch.allclose((parts[1] + parts[0]).float(), lookup_scan.scores(tables, codes), rtol=2**-23, atol=0)


def test_a_score_does_not_depend_on_what_stands_beside_it(way: str, two_threads: None) -> None:
    tables, codes = random_case(5, 333, 7, 40, 2)
    whole = lookup_scan.scores(tables, codes)
    order = torch.randperm(333)
    assert torch.equal(lookup_scan.scores(tables, codes[order]), whole[:, order])
    assert torch.equal(lookup_scan.scores(tables[2:3], codes[100:200]), whole[2:3, 100:200])


def test_blocks_of_the_version_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, codes = random_case(3, 50, 4, 9, 3)
    whole = lookup_scan.scores(tables, codes)
    monkeypatch.setattr(lookup_scan, "BLOCK_SUMS", 3 * 7)
    assert torch.equal(lookup_scan.gathered_scores(tables, codes, torch.float32), whole)


def test_rounding_happens_once(way: str) -> None:
    """In float32 the small entries would be lost."""
    tables = torch.tensor([[[2.0**24], [1.0], [1.0], [-(2.0**24)]]])
    assert lookup_scan.scores(tables, torch.zeros(1, 4, dtype=torch.int64)).tolist() == [[2.0]]


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "loops", lambda: None)
    tables, codes = random_case(2, 9, 3, 4, 4)
    assert torch.equal(lookup_scan.scores(tables, codes), lookup_scan.plain_scores(tables, codes))


def test_a_failing_thread_fails_the_call(two_threads: None) -> None:
    def work(first: int, end: int) -> None:
        if first:
            raise RuntimeError(f"lines {first} to {end}")

    with pytest.raises(RuntimeError, match="lines 2 to 5"):
        compiled.in_threads(work, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    tables, codes = random_case(4, 1000, 8, 256, 5)
    codes = codes.to(torch.uint8)
    assert torch.equal(lookup_scan.scores(tables.cuda(), codes.cuda()).cpu(), lookup_scan.scores(tables, codes))
    own = codes[torch.randint(1000, (4, 30))]
    assert torch.equal(lookup_scan.scores(tables.cuda(), own.cuda()).cpu(), lookup_scan.scores(tables, own))
