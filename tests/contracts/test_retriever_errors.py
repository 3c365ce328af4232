"""What every retrieval method refuses, each in a sentence."""

from dataclasses import replace

import pytest
import torch

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Exclusions
from rails_ray.search.searcher import Searcher
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, small_mixture
from support.retrievers import NUM_ITEMS, NUM_QUERIES, Named, any_method, case, either, of_a_mixture, retriever_of
from support.searchers import make_searchable


@pytest.mark.parametrize("kind", ["components", "codes", "terms"])
def test_unknown_method(kind: str) -> None:
    searcher, query, _ = case((kind, "magic"))
    assert isinstance(searcher, Searcher)
    with pytest.raises(ValueError, match=r"method must be one of brute_force.* for items that .*, got 'magic'"):
        searcher.search(query, SearchSpec(1), "magic")


@any_method
def test_a_threshold_for_each_query(named: Named) -> None:
    retriever, query, _ = retriever_of(named)
    with pytest.raises(ValueError, match="threshold must be one number for each of 3 queries, got 2"):
        retriever.search(query, SearchSpec(5, torch.zeros(2)))


@of_a_mixture
@either
def test_a_query_that_is_not_finite(named: Named, spec: SearchSpec) -> None:
    retriever, query, _ = retriever_of(named)
    query.components[1, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="query components must be finite, got NaN or infinity in query 1"):
        retriever.search(query, spec)
    query.components[1] = 0
    query.gate[2, 0] = torch.inf
    with pytest.raises(ValueError, match="query gate must be finite, got NaN or infinity in query 2"):
        retriever.search(query, spec)


@of_a_mixture
@either
def test_components_of_another_shape(named: Named, spec: SearchSpec) -> None:
    retriever, _, _ = retriever_of(named)
    with pytest.raises(ValueError, match="query components must have the width of the index, 4, got 5"):
        retriever.search(random_states(NUM_QUERIES, 1, width=5)[0], spec)
    with pytest.raises(ValueError, match="query must have 2 components, got 1"):
        retriever.search(random_states(NUM_QUERIES, 1, p_q=1)[0], spec)


def test_items_that_the_similarity_cannot_compare() -> None:
    with pytest.raises(ValueError, match="items must have the 3 components that the similarity compares, got 2"):
        make_searchable(small_mixture(), random_states(1, NUM_ITEMS, p_x=2)[1])
    without = replace(random_states(1, NUM_ITEMS)[1], gate=None)
    with pytest.raises(ValueError, match="must have the column 'gate' of its items, got an index without it"):
        make_searchable(small_mixture(), without)


@of_a_mixture
def test_items_without_the_average(named: Named) -> None:
    query, items = random_states(NUM_QUERIES, NUM_ITEMS)
    searcher = make_searchable(small_mixture(), replace(items, average=None))
    if named[1] in ("average", "combined"):
        with pytest.raises(ValueError, match="need the column 'average' of the index, got one without it"):
            searcher.retriever(named[1])
    else:
        assert searcher.search(query, SearchSpec(3), named[1]).num_found().tolist() == [3] * NUM_QUERIES


@pytest.mark.parametrize(
    ("method", "k", "message"),
    [
        ("average", 6, "num_candidates must be at least 6, the k of the search, got 5"),
        ("gated", 6, "num_candidates must be at least 6, the k of the search, got 5"),
        ("per_embedding", 13, "num_per_embedding must be at least 3 for k 13, with 6 pairs of components"),
        ("combined", 18, "num_per_embedding must be at least 3 for k 18, with 6 pairs of components and 5 items by"),
    ],
)
def test_widths_below_k(method: str, k: int, message: str) -> None:
    searcher, query, _ = case(("components", method))
    retriever = searcher.retriever(method, SearchParams(num_candidates=5, num_per_embedding=2))
    with pytest.raises(ValueError, match=message):
        retriever.search(query, SearchSpec(k))
    assert retriever.search(query, SearchSpec(k - 1)).k == k - 1


def test_widths_need_not_be_more_than_the_items_there_are() -> None:
    searcher, query, _ = case(("components", "average"))
    found = searcher.search(query, SearchSpec(NUM_ITEMS + 5), "average", SearchParams(num_candidates=NUM_ITEMS))
    assert found.num_found().tolist() == [NUM_ITEMS] * NUM_QUERIES


def test_a_refusal_depends_on_no_query_of_the_batch() -> None:
    searcher, query, _ = case(("components", "average"))
    left = Exclusions.of([list(range(5, NUM_ITEMS))] * NUM_QUERIES)
    with pytest.raises(ValueError, match="num_candidates must be at least 6, the k of the search, got 5"):
        searcher.search(query, SearchSpec(6, mask=left), "average", SearchParams(num_candidates=5))


def test_a_round_that_fits_nothing() -> None:
    with pytest.raises(ValueError, match="num_rounds must be at least 2, got 1"):
        SearchParams(num_rounds=1)


@pytest.mark.parametrize("name", ["num_candidates", "num_per_embedding"])
def test_a_first_stage_takes_at_least_one_item(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        SearchParams(**{name: 0})
