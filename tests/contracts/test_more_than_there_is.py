"""Asking for more than there is gives what there is: every kind of items, under every index, by every method, in one
shard and in several, as a request without search parameters asks for it."""

from collections.abc import Sequence

import numpy as np
import pytest

from rails_ray.cutoffs.policies import TopKCutoff
from rails_ray.schema.responses import Coverage, QueryResult
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Exclusions
from rails_ray.search.sharded import of_corpus
from rails_ray.search.spec import SearchSpec
from rails_ray.serving.answers import results_of
from rails_ray.serving.shard_messages import ShardRequest, ShardResponse
from support.indexed import CUTS, NAMES, NUM_ITEMS, NUM_QUERIES, SOME, Corpus, Question, corpus
from support.retrievers import Named, any_method, case

EVERY = list(range(NUM_ITEMS))
ALL_BUT_A_FEW = [row for row in EVERY if row % 23]
EXCLUDED = {
    "all but a few or all": [ALL_BUT_A_FEW, EVERY] * (NUM_QUERIES // 2),
    "by one query of several": [[], EVERY, [], ALL_BUT_A_FEW, [], [3]],
}


def answers(of: Corpus, method: str, k: int, num_shards: int, excluded: Sequence[Sequence[int]]) -> list[QueryResult]:
    """What a request for k items is answered."""
    limit = min(k, NUM_ITEMS)
    request = ShardRequest(method, SearchParams.of_request({}, limit), limit)
    question = Question(limit, None, 0, excluded, request.params, num_shards)
    responses = []
    for first, shard in of.shards[num_shards]:
        spec = question.spec(first, len(shard))
        found = of_corpus(shard.search(of.query, spec, method, request.params), first)
        ids = [rows[:num] for rows, num in zip(found.item_rows.tolist(), found.num_found().tolist(), strict=True)]
        num_searched = spec.num_left(len(of.query), len(shard)).numpy()
        responses.append(ShardResponse(found, ids, None, num_searched))
    cutoff = TopKCutoff(k, min_items=0, max_items=limit)
    coverage = Coverage(
        shards_answered=num_shards, num_shards=num_shards, items_searched=NUM_ITEMS, num_items=NUM_ITEMS
    )
    known = [None] * len(of.query)
    return list(results_of(responses, request, cutoff, np.ones(len(of.query)), coverage, known))


of_any_kind = pytest.mark.parametrize(
    ("kind", "index"),
    [pytest.param(*name, id=" ".join(name), marks=() if name[1] in SOME else pytest.mark.long) for name in NAMES],
)


@of_any_kind
@pytest.mark.parametrize(("excluded", "num_shards"), [*zip(EXCLUDED.values(), CUTS, strict=True)], ids=EXCLUDED)
def test_it_gives_what_there_is(kind: str, index: str, excluded: Sequence[Sequence[int]], num_shards: int) -> None:
    of = corpus(kind, index)
    for method in of.methods:
        for result, out in zip(answers(of, method, 10 * NUM_ITEMS, num_shards, excluded), excluded, strict=True):
            assert sorted(result.items) == sorted({*EVERY} - {*out}), method
            assert (result.num_kept, result.is_short, result.is_truncated) == (len(result.items), False, False)
            assert result.certificate.is_exact, method


@any_method
@pytest.mark.parametrize(("num_items", "k"), [(1, 1000), (3, 4)])
def test_of_one_or_three_items(named: Named, num_items: int, k: int) -> None:
    searcher, query, scores = case(named, num_items=num_items)
    params = SearchParams.of_request({}, k)
    found = searcher.search(query, SearchSpec(k), named[1], params)
    assert found.num_found().tolist() == [num_items] * len(scores)
    masked = searcher.search(query, SearchSpec(k, mask=Exclusions.of([[0], [], [*range(num_items)]])), named[1], params)
    assert masked.num_found().tolist() == [num_items - 1, num_items, 0]
    assert masked.scores[1, :num_items].tolist() == found.scores[1, :num_items].tolist()
