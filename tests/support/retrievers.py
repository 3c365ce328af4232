"""Every retrieval method with small items of its kind, their scores by an oracle, and what was asked of it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.modules.similarities.bm25 import Bm25, TermWeights
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.mol import MixtureOfLogits
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, QueryState, Tables, map_tensors, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Exclusions, Mask
from rails_ray.search.methods import Retriever
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.searcher import METHODS, ByCodes, Searcher
from rails_ray.search.spec import SearchResult, SearchSpec
from support.examples import random_states, small_mixture
from support.of_codes import FEW_PROBES, NUM_BUCKETS, look_ups, random_codes
from support.of_quantized import NUM_LISTS, random_quantized
from support.of_terms import random_terms, sums
from support.searchers import make_searchable, with_surrogate

INFINITY = float("inf")
NUM_QUERIES, NUM_ITEMS = 3, 40
OF_COMPONENTS = [("components", method) for method in METHODS]
OF_MIXTURES = [
    ("components", "gated"),
    ("quantized", "gated"),
    ("with surrogate", "gated"),
    ("beside vectors", "gated"),
]
OF_CODES = [("codes", method) for method in ByCodes.methods]
OF_TERMS = [("terms", method) for method in ByTerms.methods]
OF_QUANTIZED = [("quantized", method) for method in (*METHODS, "lookup", "ivf_lookup")]
WITH_SURROGATE = [("with surrogate", "surrogate")]
BESIDE_VECTORS = [("beside vectors", method) for method in ("brute_force", "lookup", "ivf_lookup")]
EXACT = [
    *((kind, "brute_force") for kind in ("components", "codes", "quantized", "beside vectors")),
    ("components", "two_pass"),
    ("quantized", "two_pass"),
    *OF_TERMS,
]
MAY_FIND_FEWER = [("codes", "inverted"), ("quantized", "ivf_lookup"), ("beside vectors", "ivf_lookup")]
Named = tuple[str, str]
a_shape = st.tuples(st.integers(0, 3), st.integers(1, 25), st.integers(0, 50))  # B, X, seed


def each(names: list[Named]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("named", names, ids=[" ".join(name) for name in names])


any_method = each([*OF_COMPONENTS, *OF_MIXTURES, *OF_CODES, *OF_TERMS, *OF_QUANTIZED, *BESIDE_VECTORS, *WITH_SURROGATE])
of_a_mixture = each([*OF_COMPONENTS, ("components", "gated")])
every_method = each(OF_COMPONENTS)


def widths_of(num: int, num_items: int) -> SearchParams:
    """Lists that hold so many items; all buckets are posted, and all lists scanned, where these are all items, else a
    few."""
    probes, lists = (NUM_BUCKETS, NUM_LISTS) if num >= num_items else (FEW_PROBES, 1)
    return SearchParams(num_candidates=num, num_per_embedding=num, num_probes=probes, nprobe=lists)


def case(
    named: Named, num_queries: int = NUM_QUERIES, num_items: int = NUM_ITEMS, seed: int = 0
) -> tuple[Searcher[Any], AnyQuery, list[list[float]]]:
    """Items of components, of codes or of terms, queries, and their scores of all items."""
    if named[0] == "codes":
        query, items = random_codes(num_queries, num_items, seed)
        return ByCodes(LookUp(NUM_BUCKETS), items), query, look_ups(query, items)
    if named[0] == "terms":
        query, items = random_terms(num_queries, num_items, seed)
        return ByTerms(Bm25(), items), query, sums(query, items)
    if named[0] in ("quantized", "beside vectors"):
        mixture, has_vectors = small_mixture(), named[0] == "beside vectors"
        similarity, query, items, scored = random_quantized(
            num_queries, num_items, seed, mixture, is_exact=False, has_vectors=has_vectors
        )
        return ByQuantized(similarity, items), query, mixture(query, scored).scores.tolist()
    query, items = random_states(num_queries, num_items, seed=seed)
    if named[0] == "with surrogate":
        items = with_surrogate(items)
    scores = small_mixture()(query, items).scores.tolist()
    return make_searchable(small_mixture(), items), query, scores


def retriever_of(named: Named, num: int = NUM_ITEMS, seed: int = 0) -> tuple[Retriever, AnyQuery, list[list[float]]]:
    searcher, query, scores = case(named, seed=seed)
    return searcher.retriever(named[1], widths_of(num, len(searcher))), query, scores


def exact_mixture() -> MixtureOfLogits:
    """One whose gates are all equal, so that its scores have no rounding but that of the division by P."""
    mixture = small_mixture()
    for parameter in mixture.parameters():
        parameter.data.zero_()
    return mixture


def exact_case(
    named: Named, num_queries: int, num_items: int, seed: int
) -> tuple[Callable[[AnyItems], Searcher[Any]], AnyItems, AnyQuery, list[list[float]]]:
    """What makes items searchable, items of which many are equal, queries, and their exact scores of all items."""
    if named[0] == "codes":
        query, items = random_codes(num_queries, num_items, seed)
        query = Tables(query.tables.mul(2).round().div(2), query.temperature)
        items = take(items, torch.arange(num_items) // 2)
        return lambda own: ByCodes(LookUp(NUM_BUCKETS), own), items, query, look_ups(query, items)
    if named[0] == "terms":
        query, items = random_terms(num_queries, num_items, seed)
        items = take(TermWeights(items.terms, items.weights.mul(2).round().div(2)), torch.arange(num_items) // 2)
        return lambda own: ByTerms(Bm25(), own), items, query, sums(query, items)
    if named[0] in ("quantized", "beside vectors"):
        mixture, has_vectors = exact_mixture(), named[0] == "beside vectors"
        similarity, query, items, scored = random_quantized(
            num_queries, num_items, seed, mixture, is_exact=True, has_vectors=has_vectors
        )
        return lambda own: ByQuantized(similarity, own), items, query, mixture.scores(query, scored).tolist()
    query, items = random_states(num_queries, num_items, seed=seed)
    query = QueryState(query.components.round(), torch.zeros_like(query.gate), query.temperature)
    if named[0] == "with surrogate":
        items = with_surrogate(items)
    items = map_tensors(lambda tensor: tensor.mul(2).round().div(2), take(items, torch.arange(num_items) // 2))
    scores = exact_mixture().scores(query, items).tolist()
    return lambda own: make_searchable(exact_mixture(), own), items, query, scores


Drawn = tuple[torch.Tensor | None, int, int, list[list[int]]]


def drawn(data: st.DataObject, scores: list[list[float]]) -> Drawn:
    """No thresholds, or such as often equal a score; a k that is often above X; at_least; exclusions."""
    num_items = len(scores[0]) if scores else 1
    k = data.draw(st.integers(1, num_items + 3))
    row = st.integers(0, num_items - 1)
    excluded = [data.draw(st.lists(row, max_size=9)) for _ in scores]
    if data.draw(st.booleans()):
        return None, k, 0, excluded
    threshold = [data.draw(st.sampled_from([-INFINITY, 0.0, INFINITY, *own])) for own in scores]
    return torch.tensor(threshold), k, data.draw(st.integers(0, k)), excluded


def wanted_of(drawn: Drawn, mask: Mask | None = None) -> SearchSpec:
    threshold, k, at_least, excluded = drawn
    return SearchSpec(k, threshold, at_least, Exclusions.of(excluded) if mask is None else mask)


def expected_of(own: list[float], spec: SearchSpec, line: int, out: Sequence[int]) -> tuple[list[int], bool]:
    """Rows, and whether one was left out because there were more than k."""
    if spec.threshold is None:
        return oracles.ranking.top_k(own, spec.k, out), len(own) - len(set(out)) > spec.k
    return oracles.ranking.items_above(own, spec.threshold[line].item(), spec.k, spec.at_least, out)


def assert_oracle(
    found: SearchResult, scores: list[list[float]], spec: SearchSpec, excluded: Sequence[Sequence[int]] | None = None
) -> None:
    for line, own in enumerate(scores):
        rows, is_truncated = expected_of(own, spec, line, excluded[line] if excluded else [])
        more = found.k - len(rows)
        assert found.item_rows[line].tolist() == rows + [0] * more
        assert found.scores[line].tolist() == pytest.approx([own[row] for row in rows] + [-INFINITY] * more, abs=1e-6)
        assert found.is_truncated[line] == is_truncated


def assert_same(found: SearchResult, expected: SearchResult) -> None:
    for name in ("scores", "item_rows", "bound", "is_truncated", "num_scored"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.reasons == expected.reasons


WANTED = {"k best": SearchSpec(3), "threshold": SearchSpec(5, torch.zeros(NUM_QUERIES))}
either = pytest.mark.parametrize("spec", WANTED.values(), ids=WANTED)
