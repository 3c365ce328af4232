"""Rounds of a query, as a generator without `await`: it yields what to ask the shards, or the
heavy ranker, and is sent what each answers, or the exception that came instead.

    rounds.send(None) -> AskShards    rounds.send(answers) -> AskRanker ..    StopIteration(value) at the end

Its driver brings the requests to the shards; a test does so by hand. The work between two rounds may take a
while, as a table may have to be made.

Axes: B queries.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rails_ray.errors import BusyError, UnavailableError
from rails_ray.item_ids import ItemId
from rails_ray.modules.similarities.states import AnyQuery

Value = TypeVar("Value")
Policy = TypeVar("Policy")


@dataclass(frozen=True)
class AskShards:
    """Ask each shard for a method's answer to these arguments.

    within_s: seconds until an answer is of no use; None for as long as a shard may take.
    """

    method: str
    arguments: tuple[Any, ...]
    within_s: float | None = None


@dataclass(frozen=True)
class RankerCall:
    """Some items for one query.

    query: the fields of a request's query.
    candidates: as a heavy ranker gets them.
    """

    query: Mapping[str, Any]
    candidates: Sequence[Any]


@dataclass(frozen=True)
class AskRanker:
    """Ask the heavy ranker for the scores of each call's items, all calls at once. An answer is an array of scores, or
    an `UnavailableError`.

    within_s: seconds until an answer is of no use; None for as long as the ranker may take.
    """

    calls: Sequence[RankerCall]
    within_s: float | None = None


Rounds = Generator[AskShards | AskRanker, Sequence[Any], Value]


@dataclass(frozen=True)
class Done:
    """The result of rounds. A `StopIteration` cannot pass through a future."""

    value: Any


def next_step(rounds: Rounds[Any], answers: Sequence[Any] | None) -> AskShards | AskRanker | Done:
    """Carry rounds on to what they ask next, or to their end.

    Args:
        answers: to what they asked last; None at the beginning.
    """
    try:
        return next(rounds) if answers is None else rounds.send(answers)
    except StopIteration as end:
        return Done(end.value)


def search_rounds(
    query: AnyQuery,
    exclude: Sequence[Sequence[ItemId]],
    plan: Callable[[NDArray[np.float64] | None], tuple[Policy, Any]],
    *,
    softmax_factor: float | None,
    scope: Any = None,
) -> Rounds[tuple[Policy, Any, list[Any]]]:
    """A search: the cut-off's policy, what was asked of each shard, and what each answered.

    A shard that fails in the first of two rounds is not in the normaliser, and so it is not in the answer.

    Args:
        plan: gives the policy and what to ask for, from each query's log-sum-exp over the corpus [B] if that is needed.
        softmax_factor: what logits are divided by in the log-sum-exp; None if it is not needed, as it takes a round of
            its own.
        scope: what the log-sum-exp is taken over, beside what each query excludes; as in what `plan` gives.

    Raises:
        ValueError: if a shard refuses the request.
        UnavailableError: if no shard answers a first of two rounds.
    """
    sums: Sequence[Any] = []
    if softmax_factor is not None:
        sums = yield AskShards("log_sum_exp", (query, exclude, softmax_factor, scope))
    policy, request = plan(None if softmax_factor is None else log_normaliser(sums))
    answers = list((yield AskShards("search", (query, request, exclude))))
    for number, own in enumerate(sums):
        if isinstance(own, BaseException):
            answers[number] = own
    check_refusals(answers)
    return policy, request, answers


def log_normaliser(answers: Sequence[NDArray[np.float64] | BaseException]) -> NDArray[np.float64]:
    """The log-sum-exp of the whole corpus [B], from the shards that answered, as no others count as searched.

    Raises:
        ValueError: if a shard refused the request.
        UnavailableError: if none answered.
    """
    from scipy.special import logsumexp  # 13 MB with the rest of scipy, which most servers never need

    check_refusals(answers)
    known = [answer for answer in answers if not isinstance(answer, BaseException)]
    if not known:
        raise unanswered_error(answers, f"a shard must answer, got none of {len(answers)}")
    total: NDArray[np.float64] = logsumexp(np.stack(known), axis=0)
    return total


def unanswered_error(answers: Sequence[Any], message: str, advice: str = "try again") -> UnavailableError:
    """Make the error of too few shards that answered: a `BusyError` if the queue of one was full."""
    if any(isinstance(answer, BusyError) for answer in answers):
        return BusyError(f"{message}, as the queue of another is full: {advice}")
    return UnavailableError(f"{message}: {advice}")


def check_refusals(answers: Sequence[Any]) -> None:
    """Raises:
    ValueError: the refusal of the first shard that refused the request, which another try would not change.
    """
    for answer in answers:
        if isinstance(answer, ValueError):
            raise answer
