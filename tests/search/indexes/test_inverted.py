from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.codes
import oracles.ranking
from rails_ray.search.indexes.inverted import InvertedIndex, top_buckets
from rails_ray.search.masks import Exclusions


def random_case(
    b: int = 3, x: int = 200, k: int = 4, r: int = 20, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, InvertedIndex]:
    """Codes, tables and the index of the codes."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(r, (x, k), generator=generator)
    return codes, torch.rand(b, k, r, generator=generator), InvertedIndex(codes, r)


@given(st.integers(0, 3), st.integers(0, 30), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99), st.data())
def test_candidates_of_the_best_buckets(b: int, x: int, k: int, r: int, seed: int, data: st.DataObject) -> None:
    codes, tables, index = random_case(b, x, k, r, seed)
    posted = top_buckets(tables, data.draw(st.integers(1, r)))
    excluded = [data.draw(st.lists(st.integers(0, max(x - 1, 0)), max_size=3)) for _ in range(b)]
    found = index.candidates(posted.buckets, posted.values, 5, Exclusions.of(excluded))
    num_postings = index.num_postings(posted.buckets)
    for line in range(b):
        buckets, values = posted.buckets[line].tolist(), posted.values[line].tolist()
        for own, best in zip(tables[line].tolist(), buckets, strict=True):
            assert best == oracles.ranking.top_k(own, len(best))
        sums = oracles.codes.posted_sums(codes.tolist(), buckets, values, excluded[line])
        best = sorted(sums.values(), reverse=True)[:5]
        scores = found.top_k.scores[line, : len(best)].tolist()
        assert scores == pytest.approx(best, abs=1e-6)
        assert (found.top_k.scores[line, len(best) :] == -torch.inf).all()
        for row, score in zip(found.top_k.item_rows[line].tolist(), scores, strict=False):
            assert sums[row] == pytest.approx(score, abs=1e-6)
        assert found.num_touched[line] == len(sums)
        hits = [own in posted for code in codes.tolist() for own, posted in zip(code, buckets, strict=True)]
        assert num_postings[line] == sum(hits)


def test_permuting_items_permutes_sums() -> None:
    codes, tables, index = random_case()
    posted = top_buckets(tables, 5)
    order = torch.randperm(len(codes))
    there = InvertedIndex(codes[order], 20).candidates(posted.buckets, posted.values, 200).top_k
    here = index.candidates(posted.buckets, posted.values, 200).top_k
    assert torch.equal(there.scores, here.scores)
    for line, num in enumerate(here.num_found().tolist()):
        sums = dict(zip(here.item_rows[line, :num].tolist(), here.scores[line, :num].tolist(), strict=True))
        rows = order[there.item_rows[line, :num]].tolist()
        assert [sums[row] for row in rows] == there.scores[line, :num].tolist()


def test_more_probes_never_touch_fewer_items() -> None:
    _, tables, index = random_case()
    last = torch.zeros(3)
    for num_probes in range(1, 21):
        posted = top_buckets(tables, num_probes)
        num_touched = index.candidates(posted.buckets, posted.values, 1).num_touched
        assert (num_touched >= last).all()
        assert (num_touched <= index.num_postings(posted.buckets)).all()
        last = num_touched
    assert (last == 200).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_codes_and_buckets_of_any_integer_dtype(dtype: torch.dtype) -> None:
    codes, tables, index = random_case()
    posted = top_buckets(tables, 5)
    expected = index.candidates(posted.buckets, posted.values, 9).top_k
    other = InvertedIndex(codes.to(dtype), 20)
    assert torch.equal(other.candidates(posted.buckets.to(dtype), posted.values, 9).top_k.item_rows, expected.item_rows)
    assert torch.equal(other.num_postings(posted.buckets.to(dtype)), index.num_postings(posted.buckets))


def test_many_threads_may_search_at_once() -> None:
    """As those of a server do, each in threads of its own."""
    _, tables, index = random_case(b=8, x=5000)
    posted = top_buckets(tables, 5)
    expected = index.candidates(posted.buckets, posted.values, 50).top_k
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: index.candidates(posted.buckets, posted.values, 50).top_k, range(40)))
    torch.set_num_threads(before)
    assert all(torch.equal(one.item_rows, expected.item_rows) for one in found)
    assert all(torch.equal(one.scores, expected.scores) for one in found)


def test_the_papers_sum_counts_other_chunks_as_nothing() -> None:
    """An item in the best bucket of one chunk goes before one that is nearly as good in both."""
    index = InvertedIndex(torch.tensor([[0, 1], [1, 0]]), 2)
    tables = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])
    posted = top_buckets(tables, 1)
    papers = index.candidates(posted.buckets, posted.values, 2).top_k
    assert papers.item_rows.tolist() == [[0, 1]]
    assert papers.scores[0].tolist() == pytest.approx([0.9, 0.7])  # whose whole scores are 1.0 and 1.5


def test_size() -> None:
    assert random_case()[2].size_bytes == 4 * (200 * 4 + 21 * 8)


@pytest.mark.parametrize("code", [-1, 20])
def test_codes_that_are_no_buckets(code: int) -> None:
    message = "at least 0, got -1" if code < 0 else "below the 20 buckets, got 20"
    with pytest.raises(ValueError, match=f"codes must be {message}"):
        InvertedIndex(torch.tensor([[0, code]]), 20)


def test_what_cannot_be_asked() -> None:
    _, tables, index = random_case()
    posted = top_buckets(tables, 2)
    for num_probes in (0, 21):
        with pytest.raises(
            ValueError, match=f"num_probes must be at least 1 and at most the 20 buckets, got {num_probes}"
        ):
            top_buckets(tables, num_probes)
    with pytest.raises(ValueError, match="num must be at least 1, got 0"):
        index.candidates(posted.buckets, posted.values, 0)
    for bucket in (-1, 20):
        wrong = posted.buckets.clone()
        wrong[1, 2, 0] = bucket
        with pytest.raises(ValueError, match=f"buckets must be at least 0 and below the 20 buckets, got {bucket}"):
            index.candidates(wrong, posted.values, 3)
    with pytest.raises(ValueError, match="buckets must be of all 4 chunks, got 3"):
        index.num_postings(posted.buckets[:, :3])
