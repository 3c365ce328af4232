"""What the router decides, without the router: the cut-off, whether enough was searched, and the answer."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.cutoffs.policies import cut
from rails_ray.errors import UnavailableError
from rails_ray.on_ray.failures import own_cause
from rails_ray.on_ray.serving.schemas import (
    CertificateResult,
    Coverage,
    CutoffInput,
    ExplainedItem,
    ExplainResponse,
    QueryResult,
)
from rails_ray.on_ray.serving.shard import ItemId, ShardAnswer, ShardExplanation
from rails_ray.retrieval import Found
from rails_ray.retrieval.certificate import Certificate
from rails_ray.retrieval.sharded import merge_shards

Value = TypeVar("Value")


def cutoff_of(asked: CutoffInput | None, k: int, version_mass: float | None) -> CutoffInput:
    """The cut-off that a request names, or else the version's mass, or else k.

    Raises:
        ValueError: if a mass is asked of a version whose model has no trained tau_q.
    """
    if asked is None:
        return CutoffInput(top_k=k) if version_mass is None else CutoffInput(mass=version_mass)
    if asked.mass is not None and version_mass is None:
        raise ValueError("cutoff must be score or top_k for this index, whose model has no trained tau_q, got mass")
    return asked


def coverage_of(
    answers: Sequence[ShardAnswer | BaseException], shard_items: Sequence[int], min_coverage: float
) -> Coverage:
    """What was searched.

    Raises:
        ValueError: if a shard refused the request.
        UnavailableError: if less was searched than asked for.
    """
    for answer in answers:
        refusal = own_cause(answer) if isinstance(answer, BaseException) else None
        if isinstance(refusal, ValueError):
            raise refusal
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


def results_of(
    answered: Sequence[ShardAnswer],
    k: int,
    cutoff: CutoffInput,
    temperature: NDArray[np.floating],
    coverage: Coverage,
) -> list[QueryResult]:
    """The merged and cut list of each query.

    Raises:
        ValueError: if fewer than k items were searched and not excluded.
    """
    merged = merge_shards([_found(answer) for answer in answered], k)
    scores = np.concatenate([found.top_k.scores.numpy() for found in merged])
    num_searched = np.sum([answer.num_searched for answer in answered], axis=0)
    done = cut(scores, temperature, cutoff.policy(), num_searched)
    results = []
    for number, found in enumerate(merged):
        num_kept, threshold = int(done.num_kept[number]), float(done.threshold[number])
        kept_rows = found.top_k.item_rows[0, :num_kept].tolist()
        item_ids = _by_row(answered, number, [answer.item_ids for answer in answered])
        titles = [answer.titles for answer in answered if answer.titles is not None]
        title_of = _by_row(answered, number, titles) if titles else None
        results.append(
            QueryResult(
                items=[item_ids[row] for row in kept_rows],
                titles=None if title_of is None else [title_of[row] for row in kept_rows],
                scores=scores[number, :num_kept].tolist(),
                threshold=threshold if np.isfinite(threshold) else None,
                num_kept=num_kept,
                num_searched=int(num_searched[number]),
                num_scored=int(found.num_scored),
                certificate=_certificate(found.certificate, scores[number], num_kept, threshold, coverage),
                is_truncated=bool(done.is_truncated[number]),
            )
        )
    return results


def _found(answer: ShardAnswer) -> list[Found]:
    """A shard's answer as the search gave it."""
    bounds = [None] * len(answer.found) if answer.bounds is None else answer.bounds
    return [
        Found(
            top_k, Certificate(None if bound is None else torch.tensor([bound]), answer.no_bound), torch.tensor([num])
        )
        for top_k, bound, num in zip(answer.found, bounds, answer.num_scored, strict=True)
    ]


def _certificate(
    certificate: Certificate, scores: NDArray[np.floating], num_kept: int, threshold: float, coverage: Coverage
) -> CertificateResult:
    """What the kept list proves: an item that is missing from it must reach the threshold, or the last score."""
    if coverage.items_searched < coverage.num_items:
        reason = f"only {coverage.items_searched} of {coverage.num_items} items were searched"
        return CertificateResult(is_exact=False, gap=None, reason=reason)
    last = max(scores[-1], threshold) if np.isfinite(threshold) else scores[num_kept - 1]
    gap = certificate.gap(torch.tensor([last], dtype=torch.float32))
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
            raise ValueError(f"items[{place}] must be an item of the index, got {item_id!r}")
    return ExplainResponse(version=version, items=[by_id[item_id] for item_id in items])
