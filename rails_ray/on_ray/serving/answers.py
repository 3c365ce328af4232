"""What the router decides, without the router: whether enough was searched, and the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

from rails_ray.above import Above
from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.policies import cut
from rails_ray.errors import UnavailableError
from rails_ray.on_ray.failures import own_cause
from rails_ray.on_ray.serving.schemas import (
    CertificateResult,
    Coverage,
    ExplainedItem,
    ExplainResponse,
    QueryResult,
    shortened,
)
from rails_ray.on_ray.serving.shard import Asked, ItemId, ShardAnswer, ShardExplanation
from rails_ray.retrieval import Found, FoundAbove
from rails_ray.retrieval.certificate import Certificate, needed
from rails_ray.retrieval.sharded import merge_shards, merge_shards_above
from rails_ray.top_k import TopK

Value = TypeVar("Value")
SHORT = CertificateResult(is_exact=False, gap=None, reason="the search found fewer items than were asked for")


def log_normaliser_of(answers: Sequence[NDArray[np.float64] | BaseException]) -> NDArray[np.float64]:
    """The log-sum-exp of the whole corpus [B] from those of its shards; of those that answered, as no others count
    as searched.

    Raises:
        ValueError: if a shard refused the request.
        UnavailableError: if none answered.
    """
    _check_refusals(answers)
    known = [answer for answer in answers if not isinstance(answer, BaseException)]
    if not known:
        raise UnavailableError(f"a shard must answer, got none of {len(answers)}: try again")
    total: NDArray[np.float64] = logsumexp(np.stack(known), axis=0)
    return total


def coverage_of(
    answers: Sequence[ShardAnswer | BaseException], shard_items: Sequence[int], min_coverage: float
) -> Coverage:
    """What was searched.

    Raises:
        ValueError: if a shard refused the request.
        UnavailableError: if less was searched than asked for.
    """
    _check_refusals(answers)
    sizes = [size for size, answer in zip(shard_items, answers, strict=True) if isinstance(answer, ShardAnswer)]
    coverage = Coverage(
        shards_answered=len(sizes), num_shards=len(answers), items_searched=sum(sizes), num_items=sum(shard_items)
    )
    if not sizes or coverage.items_searched < min_coverage * coverage.num_items:
        raise UnavailableError(
            f"min_coverage must be reached, {min_coverage:g} of {coverage.num_items} items, got "
            f"{coverage.items_searched} from {len(sizes)} of {len(answers)} shards: try again or ask for less"
        )
    return coverage


def _check_refusals(answers: Sequence[Any]) -> None:
    for answer in answers:
        refusal = own_cause(answer) if isinstance(answer, BaseException) else None
        if isinstance(refusal, ValueError):
            raise refusal


def results_of(
    answered: Sequence[ShardAnswer],
    asked: Asked,
    cutoff: Cutoff,
    temperature: NDArray[np.floating],
    coverage: Coverage,
    is_known: Sequence[bool | None],
) -> "Results":
    """The merged and cut list of each query.

    Raises:
        ValueError: if the k best were asked for, and fewer than k items were searched and not excluded.
    """
    num_searched = np.sum([answer.num_searched for answer in answered], axis=0)
    fewest = int(num_searched.min(initial=asked.k))
    if asked.threshold is None and fewest < asked.k:
        raise ValueError(f"k must be at most the {fewest} items searched and not excluded, got {asked.k}")
    merged = _merged(answered, asked)
    num_found = np.array([found.items.k for found in merged])
    wanted = asked.k if asked.threshold is None else asked.min_items
    is_short = num_found < np.minimum(wanted, num_searched)
    is_cut_short = np.array([found.is_truncated for found in merged], dtype=bool)
    if asked.threshold is None:
        is_cut_short = (num_searched > asked.k) & ~is_short
    scores = _padded([found.items.scores[0].numpy() for found in merged])
    done = cut(scores, temperature, cutoff, is_cut_short)
    lists = []
    for number, found in enumerate(merged):
        kept, threshold = scores[number, : int(done.num_kept[number])], float(done.threshold[number])
        is_truncated = bool(done.is_truncated[number])
        lists.append(
            _List(
                item_rows=found.items.item_rows[0, : len(kept)],
                scores=kept,
                threshold=threshold if np.isfinite(threshold) else None,
                num_searched=int(num_searched[number]),
                num_scored=found.num_scored,
                certificate=_certificate(
                    found.certificate, kept, threshold, is_truncated, bool(is_short[number]), coverage
                ),
                is_truncated=is_truncated,
                is_short=bool(is_short[number]),
                is_known=is_known[number],
            )
        )
    return Results(answered, lists)


@dataclass(frozen=True)
class _List:
    """The kept items of a query by their rows [n], and the fields of its `QueryResult` that are not of items."""

    item_rows: Tensor
    scores: NDArray[np.float32]
    threshold: float | None
    num_searched: int
    num_scored: int
    certificate: CertificateResult
    is_truncated: bool
    is_short: bool
    is_known: bool | None


@dataclass(frozen=True)
class Results:
    """The results of all queries: what they prove, and one after another with ids and titles."""

    answered: Sequence[ShardAnswer]
    lists: Sequence[_List]

    @property
    def is_exact(self) -> bool:
        return all(own.certificate.is_exact for own in self.lists)

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
                threshold=own.threshold,
                num_kept=len(rows),
                num_searched=own.num_searched,
                num_scored=own.num_scored,
                certificate=own.certificate,
                is_truncated=own.is_truncated,
                is_short=own.is_short,
                is_known=own.is_known,
            )


@dataclass(frozen=True)
class _Merged:
    """The answer of one query: its items [1, n], and what `Found` and `FoundAbove` say of them."""

    items: TopK
    is_truncated: bool
    certificate: Certificate
    num_scored: int


def _merged(answered: Sequence[ShardAnswer], asked: Asked) -> list[_Merged]:
    if asked.threshold is None:
        best = merge_shards([_found(answer) for answer in answered], asked.k, may_be_short=True)
        return [_Merged(one.top_k, False, one.certificate, int(one.num_scored)) for one in best]
    threshold = torch.from_numpy(asked.threshold)
    reached = merge_shards_above([_found_above(answer) for answer in answered], threshold, asked.k, asked.min_items)
    return [
        _Merged(one.above.top_k, bool(one.above.is_truncated), one.certificate, int(one.num_scored)) for one in reached
    ]


def _found(answer: ShardAnswer) -> list[Found]:
    """A shard's answer as the search gave it."""
    return [
        Found(top_k, certificate, torch.tensor([num]))
        for top_k, certificate, num in zip(answer.found, _certificates(answer), answer.num_scored, strict=True)
    ]


