"""What the router decides, with made-up shards: faults are easier to inject here than on a cluster."""

import math

import numpy as np
import pytest
import torch

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.policies import ScoreCutoff, TopKCutoff
from rails_ray.errors import BusyError, DamagedError, UnavailableError
from rails_ray.on_ray.failures import own_cause, plain_errors
from rails_ray.schema.responses import CertificateResult, Coverage
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchResult
from rails_ray.serving.answers import coverage_of, explained, results_of
from rails_ray.serving.shard_messages import ShardExplanation, ShardRequest, ShardResponse


def shard_answer(
    scores: list[float],
    rows: list[int],
    num_searched: int = 10,
    bound: float | None = -math.inf,
    is_truncated: bool = False,
) -> ShardResponse:
    found = SearchResult(
        scores=torch.tensor([scores]),
        item_rows=torch.tensor([rows], dtype=torch.int64),
        bound=torch.tensor([math.inf if bound is None else bound]),
        is_truncated=torch.tensor([is_truncated]),
        num_scored=torch.tensor([7]),
        reasons=["nobody looked" if bound is None else None],
    )
    item_ids, titles = [[f"item-{row}" for row in rows]], [[f"Title {row}" for row in rows]]
    return ShardResponse(found, item_ids, titles, np.array([num_searched]))


def asked(k: int, threshold: float | None = None, at_least: int = 0) -> ShardRequest:
    thresholds = None if threshold is None else np.array([threshold], dtype=np.float32)
    return ShardRequest("brute_force", SearchParams(), k, thresholds, at_least)


ALL = Coverage(shards_answered=2, num_shards=2, items_searched=20, num_items=20)
TAU_Q, KNOWN = np.array([0.1]), [None]
LEFT, RIGHT = shard_answer([0.9, 0.2], [3, 0]), shard_answer([0.5, 0.2], [12, 11])


def test_the_merged_list_is_cut_and_named() -> None:
    (result,) = results_of([LEFT, RIGHT], asked(3, 0.3), ScoreCutoff(0.3), TAU_Q, ALL, KNOWN)
    assert result.items == ["item-3", "item-12"]
    assert result.titles == ["Title 3", "Title 12"]
    assert (result.num_searched, result.num_scored) == (20, 14)
    assert result.scores == pytest.approx([0.9, 0.5])
    assert (result.threshold, result.num_kept, result.is_truncated) == (0.3, 2, False)


def test_lists_of_shards_may_be_empty_or_longer_than_k() -> None:
    nothing = shard_answer([], [])
    (result,) = results_of([LEFT, nothing], asked(3, 0.1), ScoreCutoff(0.1), TAU_Q, ALL, KNOWN)
    assert result.items == ["item-3", "item-0"]
    (result,) = results_of([nothing, nothing], asked(3, 0.1), ScoreCutoff(0.1), TAU_Q, ALL, KNOWN)
    assert (result.items, result.num_kept, result.is_truncated) == ([], 0, False)
    (result,) = results_of([LEFT, RIGHT], asked(3, 0.1), ScoreCutoff(0.1), TAU_Q, ALL, KNOWN)
    assert (result.items, result.is_truncated) == (["item-3", "item-12", "item-0"], True)
    left_out = shard_answer([0.5], [12], is_truncated=True)
    (result,) = results_of([LEFT, left_out], asked(3, 0.1), ScoreCutoff(0.1), TAU_Q, ALL, KNOWN)
    assert result.is_truncated


