"""What every index must hold: it finds what an oracle finds in its scores, however the corpus is cut into blocks.

A new index is one line in `EXACT` or, if it may miss a better item, in `INEXACT`. One that is not exact is held to its
own list: what it finds is scored as it should be and comes in order, and its bound is true.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles.ranking
import oracles.scores
import oracles.vectors
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.search.indexes import Index, flat, lookup
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.fast_codes import FastCodeIndex
from rails_ray.search.indexes.flat import FlatConfig, FlatIndex
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec

WIDTH, NUM_ENTRIES, NUM_CODEWORDS = 3, 5, 7


class Member(NamedTuple):
    """
    items: so many random items, of which some are equal.
    queries: likewise.
    score: of a query and an item, as lists.
    module: whose BLOCK_SCORES says how many scores a block has; None for an index without blocks.
    """

    make: Callable[[Tensor], Index]
    items: Callable[[int, torch.Generator], Tensor]
    queries: Callable[[int, torch.Generator], Tensor]
    score: Callable[[list, list], float]
    module: object = None


def halves(*shape: int, generator: torch.Generator) -> Tensor:
    """Numbers whose products and sums float32 holds exactly, so that many scores are equal."""
    return torch.randint(-4, 5, shape, generator=generator) / 2


def some_vectors(num: int, generator: torch.Generator) -> Tensor:
    return halves(num, WIDTH, generator=generator)


def faiss_index(config: IndexConfig) -> Callable[[Tensor], Index]:
    def make(items: Tensor) -> Index:
        sample = items if len(items) else torch.zeros(5, WIDTH)
        return FaissIndex.read(*build(fit(config, sample, len(items), seed=0), [items]))

    return make


CODEWORDS = halves(NUM_CODEWORDS, 1, WIDTH, generator=torch.Generator().manual_seed(5)).permute(2, 0, 1)  # [M, L, 1]


def some_of_codewords(num: int, generator: torch.Generator) -> Tensor:
    """What random codes stand for."""
    codes = torch.randint(NUM_CODEWORDS, (num, WIDTH), generator=generator, dtype=torch.uint8)
    return ProductQuantizer.of(CODEWORDS).decode(codes)


def fast_codes(items: Tensor) -> Index:
    quantizer = ProductQuantizer.of(CODEWORDS)
    return FastCodeIndex(quantizer, quantizer.encode(items))


EXACT = {
    "flat": Member(FlatIndex, some_vectors, some_vectors, oracles.vectors.dot, flat),
    "look-up": Member(
        LookupIndex,
        lambda num, generator: torch.randint(NUM_ENTRIES, (num, WIDTH), generator=generator),
        lambda num, generator: halves(num, WIDTH, NUM_ENTRIES, generator=generator),
        oracles.scores.look_up,
        lookup,
    ),
    "FAISS's flat": Member(faiss_index(FlatConfig()), some_vectors, some_vectors, oracles.vectors.dot),
}
INEXACT = {
    "FAISS's flat, 16 bits": Member(
        faiss_index(FlatConfig(storage="fp16")), some_vectors, some_vectors, oracles.vectors.dot
    ),
    "ivf": Member(faiss_index(IvfConfig(nlist=5)), some_vectors, some_vectors, oracles.vectors.dot),
    "hnsw": Member(faiss_index(HnswConfig(M=4)), some_vectors, some_vectors, oracles.vectors.dot),
    "fast scan of codes": Member(fast_codes, some_of_codewords, some_vectors, oracles.vectors.dot),
}
MEMBERS = {**EXACT, **INEXACT}
exact_members = pytest.mark.parametrize("member", EXACT.values(), ids=EXACT)
inexact_members = pytest.mark.parametrize("member", INEXACT.values(), ids=INEXACT)
members = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)


def drawn(member: Member, num_queries: int, num_items: int, seed: int) -> tuple[Index, Tensor, list[list[float]]]:
    """An index, queries, and the scores of all items."""
    generator = torch.Generator().manual_seed(seed)
    items, queries = member.items(num_items, generator), member.queries(num_queries, generator)
    return (
        member.make(items),
        queries,
        [[member.score(query, item) for item in items.tolist()] for query in queries.tolist()],
    )


@exact_members
@given(st.integers(0, 3), st.integers(1, 30), st.integers(0, 99), st.sampled_from([1, 21, 2**20]), st.data())
def test_it_finds_what_the_oracle_finds(
    member: Member, num_queries: int, num_items: int, seed: int, block: int, data: st.DataObject
) -> None:
    """Ties, exclusions, thresholds that equal a score, and more items wanted than there are."""
    index, queries, scores = drawn(member, num_queries, num_items, seed)
    row = st.integers(0, num_items - 1)
    excluded = [data.draw(st.lists(row, max_size=4, unique=True)) for _ in scores]
    k = data.draw(st.integers(1, num_items + 2))
    at_least = data.draw(st.integers(0, k))
    threshold = [data.draw(st.sampled_from([-torch.inf, torch.inf, *own])) for own in scores]
    mask = Exclusions.of(excluded)
    with pytest.MonkeyPatch.context() as patched:
        if member.module is not None:
            patched.setattr(member.module, "BLOCK_SCORES", block)
        best = index.search(queries, SearchSpec(k, mask=mask))
        above = index.search(queries, SearchSpec(k, torch.tensor(threshold), at_least, mask))
    for line, (own, out) in enumerate(zip(scores, excluded, strict=True)):
        rows = oracles.ranking.top_k(own, k, out)
        assert best.item_rows[line, : best.num_found()[line]].tolist() == rows
        assert best.scores[line, : len(rows)].tolist() == [own[row] for row in rows]
        assert best.is_truncated[line] == (num_items - len(out) > k)
        rows, is_truncated = oracles.ranking.items_above(own, threshold[line], k, at_least, out)
        assert above.item_rows[line, : above.num_found()[line]].tolist() == rows
        assert above.is_truncated[line] == is_truncated
    assert index.is_exact
    for found in (best, above):
        assert found.bound.tolist() == [-torch.inf] * num_queries
        assert found.num_scored.tolist() == [num_items] * num_queries


@inexact_members
@given(st.integers(0, 3), st.integers(5, 60), st.integers(0, 99), st.data())
def test_what_it_finds_is_in_order_and_its_bound_is_true(
    member: Member, num_queries: int, num_items: int, seed: int, data: st.DataObject
) -> None:
    index, queries, scores = drawn(member, num_queries, num_items, seed)
    excluded = [data.draw(st.lists(st.integers(0, num_items - 1), max_size=4, unique=True)) for _ in scores]
    k = data.draw(st.integers(1, num_items + 2))
    at_least = data.draw(st.integers(0, k))
    threshold = [data.draw(st.sampled_from([-torch.inf, torch.inf, *own])) for own in scores]
    mask = Exclusions.of(excluded)
    best = index.search(queries, SearchSpec(k, mask=mask))
    above = index.search(queries, SearchSpec(k, torch.tensor(threshold), at_least, mask))
    assert not index.is_exact
    for line, (own, out) in enumerate(zip(scores, excluded, strict=True)):
        for found, reach, least in ((best, torch.inf, k), (above, threshold[line], at_least)):
            num = int(found.num_found()[line])
            rows = found.item_rows[line].tolist()
            own_rows = rows[:num]
            assert found.scores[line, :num].tolist() == [own[row] for row in own_rows]
            assert own_rows == oracles.ranking.top_k(
                [own[row] if row in own_rows else -1e9 for row in range(num_items)], num
            )
            assert not {*own_rows} & {*out}
            assert not any(rows[num:])
            assert num <= k
            assert all(own[row] >= reach for row in own_rows[least:])
            missing = {*range(num_items)} - {*out, *own_rows}
            if found.bound[line] > -torch.inf:
                assert all(own[row] <= found.bound[line] for row in missing)
            else:
                assert own_rows == oracles.ranking.items_above(own, reach, k, least, out)[0]
        assert best.is_truncated[line] == (best.num_found()[line] == k < num_items - len(out))
        if above.is_truncated[line]:
            assert above.num_found()[line] == k
            assert above.scores[line, k - 1] >= threshold[line]


@members
def test_it_is_an_index(member: Member) -> None:
    assert isinstance(drawn(member, 1, 7, 0)[0], Index)


@members
@pytest.mark.parametrize("spec", [SearchSpec(1), SearchSpec(1, torch.zeros(2), at_least=1)], ids=["best", "above"])
def test_an_empty_index_has_nothing(member: Member, spec: SearchSpec) -> None:
    index, queries, _ = drawn(member, 2, 0, 0)
    assert index.search(queries, spec).item_rows.shape == (2, 0)


@members
def test_a_threshold_for_each_query(member: Member) -> None:
    index, queries, _ = drawn(member, 1, 7, 0)
    with pytest.raises(ValueError, match="threshold must be one number for each of 1 queries, got 2"):
        index.search(queries, SearchSpec(4, torch.zeros(2)))


@members
def test_queries_do_not_meet(member: Member) -> None:
    """Each query finds alone what it finds in company."""
    index, queries, _ = drawn(member, 4, 40, 1)
    together = index.search(queries, SearchSpec(7))
    for line in range(4):
        assert torch.equal(index.search(queries[line : line + 1], SearchSpec(7)).item_rows[0], together.item_rows[line])
