"""Every kind of items under every kind of index, cut into shards, and what an oracle says of their answers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import oracles.ranking
from rails_ray.modules.similarities.bm25 import Bm25
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, ItemState, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.candidates import AVERAGE, SURROGATE, TOGETHER, component_name, vectors_of
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.searcher import ByCodes, ByComponents, Searcher
from rails_ray.search.sharded import merge, of_corpus
from rails_ray.search.spec import SearchResult, SearchSpec
from support.examples import random_states, sharp_mixture, small_mixture
from support.faiss_indexes import KINDS
from support.of_codes import NUM_BUCKETS, look_ups, random_codes
from support.of_quantized import random_quantized
from support.of_terms import random_terms, sums
from support.searchers import first_numbers, with_surrogate

NUM_QUERIES, NUM_ITEMS, NUM_LISTS, TOLERANCE = 6, 90, 6, 2e-5
CUTS = {1: (NUM_ITEMS,), 3: (40, 7, 43)}
VECTORS = (
    "dot product",
    "long dot product",
    "short dot product",
    "flat mixture",
    "sharp mixture",
    "short mixture",
    "surrogate",
)
LENGTHS = {"long dot product": (0.2, 3), "short dot product": (0.05, 1), "short mixture": (0.05, 1)}  # of items
NAMES = (
    *((kind, index) for kind in VECTORS for index in ("no index", *KINDS)),
    *((kind, "codes") for kind in ("quantized", "beside vectors", "without FAISS", "buckets", "terms")),
)
NAMES = (*NAMES, ("dot product", "component"))  # an index of the only component beside none of the average
SOME = ("component", "no index", "flat sq8", "ivf fp32", "hnsw fp16", "codes")


def each(few: int, many: int) -> pytest.MarkDecorator:
    """Every kind and index with `many` questions to each method, and some of them with `few`, which take no time."""
    quick = [pytest.param(*name, few, id=" ".join(name)) for name in NAMES if name[1] in SOME]
    slow = [pytest.param(*name, many, id=f"{' '.join(name)}, many", marks=pytest.mark.long) for name in NAMES]
    return pytest.mark.parametrize(("kind", "index", "num"), [*quick, *slow])


@dataclass(frozen=True)
class Corpus:
    """
    shards: by their number, each shard with its first row.
    scores: of all items for each query, as the stored state has them.
    """

    shards: dict[int, list[tuple[int, Searcher[Any]]]]
    query: AnyQuery
    scores: list[list[float]]

    @property
    def methods(self) -> tuple[str, ...]:
        return self.shards[1][0][1].methods


@cache
def corpus(kind: str, index: str, num_queries: int = NUM_QUERIES) -> Corpus:
    query, items, scores, searchable_of = _made(kind, index, num_queries)
    shards: dict[int, list[tuple[int, Searcher[Any]]]] = {}
    for num, sizes in CUTS.items():
        starts = [sum(sizes[:number]) for number in range(num)]
        own = [(first, take(items, slice(first, first + size))) for first, size in zip(starts, sizes, strict=True)]
        shards[num] = [(first, searchable_of(part)) for first, part in own]
    return Corpus(shards, query, scores)


def _made(kind: str, index: str, num_queries: int) -> tuple[Any, Any, list[list[float]], Callable[[Any], Any]]:
    query: Any
    items: Any
    if kind == "buckets":
        query, items = random_codes(num_queries, NUM_ITEMS, 0)
        return query, items, look_ups(query, items), lambda own: ByCodes(LookUp(NUM_BUCKETS), own)
    if kind == "terms":
        query, items = random_terms(num_queries, NUM_ITEMS, 0)
        return query, items, sums(query, items), lambda own: ByTerms(Bm25(), own)
    if index == "codes":
        mixture, has_vectors = small_mixture(), kind == "beside vectors"
        made = random_quantized(num_queries, NUM_ITEMS, 0, mixture, is_exact=False, has_vectors=has_vectors)
        similarity, query, items, scored = made

        def by_codes(own: AnyItems) -> Any:
            with patch("rails_ray.search.methods.quantized.has_faiss", lambda: kind != "without FAISS"):
                return ByQuantized(similarity, own)

        return query, items, mixture(query, scored).scores.tolist(), by_codes
    similarity, pairs = {
        "dot product": (DotProduct(DotProductConfig()), (1, 1)),
        "long dot product": (DotProduct(DotProductConfig(), has_bounded_vectors=False), (1, 1)),
        "short dot product": (DotProduct(DotProductConfig()), (1, 1)),
        "sharp mixture": (sharp_mixture(), (2, 3)),
    }.get(kind, (small_mixture(), (2, 3)))
    query, items = random_states(num_queries, NUM_ITEMS, p_q=pairs[0], p_x=pairs[1], width=8)
    if kind in LENGTHS:
        lengths = torch.linspace(*LENGTHS[kind], NUM_ITEMS)[torch.randperm(NUM_ITEMS, generator=torch.manual_seed(1))]
        items = ItemState(items.components * lengths[:, None, None], items.gate, items.average * lengths[:, None])
    surrogate = first_numbers if kind == "surrogate" else None
    items = items if surrogate is None else with_surrogate(items)
    names = [AVERAGE, TOGETHER, *map(component_name, range(pairs[1])), *([] if surrogate is None else [SURROGATE])]
    if index == "component":
        names, index = [component_name(0)], "ivf fp32"
    fitted = {} if index == "no index" else {name: _fitted(KINDS[index], vectors_of(items, name)) for name in names}

    def by_components(own: ItemState) -> Any:
        indexes = {name: FaissIndex.read(*build(data, [vectors_of(own, name)])) for name, data in fitted.items()}
        return ByComponents(similarity, own, indexes, surrogate)

    return query, items, similarity(query, items).scores.tolist(), by_components


def _fitted(config: IndexConfig, vectors: Tensor) -> bytes:
    return fit(config, vectors, len(vectors), seed=0)


@dataclass(frozen=True)
class Question:
    """A search of a corpus in so many shards; `excluded` has rows of the whole corpus."""

    k: int
    threshold: Tensor | None
    at_least: int
    excluded: Sequence[Sequence[int]]
    params: SearchParams
    num_shards: int

    def spec(self, first: int = 0, size: int = NUM_ITEMS) -> SearchSpec:
        own = [[row - first for row in rows if first <= row < first + size] for rows in self.excluded]
        return SearchSpec(self.k, self.threshold, self.at_least, Exclusions.of(own) if any(own) else None)

    def of_queries(self, lines: Sequence[int]) -> "Question":
        threshold = None if self.threshold is None else self.threshold[list(lines)]
        excluded = [self.excluded[line] for line in lines]
        return Question(self.k, threshold, self.at_least, excluded, self.params, self.num_shards)


def a_question(scores: list[list[float]], method: str, number: int) -> Question:
    """The same for a number. Thresholds lie between two scores, so that rounding does not decide."""
    draw = torch.Generator().manual_seed(number)

    def one_of(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (1,), generator=draw))]

    k = one_of(1, 3, 10, 30, NUM_ITEMS, NUM_ITEMS + 5)
    threshold, at_least = None, 0
    if one_of(True, True, False):
        places = [one_of(0, 2, 15, 40, NUM_ITEMS) for _ in scores]
        threshold = torch.tensor([_between(own, place) for own, place in zip(scores, places, strict=True)])
        at_least = min(one_of(0, 0, 1, 3, NUM_ITEMS), k)
    excluded = [torch.randperm(NUM_ITEMS, generator=draw)[: one_of(0, 0, 3, 20)].tolist() for _ in scores]
    excluded = excluded if one_of(True, False) else [[] for _ in scores]
    least = k if threshold is None else 1  # so short that a search by k is not refused
    params = SearchParams(
        num_candidates=one_of(least, max(least, 5), 10 * NUM_ITEMS),
        num_per_embedding=one_of(least, max(least, 4), 10 * NUM_ITEMS),
        num_rounds=one_of(2, 3),
        num_probes=one_of(1, NUM_BUCKETS // 2, NUM_BUCKETS),
        nprobe=one_of(1, 3) if method == "ivf_lookup" else one_of(1, 2, NUM_LISTS),
        ef_search=one_of(1, 8, 200),
    )
    return Question(k, threshold, at_least, excluded, params, one_of(*CUTS))


def questions(
    kind: str, index: str, num: int, num_queries: int = NUM_QUERIES
) -> Iterator[tuple[Corpus, str, Question]]:
    """So many to each method of an index, which are not those to another one."""
    of = corpus(kind, index, num_queries)
    for place, method in enumerate(of.methods):
        first = num * (place + 20 * NAMES.index((kind, index)))
        for number in range(first, first + num):
            yield of, method, a_question(of.scores, method, number)


def _between(scores: list[float], place: int) -> float:
    """A number that `place` scores reach."""
    ends = [scores and max(scores) + 1, *sorted(scores, reverse=True), min(scores) - 1]
    high, low = ends[place], ends[place + 1]
    return (high + low) / 2


def search(
    of: Corpus, method: str, asked: Question, query: AnyQuery | None = None
) -> tuple[list[SearchResult], SearchResult]:
    """What each shard finds, and what all of them do."""
    query = of.query if query is None else query
    parts = []
    for first, shard in of.shards[asked.num_shards]:
        found = shard.search(query, asked.spec(first, len(shard)), method, asked.params)
        parts.append(of_corpus(found, first))
    spec = asked.spec()
    return parts, merge(parts, spec, spec.num_left(len(query), NUM_ITEMS))


def assert_claims(found: SearchResult, asked: Question, scores: list[list[float]]) -> None:
    """All that is said of each query is true."""
    spec = asked.spec()
    gaps = found.gap(spec).tolist()
    for line, own in enumerate(scores):
        out = set(asked.excluded[line])
        num, gap = int(found.num_found()[line]), gaps[line]
        rows = found.item_rows[line, :num].tolist()
        listed = found.scores[line, :num].tolist()
        assert len(set(rows)) == num <= asked.k
        assert not out & set(rows)
        assert _near(listed, [own[row] for row in rows])
        assert listed == sorted(listed, reverse=True)
        threshold = -math.inf if asked.threshold is None else float(asked.threshold[line])
        assert all(score >= threshold for score in listed[spec.least :])
        assert num <= found.num_scored[line] <= NUM_ITEMS
        assert (found.reasons[line] is not None) == (found.bound[line] == math.inf)
        expected, is_truncated = oracles.ranking.top_k(own, asked.k, out), NUM_ITEMS - len(out) > asked.k
        if asked.threshold is not None:
            expected, is_truncated = oracles.ranking.items_above(own, threshold, asked.k, asked.at_least, out)
        if gap == 0:
            assert _near(listed, [own[row] for row in expected])
            assert bool(found.is_truncated[line]) == is_truncated
        if found.is_truncated[line]:
            assert is_truncated
        is_full = num >= min(spec.least, NUM_ITEMS - len(out))
        assert is_full or gap == math.inf
        missing = max((own[row] for row in range(NUM_ITEMS) if row not in out and row not in rows), default=-math.inf)
        last = listed[-1] if listed else math.inf
        reached = last if asked.threshold is None or found.is_truncated[line] else min(threshold, last)
        assert missing <= reached + gap + TOLERANCE


def _near(scores: Sequence[float], expected: Sequence[float]) -> bool:
    return len(scores) == len(expected) and all(
        abs(one - other) <= TOLERANCE for one, other in zip(scores, expected, strict=True)
    )
