"""How far two versions answer the same queries otherwise.

    churn@k = 1 - mean over q of |A_k(q) & B_k(q)| / max(|A_k(q)|, |B_k(q)|),    0 for q without any item

A_k(q), B_k(q): the k best items of either version by brute force, without a cut-off or a heavy ranker.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rails_ray.counting import advance
from rails_ray.errors import NotFoundError, UnsupportedError
from rails_ray.families.data import read_data
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.schema.requests import CutoffInput
from rails_ray.schema.search_params import SearchParams
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.serving.measuring import (
    BATCH,
    SampledQueries,
    encoded,
    item_vectors,
    known_queries,
    of_vectors,
    spread,
)
from rails_ray.serving.search_defaults import USUAL
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.comparing import ItemsDiff
from rails_ray.storage.ids import ItemIds

KS = (10, 100)
COVERAGE = 0.9
CUTOFF = CutoffInput(coverage=COVERAGE)  # that is compared
MOST_QUERIES = 1000  # whose mean churn has a standard error of at most 0.016
SPLIT = "valid"

ScoredList = list[tuple[ItemId, float]]


@dataclass(frozen=True)
class AnswersDiff:
    """
    queries: number and kind of the queries, in words; None if there are none that both versions can answer.
    reason: why they are not validation queries of the second version's data, in a sentence; None if they are.
    churn: churn@k by k; None without queries.
    churn_of_common: churn@k where both versions search only the items that both have; None without such items or
        queries, and if it was not measured.
    mean_score_change, largest_score_change: |s_B - s_A| of the items that are in both lists of the largest k; None if
        there are none.
    mean_kept: items of a list, in either version, that the calibrated cut-off of `COVERAGE` keeps, on average; None for
        a version that is not calibrated for it.
    """

    queries: str | None
    reason: str | None
    churn: Mapping[int, float] | None = None
    churn_of_common: Mapping[int, float] | None = None
    mean_score_change: float | None = None
    largest_score_change: float | None = None
    mean_kept: tuple[float | None, float | None] = (None, None)


class VersionAnswers(NamedTuple):
    """
    lists: the best items of each query with their scores, best first.
    of_common: lists of a search of only the items that the other version has too; None if there are none, or nobody
        wants them.
    mean_kept: as in `AnswersDiff`.
    """

    lists: list[ScoredList]
    of_common: list[ScoredList] | None
    mean_kept: float | None


def compare_answers(
    first: Version, second: Version, ks: Sequence[int] = KS, items: ItemsDiff | None = None, most: int = MOST_QUERIES
) -> AnswersDiff:
    """Search two versions for the same queries: validation queries of the second version's data, or else stored vectors
    of the first version's items, if both take such vectors as queries.

    Args:
        ks: lengths of lists.
        items: what they have in common; None to leave `churn_of_common` out.
        most: how many queries at most.

    Raises:
        DamagedError: if a file of a version differs from its manifest.
        UnsupportedError: if a version has an index and FAISS is not installed.
        ValueError: if a k is below 1, or a version's config names code that is not allowed.
    """
    if min(ks) < 1:
        raise ValueError(f"k must be at least 1, got {min(ks)}")
    for version in (first, second):
        if not version.described.num_live:
            return AnswersDiff(None, f"version {version.name} must have items to be searched, got none")
    samples, reason = _samples(first, second, most)
    if samples is None:
        return AnswersDiff(None, reason)
    former = _answers(first, samples[0], max(ks), None if items is None else items.removed)
    latter = _answers(second, samples[1], max(ks), None if items is None else items.added)
    changes = [
        abs(score - scores[item])
        for line, scores in zip(latter.lists, map(dict, former.lists), strict=True)
        for item, score in line
        if item in scores
    ]
    common = None if former.of_common is None or latter.of_common is None else (former.of_common, latter.of_common)
    return AnswersDiff(
        queries=str(samples[0]),
        reason=reason,
        churn={k: churn(former.lists, latter.lists, k) for k in ks},
        churn_of_common=None if common is None else {k: churn(*common, k) for k in ks},
        mean_score_change=float(np.mean(changes)) if changes else None,
        largest_score_change=max(changes, default=None),
        mean_kept=(former.mean_kept, latter.mean_kept),
    )


def churn(former: Sequence[ScoredList], latter: Sequence[ScoredList], k: int) -> float:
    """churn@k of the lists of one query or more."""
    shares = []
    for one, other in zip(former, latter, strict=True):
        ids, others = {item for item, _ in one[:k]}, {item for item, _ in other[:k]}
        shares.append(len(ids & others) / max(len(ids), len(others), 1) if ids or others else 1.0)
    return 1 - float(np.mean(shares))


def _samples(first: Version, second: Version, most: int) -> tuple[list[SampledQueries] | None, str | None]:
    """Queries, as either version reads them, and why they are not queries of the data."""
    both = (first, second)
    models = [with_kept_texts(version.model, version.storage) for version in both]  # errors here are not the data's
    try:
        first.check_reads_like(second)
        data = read_data(second.config, second.storage, [SPLIT])
        queries = [
            data.queries[SPLIT].in_corpus(_rows(version, data.item_ids), version.described.num_live) for version in both
        ]
        known = set(known_queries(queries[0], models[0])) & set(known_queries(queries[1], models[1]))
        if not known:
            raise ValueError(f"split {SPLIT} must have a query that is blank to neither version's model, got none")
        numbers = spread(sorted(known), most)
        excluded = data.queries[SPLIT].excluded
        exclude = [[]] * len(numbers) if excluded is None else [*map(data.item_ids.take, excluded.take(numbers))]
        kind = f"queries of split {SPLIT}"
        return [
            SampledQueries(encoded(model, own, numbers), exclude, kind)
            for model, own in zip(models, queries, strict=True)
        ], None
    except (NotFoundError, ValueError) as error:
        reason = str(error)
    vectors = item_vectors(first, most)
    found = [of_vectors(version, vectors, f"items of version {first.name} as queries") for version in both]
    samples = [sample for sample in found if sample is not None]
    if len(samples) == len(both):
        return samples, reason
    return None, f"{reason}; nor are items of version {first.name} vectors that both versions take as queries"


def _rows(version: Version, item_ids: ItemIds) -> NDArray[np.int64]:
    """The row of each item of a data set in a version, or -1 where it lacks the item."""
    stored = version.item_ids()
    return np.concatenate([np.empty(0, np.int64), *(stored.rows(block) for block in item_ids.blocks())])


def _answers(version: Version, sample: SampledQueries, k: int, lacking: ItemIds | None) -> VersionAnswers:
    """Search a version for all queries.

    Args:
        lacking: ids of its items that the other version lacks; None if nobody wants the lists without them.
    """
    shards = [ShardSearch(version, shard) for shard in range(version.num_shards)]
    least, cutoffs = version.family.cutoff_support.least_score, Cutoffs.read(version)
    lowest = None if least is None else np.full(len(sample), least)
    lists, mean_kept = _searched(shards, sample, k, lowest), None
    with suppress(UnsupportedError, ValueError):  # no calibration, or of too few queries
        most = cutoffs.limit(CUTOFF, None)
        floor = cutoffs.policy(CUTOFF, most).floor(sample.state.temperature.numpy())
        mean_kept = float(np.mean([len(line) for line in _searched(shards, sample, most, floor)]))
    if lacking is None or not len(lacking):
        return VersionAnswers(lists, None if lacking is None else lists, mean_kept)
    live = [shard.held.live_rows() for shard in shards]
    rows = [own[lacking.rows(shard.item_ids.take(own)) < 0] for shard, own in zip(shards, live, strict=True)]
    common = [shard.of_rows(own) for shard, own in zip(shards, rows, strict=True) if len(own)]
    return VersionAnswers(lists, _searched(common, sample, k, lowest) if common else None, mean_kept)


def _searched(
    shards: Sequence[ShardSearch], sample: SampledQueries, k: int, floor: NDArray[np.float64] | None
) -> list[ScoredList]:
    """The k best items of each query by brute force, but none below its floor."""
    params, found = SearchParams.of_request({"method": USUAL}, k), list[ScoredList]()
    for first in range(0, len(sample), BATCH):
        rows = range(first, min(first + BATCH, len(sample)))
        query, exclude = sample.some(rows)
        threshold = None if floor is None else floor[rows.start : rows.stop].astype(np.float32)
        request = ShardRequest(USUAL, params, k, threshold)
        answers = [shard.search(query, request, exclude) for shard in shards]
        scored = [(answer.item_ids, answer.found.scores.tolist()) for answer in answers]
        for number in range(len(rows)):  # of equal scores the lower row comes first, as the sort is stable
            pairs = [pair for ids, scores in scored for pair in zip(ids[number], scores[number], strict=False)]
            found.append(sorted(pairs, key=lambda pair: -pair[1])[:k])
        advance(rows.stop, len(sample), "queries searched")
    return found