def test_the_least_number_of_items_is_kept_below_the_threshold() -> None:
    (result,) = results_of([LEFT, RIGHT], asked(4, 0.95, 3), ScoreCutoff(0.95, min_items=3), TAU_Q, ALL, KNOWN)
    assert (result.items, result.threshold) == (["item-3", "item-12", "item-0"], 0.95)
    assert result.certificate == CertificateResult(is_exact=True, gap=0, reason=None)
    bounded = [shard_answer([0.9, 0.2], [3, 0], bound=0.5), RIGHT]  # something better than .2 may have been missed
    (result,) = results_of(bounded, asked(4, 0.95, 3), ScoreCutoff(0.95, min_items=3), TAU_Q, ALL, KNOWN)
    assert result.certificate.gap == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("bounds", "cutoff", "expected"),
    [
        ((-math.inf, 0.2), TopKCutoff(3), (True, 0.0)),  # the third score is .2
        ((-math.inf, 0.5), TopKCutoff(3), (False, 0.3)),
        ((0.6, 0.5), TopKCutoff(3), (False, 0.4)),
        ((-math.inf, 0.5), TopKCutoff(2), (True, 0.0)),  # the second is .5
        ((-math.inf, 0.5), ScoreCutoff(0.55), (True, 0.0)),  # nothing that is missing reaches the threshold
        ((-math.inf, 0.5), ScoreCutoff(0.4), (False, 0.1)),
        ((-math.inf, 0.5), ScoreCutoff(-1.0), (False, 0.3)),  # k ends the list
        ((-math.inf, None), TopKCutoff(3), (False, None)),
    ],
)
def test_certificates_over_shards(
    bounds: tuple[float | None, float | None], cutoff: Cutoff, expected: tuple[bool, float | None]
) -> None:
    answers = [shard_answer([0.9, 0.2], [3, 0], bound=bounds[0]), shard_answer([0.5, 0.2], [12, 11], bound=bounds[1])]
    score = cutoff.score if isinstance(cutoff, ScoreCutoff) else None
    (result,) = results_of(answers, asked(3, score), cutoff, TAU_Q, ALL, KNOWN)
    certificate = result.certificate
    assert (certificate.is_exact, certificate.gap) == (expected[0], pytest.approx(expected[1], abs=1e-6))
    assert certificate.reason == ("nobody looked" if expected[1] is None else None)


def test_nothing_is_certified_where_shards_are_missing() -> None:
    some = Coverage(shards_answered=1, num_shards=2, items_searched=10, num_items=20)
    (result,) = results_of([LEFT], asked(2), TopKCutoff(2), TAU_Q, some, KNOWN)
    assert result.certificate == CertificateResult(is_exact=False, gap=None, reason="only 10 of 20 items were searched")


def test_a_short_list_says_so_unless_shards_are_missing() -> None:
    short = shard_answer([0.9], [3])
    some = Coverage(shards_answered=1, num_shards=2, items_searched=10, num_items=20)
    for coverage, reason in ((ALL, "the search found fewer items than were asked for"), (some, "only 10 of 20 items")):
        (result,) = results_of([short], asked(2), TopKCutoff(2), TAU_Q, coverage, KNOWN)
        assert (result.is_short, result.certificate.is_exact, result.certificate.gap) == (True, False, None)
        assert reason in str(result.certificate.reason)


def test_an_item_that_no_shard_explains() -> None:
    known = ShardExplanation(["a"], None, [0.5], [[[0.5]]], [[[1.0]]])
    assert [item.item for item in explained("v", [known, known], ["a"]).items] == ["a"]
    with pytest.raises(ValueError, match=r"items\[1\] must be an item of the index, got 'b'"):
        explained("v", [known], ["a", "b"])
    with pytest.raises(UnavailableError, match=r"all shards must answer to find items\[0\], got fewer: try again"):
        explained("v", [known, TimeoutError()], ["b"])


def test_coverage_counts_the_shards_that_answered() -> None:
    coverage = coverage_of([LEFT, TimeoutError()], [10, 30], min_coverage=0.25)
    assert (coverage.shards_answered, coverage.items_searched, coverage.num_items) == (1, 10, 40)


@pytest.mark.parametrize(
    ("answers", "min_coverage", "wanted", "got"),
    [
        ([LEFT, TimeoutError()], 0.26, "26% of 40", "10 from 1 of 2 shards"),
        ([TimeoutError(), TimeoutError()], 0.0, "0% of 40", "0 from 0 of 2 shards"),
    ],
)
def test_too_little_coverage(answers: list, min_coverage: float, wanted: str, got: str) -> None:
    message = rf"^{wanted} items must be searched \(min_coverage\), got {got}: try again or ask for less$"
    with pytest.raises(UnavailableError, match=message):
        coverage_of(answers, [10, 30], min_coverage)


