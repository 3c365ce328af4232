"""Answers of a search: whether enough was searched, and what was found."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.policies import Cut, cut
from rails_ray.item_ids import ItemId
from rails_ray.schema.fields import shortened
from rails_ray.schema.responses import CertificateResult, Coverage, ExplainedItem, ExplainResponse, QueryResult
from rails_ray.search.rounds import unanswered_error
from rails_ray.search.sharded import merge
from rails_ray.search.spec import SearchResult, gap_to, needed
from rails_ray.serving.shard_search import ShardExplanation, ShardRequest, ShardResponse
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
            f"min_coverage must be reached, {min_coverage:g} of {coverage.num_items} items, got "
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
    has_temperature: bool = False,
    lists_all: bool = False,
) -> "Results":
    """The merged and cut list of each query.

    Args:
        num_excluded: how many ids each query excludes; None if nobody counted.
        has_temperature: whether tau_q is trained, and part of the answer.
        lists_all: whether a list goes on to its k-th item, and only tells where the cut-off ends.
    """
    num_searched = np.sum([answer.num_searched for answer in answered], axis=0)
    num_unknown = _num_unknown(answered, num_excluded, coverage)
    wanted = request.spec()
    merged = merge([answer.found for answer in answered], wanted, torch.from_numpy(num_searched))
    scores, item_rows, num_found = merged.scores.numpy(), merged.item_rows.numpy(), merged.num_found().numpy()
    is_short = num_found < np.minimum(wanted.least, num_searched)
    with part("cut"):
        done = cut(scores, temperature, cutoff, merged.is_truncated.numpy())
        num_listed = num_found if lists_all else done.num_kept
        gaps = _gaps(merged, num_listed, done, ends_by_number=lists_all).tolist()
    num_scored, lists = merged.num_scored.tolist(), []
    for number, num in enumerate(num_listed.tolist()):
        threshold = float(done.threshold[number])
        lists.append(
            _List(
                item_rows=item_rows[number, :num],
                scores=scores[number, :num],
                certificate=_certificate(gaps[number], merged.reasons[number], bool(is_short[number]), coverage),
                others={
                    "num_kept": int(done.num_kept[number]),
                    "threshold": threshold if np.isfinite(threshold) else None,
                    "num_searched": int(num_searched[number]),
                    "num_scored": num_scored[number],
                    "is_truncated": bool(done.is_truncated[number]),
                    "is_short": bool(is_short[number]),
                    "is_known": is_known[number],
                    "num_unknown_excluded": None if num_unknown is None else num_unknown[number],
                    "temperature": float(temperature[number]) if has_temperature else None,
                },
            )
        )
    return Results(answered, lists)


def _num_unknown(
    answered: Sequence[ShardResponse], num_excluded: Sequence[int] | None, coverage: Coverage
) -> list[int] | None:
    """How many ids that each query excludes no shard holds; None if a shard did not say."""
    known = [answer.num_excluded for answer in answered if answer.num_excluded is not None]
    if num_excluded is None or len(known) < coverage.num_shards:
        return None
    numbers: list[int] = (np.array(num_excluded) - np.sum(known, axis=0)).tolist()
    return numbers


@dataclass(frozen=True)
class _List:
    """The items of a query by their rows [n], and the other fields of its `QueryResult` by name."""

    item_rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    certificate: CertificateResult
    others: dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of all queries; iterate for each with ids and titles."""

    answered: Sequence[ShardResponse]
    lists: Sequence[_List]

    @property
    def is_exact(self) -> bool:
        return all(own.certificate.is_exact for own in self.lists)

    @property
    def num_items(self) -> int:
        return sum(len(own.item_rows) for own in self.lists)

    def __iter__(self) -> Iterator[QueryResult]:
        for number, own in enumerate(self.lists):
            rows = own.item_rows.tolist()
            item_ids = _by_row(self.answered, number, [answer.item_ids for answer in self.answered])
            titles = [answer.titles for answer in self.answered if answer.titles is not None]
            title_of = _by_row(self.answered, number, titles) if titles else None
            yield QueryResult(
                items=[item_ids[row] for row in rows],
                titles=None if title_of is None else [title_of[row] for row in rows],
                scores=own.scores.tolist(),
                certificate=own.certificate,
                **own.others,
            )


def _gaps(merged: SearchResult, num_listed: NDArray[np.int64], done: Cut, *, ends_by_number: bool) -> Tensor:
    """Return the largest amount by which a missing item can score above the end of each list [B].

    Args:
        ends_by_number: whether no threshold ends a list.
    """
    threshold = torch.from_numpy(done.threshold).float()
    # After a column of inf, place n holds the last score of a list of n.
    last = F.pad(merged.scores, (1, 0), value=torch.inf).gather(1, torch.from_numpy(num_listed)[:, None])[:, 0]
    is_number = torch.from_numpy(done.is_truncated) | threshold.isneginf() | ends_by_number
    return gap_to(merged.bound, needed(last, threshold, is_number))


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
