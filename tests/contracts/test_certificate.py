"""What an answer says of itself is true: index kind x storage x method x what is wanted x lists that are too short, in
one shard and in several, compared with brute force."""

import math

import numpy as np
import torch

from rails_ray.cutoffs.policies import ScoreCutoff, TopKCutoff
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.schema.responses import Coverage
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from rails_ray.serving.answers import results_of
from rails_ray.serving.shard_messages import ShardRequest, ShardResponse
from support.faiss_indexes import opened
from support.indexed import NUM_ITEMS, TOLERANCE, assert_claims, each, questions, search

ALL = Coverage(shards_answered=1, num_shards=1, items_searched=NUM_ITEMS, num_items=NUM_ITEMS)


@each(few=1, many=6)
def test_what_is_said_of_a_list_is_true(kind: str, index: str, num: int) -> None:
    for of, method, asked in questions(kind, index, num):
        parts, merged = search(of, method, asked)
        assert_claims(merged, asked, of.scores)
        if asked.num_shards == 1:
            assert_claims(parts[0], asked, of.scores)
        if of.shards[1][0][1].retriever(method, asked.params).is_exact:
            assert merged.gap(asked.spec()).tolist() == [0] * len(of.scores)


@each(few=1, many=6)
def test_what_an_answer_says_of_a_list_is_true(kind: str, index: str, num: int) -> None:
    """The certificate of a response, also of a list that ends above the threshold that the shards were asked for."""
    for of, method, asked in questions(kind, index, max(num // 4, 1)):
        parts, merged = search(of, method, asked)
        shards = [(first, len(shard)) for first, shard in of.shards[asked.num_shards]]
        num_left = [asked.spec(*own).num_left(len(of.scores), own[1]).numpy() for own in shards]
        ids = [[[*map(str, rows)] for rows in part.item_rows.tolist()] for part in parts]
        answers = [ShardResponse(*own[:2], None, own[2]) for own in zip(parts, ids, num_left, strict=True)]
        for line, scores in enumerate(of.scores):
            threshold, cutoff = None, TopKCutoff(3, max_items=asked.k)
            if asked.threshold is not None:
                threshold = asked.threshold[[line]].numpy()
                higher = float(threshold[0]) + 0.1 * (line % 2)
                cutoff = ScoreCutoff(higher, min_items=asked.at_least, max_items=asked.k)
            of_line = [_of_line(answer, line) for answer in answers]
            told = ShardRequest(method, asked.params, asked.k, threshold, asked.at_least)
            for lists_all in [False] if asked.threshold is not None else [False, True]:
                [result] = results_of(of_line, told, cutoff, np.ones(1), ALL, [None], lists_all=lists_all)
                missing = {*range(NUM_ITEMS)} - {*asked.excluded[line]} - {*map(int, result.items)}
                best = max((scores[row] for row in missing), default=-math.inf)
                reached = min(result.scores, default=math.inf)
                if result.threshold is not None and not result.is_truncated:
                    reached = min(reached, result.threshold)
                certificate = result.certificate
                assert certificate.is_exact == (certificate.gap == 0)
                assert (certificate.gap is None) == (certificate.reason is not None)
                assert certificate.gap is None or best <= reached + certificate.gap + TOLERANCE
                assert result.num_scored == merged.num_scored[line]
                assert result.num_searched == NUM_ITEMS - len(asked.excluded[line])
                assert len(result.items) == (merged.num_found()[line] if lists_all else result.num_kept)


def _of_line(answer: ShardResponse, line: int) -> ShardResponse:
    found = answer.found.of_queries(torch.tensor([line]))
    return ShardResponse(found, [answer.item_ids[line]], None, answer.num_searched[[line]])


def test_lists_that_are_too_short_for_a_threshold_do_not_pass_for_exact() -> None:
    """All lists of the index are probed, so that it knows its own k best, and says nothing of what else reaches the
    threshold."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(400, 8, generator=generator), dim=1)
    items = ItemState(vectors[:, None], None, vectors)
    query = QueryState(vectors[:1, None], None, torch.ones(1))
    index = {"average": opened(IvfConfig(nlist=4), vectors)}
    searcher = ByComponents(DotProduct(DotProductConfig()), items, index)
    spec = SearchSpec(400, torch.zeros(1))
    found = searcher.search(query, spec, "per_embedding", SearchParams(num_per_embedding=5, nprobe=4))
    assert found.num_found().tolist() == [5]
    assert found.gap(spec).item() >= float((vectors[1:] @ vectors[0]).sort(descending=True).values[4])
    for k in (1, 5):  # what the list is long enough for is exact
        best = searcher.search(query, SearchSpec(k), "per_embedding", SearchParams(num_per_embedding=5, nprobe=4))
        assert best.gap(SearchSpec(k)).tolist() == [0]
    high = SearchSpec(400, torch.full((1,), 0.99))
    assert (
        searcher.search(query, high, "per_embedding", SearchParams(num_per_embedding=5, nprobe=4)).gap(high).item() == 0
    )
