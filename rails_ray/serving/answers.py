"""Answers of a search: whether enough was searched, and what was found."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.policies import Cut, cut
from rails_ray.item_ids import ItemId
from rails_ray.schema.fields import shortened
from rails_ray.schema.responses import CertificateResult, Coverage, ExplainedItem, ExplainResponse, QueryResult
from rails_ray.search.rounds import unanswered_error
from rails_ray.search.sharded import merge
from rails_ray.search.spec import SearchResult, gap_to, needed
from rails_ray.serving.shard_messages import ShardExplanation, ShardRequest, ShardResponse
from rails_ray.stopwatch import part

Value = TypeVar("Value")
PROVEN = CertificateResult(is_exact=True, gap=0.0, reason=None)
SHORT = CertificateResult(is_exact=False, gap=None, reason="the search found fewer items than were asked for")


def coverage_of(
    answers: Sequence[ShardResponse | BaseException], shard_items: Sequence[int], min_coverage: float
) -> Coverage:
    """Part of the corpus that was searched.

    Raises:
        UnavailableError: if the share that was searched is below `min_coverage`; a `BusyError` if a shard had no place.
    """
    sizes = [size for size, answer in zip(shard_items, answers, strict=True) if isinstance(answer, ShardResponse)]
    coverage = Coverage(
        shards_answered=len(sizes), num_shards=len(answers), items_searched=sum(sizes), num_items=sum(shard_items)
    )
    if not sizes or coverage.items_searched < min_coverage * coverage.num_items:
        message = (
            f"{100 * min_coverage:g}% of {coverage.num_items} items must be searched (min_coverage), got "
            f"{coverage.items_searched} from {len(sizes)} of {len(answers)} shards"
        )
        raise unanswered_error(answers, message, "try again or ask for less")
    return coverage


def results_of(
    answered: Sequence[ShardResponse],
    request: ShardRequest,
    cutoff: Cutoff,
    temperature: NDArray[np.floating],
    coverage: Coverage,
    is_known: Sequence[bool | None],
    *,
    num_excluded: Sequence[int] | None = None,
    is_calibrated: bool | None = None,
    has_temperature: bool = False,
    lists_all: bool = False,
) -> "Results":
    """The merged and cut list of each query.

    Args:
        num_excluded: how many ids each query excludes; None if nobody counted.
        is_calibrated: as `Cutoffs.is_calibrated_under` says.
        has_temperature: whether tau_q is trained, and part of the answer.
        lists_all: whether a list goes on to its k-th item, and only tells where the cut-off ends.
    """
    num_searched = np.sum([answer.num_searched for answer in answered], axis=0)
    num_unknown = _num_unknown([answer.num_excluded for answer in answered], num_excluded, coverage)
    include = request.scope.include
    wanted, parts = request.spec(), [answer.found for answer in answered]
    is_merged = len(parts) == 1 and parts[0].k <= wanted.k
    merged = parts[0] if is_merged else merge(parts, wanted, torch.from_numpy(num_searched))
    scores = merged.scores.numpy()
    num_found = (scores > -np.inf).sum(axis=1)
    is_short = (num_found < np.minimum(wanted.least, num_searched)).tolist()
    with part("cut"):
        done = cut(scores, temperature, cutoff, merged.is_truncated.numpy())
        num_listed = num_found if lists_all else done.num_kept
        gaps = _gaps(merged, num_listed, done, ends_by_number=lists_all).tolist()
    columns: dict[str, Sequence[Any]] = {
        "certificate": [_certificate(*own, coverage) for own in zip(gaps, merged.reasons, is_short, strict=True)],
        "num_kept": done.num_kept.tolist(),
        "threshold": [own if math.isfinite(own) else None for own in done.threshold.tolist()],
        "num_searched": num_searched.tolist(),
        "num_scored": merged.num_scored.tolist(),
        "is_truncated": done.is_truncated.tolist(),
        "is_short": is_short,
        "is_known": is_known,
    }
    if num_unknown is not None:
        columns["num_unknown_excluded"] = num_unknown
    if include is not None:
        num_included = [None if own is None else len(own) for own in include]
        num_unknown = _num_unknown([answer.num_included for answer in answered], num_included, coverage)
        columns["num_unknown_included"] = num_unknown or [None] * len(include)
    if is_calibrated is not None:
        columns["is_calibrated"] = [
            is_calibrated and (include is None or include[number] is None) for number in range(len(num_searched))
        ]
    if has_temperature:
        columns["temperature"] = temperature.tolist()
    return Results(answered, None if is_merged else merged.item_rows.numpy(), scores, num_listed.tolist(), columns)


def _num_unknown(
    num_found: Sequence[NDArray[np.int64] | None], num_named: Sequence[int | None] | None, coverage: Coverage
) -> list[int | None] | None:
    """How many of the ids that each query names no shard holds, None for a query that names none; None if a shard did
    not say.

    Args:
        num_found: how many each shard holds.
        num_named: how many each query names.
    """
    known = [own for own in num_found if own is not None]
    if num_named is None or len(known) < coverage.num_shards:
        return None
    numbers: list[int] = np.sum(known, axis=0).tolist()
    return [None if num is None else num - found for num, found in zip(num_named, numbers, strict=True)]


@dataclass(frozen=True)
class Results:
    """The results of all queries; iterate for each with ids and titles.

    item_rows: the items of each list by their rows [B, n]; None for those of the only shard in their order.
    scores: their scores [B, n].
    num_listed: items of each list.
    columns: the other fields of `QueryResult`, each of all queries.
    """

    answered: Sequence[ShardResponse]
    item_rows: NDArray[np.int64] | None
    scores: NDArray[np.float32]
    num_listed: Sequence[int]
    columns: Mapping[str, Sequence[Any]]

    @property
    def is_exact(self) -> bool:
        return all(own.is_exact for own in self.columns["certificate"])

    @property
    def num_items(self) -> int:
        return sum(self.num_listed)

    def __iter__(self) -> Iterator[QueryResult]:
        scores = self.scores.tolist()
        for number, (num, *others) in enumerate(zip(self.num_listed, *self.columns.values(), strict=True)):
            item_ids, titles, fields = self._named(number, num)
            yield QueryResult(
                items=item_ids,
                titles=titles,
                fields=fields,
                scores=scores[number][:num],
                **dict(zip(self.columns, others, strict=True)),
            )

    def _named(self, number: int, num: int) -> tuple[list[ItemId], list[str] | None, list[dict[str, Any]] | None]:
        """Ids, titles and attributes of a query's list."""
        if self.item_rows is None:
            [only] = self.answered
            titles = None if only.titles is None else only.titles[number][:num]
            return only.item_ids[number][:num], titles, None if only.fields is None else only.fields[number][:num]
        rows = self.item_rows[number, :num].tolist()
        item_ids = _by_row(self.answered, number, [answer.item_ids for answer in self.answered])
        found = [item_ids[row] for row in rows]
        titles = self._of_rows(number, rows, [answer.titles for answer in self.answered if answer.titles is not None])
        fields = self._of_rows(number, rows, [answer.fields for answer in self.answered if answer.fields is not None])
        return found, titles, fields

    def _of_rows(
        self, number: int, rows: Sequence[int], values: Sequence[Sequence[Sequence[Value]]]
    ) -> list[Value] | None:
        """The values of a query's list; None if there are none."""
        if not values:
            return None
        value_of = _by_row(self.answered, number, values)
        return [value_of[row] for row in rows]