def test_a_shard_without_a_place_is_one_to_ask_again_later() -> None:
    busy = BusyError("shard 1 must have a place for one more call, got a full queue: try again")
    with pytest.raises(BusyError, match="got 10 from 1 of 2 shards, as the queue of another is full: try again"):
        coverage_of([LEFT, busy], [10, 30], 0.26)
    with pytest.raises(UnavailableError) as raised:
        coverage_of([LEFT, TimeoutError()], [10, 30], 0.26)
    assert not isinstance(raised.value, BusyError)
    assert coverage_of([LEFT, busy], [10, 30], 0.25).shards_answered == 1


def test_a_batch_of_which_each_query_has_a_list_of_its_own_length() -> None:
    """Padded on its way, and merged at once."""
    left, right = (
        SearchResult(
            scores=torch.tensor(scores),
            item_rows=torch.tensor(rows),
            bound=torch.tensor([-math.inf, 0.4]),
            is_truncated=torch.tensor([False, False]),
            num_scored=torch.tensor([7, 8]),
            reasons=[None, None],
        )
        for scores, rows in (
            ([[0.9, 0.2], [0.8, -math.inf]], [[3, 0], [1, 0]]),
            ([[-math.inf, -math.inf], [0.7, 0.6]], [[0, 0], [12, 10]]),
        )
    )
    answers = [
        ShardResponse(left, [["c", "a"], ["b"]], None, np.array([10, 9])),
        ShardResponse(right, [[], ["z", "x"]], None, np.array([10, 10])),
    ]
    ask = ShardRequest("brute_force", SearchParams(), 5, np.array([0.1, 0.65], dtype=np.float32))
    first, second = results_of(answers, ask, ScoreCutoff(0.1), np.array([0.1, 0.1]), ALL, [None, None])
    assert (first.items, first.num_searched, first.num_scored) == (["c", "a"], 20, 14)
    assert (second.items, second.num_searched, second.num_scored) == (["b", "z"], 19, 16)
    assert second.scores == pytest.approx([0.8, 0.7])
    assert (first.certificate.gap, second.certificate.gap) == (0, pytest.approx(0.3))


def test_fewer_items_than_were_asked_for() -> None:
    """They are what there is."""
    some = shard_answer([0.9], [3], num_searched=1)
    (result,) = results_of([some], asked(3), TopKCutoff(3), TAU_Q, ALL, KNOWN)
    assert (result.items, result.is_short, result.certificate.is_exact) == (["item-3"], False, True)
    (result,) = results_of([some], asked(3, 0.1, 2), ScoreCutoff(0.1, min_items=2), TAU_Q, ALL, KNOWN)
    assert (result.items, result.is_short) == (["item-3"], False)


def test_a_list_of_k_tells_where_the_cut_off_would_end_it() -> None:
    answers = [shard_answer([0.9, 0.2], [3, 0]), shard_answer([0.5, 0.1], [12, 11], bound=0.3)]
    for score, num_kept, is_truncated in ((0.4, 2, False), (0.1, 3, True), (0.95, 0, False)):
        cutoff = ScoreCutoff(score, max_items=3)
        (result,) = results_of(answers, asked(3), cutoff, TAU_Q, ALL, KNOWN, lists_all=True)
        assert result.scores == pytest.approx([0.9, 0.5, 0.2])
        assert (result.num_kept, result.is_truncated, result.threshold) == (num_kept, is_truncated, score)
        assert result.certificate.gap == pytest.approx(0.1)  # of the list, not of what is kept


def test_a_failure_of_ray_is_told_as_the_error_beneath_it() -> None:
    outer = RuntimeError("a traceback of another process")
    outer.__cause__ = middle = RuntimeError("another")
    middle.cause = DamagedError("the part must be whole")
    assert own_cause(outer) is middle.cause
    assert own_cause(RuntimeError("nothing of ours")) is None
    with pytest.raises(DamagedError, match="the part must be whole"), plain_errors():
        raise outer
    with pytest.raises(RuntimeError, match="nothing of ours"), plain_errors():
        raise RuntimeError("nothing of ours")
