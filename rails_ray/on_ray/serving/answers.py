"""What the router decides, without the router: the cut-off, whether enough was searched, and the answer."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs.policies import cut
from rails_ray.errors import UnavailableError
from rails_ray.on_ray.failures import own_cause
from rails_ray.on_ray.serving.schemas import Coverage, CutoffInput, QueryResult
from rails_ray.on_ray.serving.shard import ShardAnswer
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
    answered: Sequence[ShardAnswer], k: int, cutoff: CutoffInput, temperature: NDArray[np.floating]
) -> list[QueryResult]:
    """The merged and cut list of each query.

    Raises:
        ValueError: if fewer than k items were searched and not excluded.
    """
    merged = merge_shards([answer.found for answer in answered], k)
    scores = np.concatenate([top_k.scores.numpy() for top_k in merged])
    num_searched = np.sum([answer.num_searched for answer in answered], axis=0)
    done = cut(scores, temperature, cutoff.policy(), num_searched)
    results = []
    for number, top_k in enumerate(merged):
        num_kept, threshold = int(done.num_kept[number]), float(done.threshold[number])
        kept_rows = top_k.item_rows[0, :num_kept].tolist()
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
                is_truncated=bool(done.is_truncated[number]),
            )
        )
    return results


def _by_row(
    answered: Sequence[ShardAnswer], number: int, values: Sequence[Sequence[Sequence[Value]]]
) -> dict[int, Value]:
    """What each shard says of the rows that it found for a query, by row."""
    return {
        row: value
        for answer, of_queries in zip(answered, values, strict=True)
        for row, value in zip(answer.found[number].item_rows[0].tolist(), of_queries[number], strict=True)
    }