def _gaps(
    merged: SearchResult, num_listed: NDArray[np.int64], done: Cut, *, ends_by_number: bool
) -> NDArray[np.float32]:
    """Return the largest amount by which a missing item can score above the end of each list [B].

    Args:
        ends_by_number: whether no threshold ends a list.
    """
    bound = merged.bound.numpy()
    if np.isneginf(bound).all():
        return np.zeros(len(num_listed), np.float32)
    if np.isposinf(bound).all() and num_listed.all():  # as the end of each list is a score
        return np.full(len(num_listed), np.inf, np.float32)
    threshold = torch.from_numpy(done.threshold).float()
    # After a column of inf, place n holds the last score of a list of n.
    last = F.pad(merged.scores, (1, 0), value=torch.inf).gather(1, torch.from_numpy(num_listed)[:, None])[:, 0]
    is_number = torch.from_numpy(done.is_truncated) | threshold.isneginf() | ends_by_number
    return gap_to(merged.bound, needed(last, threshold, is_number)).numpy()


def _certificate(gap: float, reason: str | None, is_short: bool, coverage: Coverage) -> CertificateResult:
    """Return what a kept list proves."""
    if coverage.items_searched < coverage.num_items:
        reason = f"only {coverage.items_searched} of {coverage.num_items} items were searched"
        return CertificateResult(is_exact=False, gap=None, reason=reason)
    if is_short:
        return SHORT
    if gap == 0:
        return PROVEN
    return CertificateResult(is_exact=False, gap=None if reason else gap, reason=reason)


def _by_row(
    answered: Sequence[ShardResponse], number: int, values: Sequence[Sequence[Sequence[Value]]]
) -> dict[int, Value]:
    """The values of all shards for a query, by row. Places without an item come last and are dropped."""
    return {
        row: value
        for answer, of_queries in zip(answered, values, strict=True)
        for row, value in zip(answer.found.item_rows[number].tolist(), of_queries[number], strict=False)
    }


def with_string_ids(results: Iterable[QueryResult]) -> Iterator[QueryResult]:
    """Results whose ids are strings."""
    for result in results:
        yield result.model_copy(update={"items": [str(item_id) for item_id in result.items]})


def explained(
    version: str,
    answers: Sequence[ShardExplanation | BaseException],
    items: Sequence[ItemId],
    *,
    as_strings: bool = False,
) -> ExplainResponse:
    """The explanations of all shards, in the order of `items`.

    Args:
        as_strings: whether the answer writes ids as strings.

    Raises:
        ValueError: if no shard holds an item.
        UnavailableError: if an item may be in a shard that did not answer.
    """
    by_id = dict[str, ExplainedItem]()  # as an integer may be given in digits
    for answer in answers:
        if isinstance(answer, BaseException):
            continue
        for place, item_id in enumerate(answer.items):
            by_id[str(item_id)] = ExplainedItem(
                item=str(item_id) if as_strings else item_id,
                title=None if answer.titles is None else answer.titles[place],
                score=answer.scores[place],
                cosines=answer.cosines[place],
                gates=answer.gates[place],
            )
    for place, item_id in enumerate(items):
        if str(item_id) not in by_id:
            if any(isinstance(answer, BaseException) for answer in answers):
                raise unanswered_error(answers, f"all shards must answer to find items[{place}], got fewer")
            raise ValueError(f"items[{place}] must be an item of the index, got {shortened(item_id)}")
    return ExplainResponse(version=version, items=[by_id[str(item_id)] for item_id in items])