def _found_above(answer: ShardAnswer) -> list[FoundAbove]:
    return [
        FoundAbove(Above(found.top_k, torch.tensor([is_truncated])), found.certificate, found.num_scored)
        for found, is_truncated in zip(_found(answer), answer.is_truncated, strict=True)
    ]


def _certificates(answer: ShardAnswer) -> list[Certificate]:
    bounds = [None] * len(answer.found) if answer.bounds is None else answer.bounds
    return [Certificate(None if bound is None else torch.tensor([bound]), answer.no_bound) for bound in bounds]


def _padded(scores: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Lists of any length as [B, longest], -inf behind the end of each."""
    padded = np.full((len(scores), max(map(len, scores), default=0)), -np.inf, dtype=np.float32)
    for line, own in zip(padded, scores, strict=True):
        line[: len(own)] = own
    return padded


def _certificate(
    certificate: Certificate,
    kept: NDArray[np.floating],
    threshold: float,
    is_truncated: bool,
    is_short: bool,
    coverage: Coverage,
) -> CertificateResult:
    """What the kept list proves."""
    if coverage.items_searched < coverage.num_items:
        reason = f"only {coverage.items_searched} of {coverage.num_items} items were searched"
        return CertificateResult(is_exact=False, gap=None, reason=reason)
    if is_short:
        return SHORT
    last, ends_by_number = float(kept[-1]) if len(kept) else np.inf, is_truncated or np.isneginf(threshold)
    gap = certificate.gap(needed(torch.tensor([last]), torch.tensor([threshold]), torch.tensor([ends_by_number])))
    if gap is None:
        return CertificateResult(is_exact=False, gap=None, reason=certificate.reason)
    return CertificateResult(is_exact=not gap.any(), gap=float(gap), reason=None)


def _by_row(
    answered: Sequence[ShardAnswer], number: int, values: Sequence[Sequence[Sequence[Value]]]
) -> dict[int, Value]:
    """What each shard says of the rows that it found for a query, by row."""
    return {
        row: value
        for answer, of_queries in zip(answered, values, strict=True)
        for row, value in zip(answer.found[number].item_rows[0].tolist(), of_queries[number], strict=True)
    }


def explained(
    version: str, answers: Sequence[ShardExplanation | BaseException], items: Sequence[ItemId]
) -> ExplainResponse:
    """The explanations of all shards, in the order asked for.

    Raises:
        ValueError: if no shard holds an item.
        UnavailableError: if an item may be in a shard that did not answer.
    """
    by_id: dict[ItemId, ExplainedItem] = {}
    for answer in answers:
        if isinstance(answer, BaseException):
            continue
        for place, item_id in enumerate(answer.items):
            by_id[item_id] = ExplainedItem(
                item=item_id,
                title=None if answer.titles is None else answer.titles[place],
                score=answer.scores[place],
                cosines=answer.cosines[place],
                gates=answer.gates[place],
            )
    for place, item_id in enumerate(items):
        if item_id not in by_id:
            if any(isinstance(answer, BaseException) for answer in answers):
                raise UnavailableError(f"all shards must answer to find items[{place}], got fewer: try again")
            raise ValueError(f"items[{place}] must be an item of the index, got {shortened(item_id)}")
    return ExplainResponse(version=version, items=[by_id[item_id] for item_id in items])
