"""A heavy ranker by its import path, and a check of its answers.

A ranker is somebody else's code. What it does wrong fails the query that it was called for, with a sentence; where a
matrix is filled, it leaves a hole. Which paths of a stored config are carried out: see `rails_ray.allowed_code`.

    score_all   {a b c d} fails  ->  {a b} and {c d}  ->  {c} fails alone: a hole

Axes: N candidates of one call.
"""

import importlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from rails_ray.allowed_code import OURS_ALONE, AllowedCode, is_path
from rails_ray.errors import LateError, UnavailableError
from rails_ray.reranking.rankers import Candidate, HeavyRanker
from rails_ray.schema.ranker import RankerConfig
from rails_ray.search.rounds import RankerCall

RANKER = "ranker"  # what an import path names, in messages
OWN_RANKERS = frozenset(  # that a stored config may name
    {
        "rails_ray.families.rbe.run_ranker:RunRanker",
        "rails_ray.reranking.rankers.boosted:BoostedRanker",
        "rails_ray.reranking.rankers.cross_encoder:CrossEncoderRanker",
        "rails_ray.reranking.rankers.molecules:MoleculeRanker",
        "rails_ray.reranking.rankers.syntax_trees:SyntaxTreeRanker",
        "rails_ray.reranking.rankers.transformers_ranker:TransformersRanker",
    }
)
LARGEST = 1e18  # score, whose square float32 holds; beyond it one is as good as infinite


def check_ranker(config: RankerConfig, allowed: AllowedCode) -> None:
    """Check that a ranker may be made. Nothing is imported.

    Raises:
        ValueError: if its path is none, or is not allowed.
    """
    if not is_path(config.path):
        raise ValueError(_refusal(config))
    allowed.check(RANKER, config.path, OWN_RANKERS)
    allowed.check_place(RANKER, config.path, OWN_RANKERS)


def ranker_of(config: RankerConfig, allowed: AllowedCode = OURS_ALONE) -> HeavyRanker:
    """The ranker at an import path. A class is made once, with its folder if one is named.

    Args:
        allowed: what may be imported beside our own rankers.

    Raises:
        ValueError: if there is none, it is not allowed, or it cannot be called.
    """
    check_ranker(config, allowed)
    module, _, name = config.path.partition(":")
    refusal, folder = _refusal(config), [config.folder] if config.folder else []
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever somebody else's module does when it is imported
        raise ValueError(f"{refusal}: {_first_line(error)}") from None
    allowed.check_defined(RANKER, config.path, found, OWN_RANKERS)
    passed_on: dict[str, Any] = {"allowed": allowed} if getattr(found, "opens_runs", False) else {}
    try:
        made = found(*folder, **passed_on) if isinstance(found, type) else found
    except (Exception, SystemExit) as error:
        raise ValueError(f"{refusal}: {_first_line(error)}") from None
    if not callable(made):
        raise ValueError(f"{refusal}, which cannot be called")
    ranker: HeavyRanker = made
    return ranker


def scores_of(ranker: HeavyRanker, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> Float[ndarray, " N"]:
    """One call of the ranker, in double precision; none for no candidates.

    Raises:
        UnavailableError: if the ranker raises, or answers with anything but a finite number for each candidate.
    """
    if not candidates:
        return np.zeros(0)
    try:
        answer = np.asarray(ranker(dict(query), candidates), dtype=np.float64)
    except (Exception, SystemExit) as error:
        raise UnavailableError(
            f"the heavy ranker must score {len(candidates)} items, got {type(error).__name__}: {_first_line(error)}"
        ) from None
    if answer.shape != (len(candidates),):
        raise UnavailableError(
            f"the heavy ranker must answer with {len(candidates)} scores, one for each item, got an answer of shape "
            f"{list(answer.shape)}"
        )
    is_sound = np.abs(answer) <= LARGEST  # False for NaN
    if not is_sound.all():
        row = int(np.flatnonzero(~is_sound)[0])
        raise UnavailableError(
            f"the heavy ranker must answer with finite scores, got {answer[row]} for item {candidates[row].item_id!r}"
        )
    return answer


def scores_within(
    timeout_s: float, ranker: HeavyRanker, query: Mapping[str, Any], candidates: Sequence[Candidate]
) -> Float[ndarray, " N"]:
    """Call the ranker in a thread of its own. Nothing can stop a call that hangs: it is left behind, beside later ones.

    Raises:
        LateError: if the call takes longer.
    """
    answer = Future[ndarray]()

    def call() -> None:
        try:
            answer.set_result(scores_of(ranker, query, candidates))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()  # daemon: a process that ends does not wait for it
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        raise LateError(f"the heavy ranker must answer within {timeout_s:g} s, got no answer") from None


class ScoredCandidates(NamedTuple):
    """
    scores: NaN where the ranker gave none.
    num_calls: pairs that it was asked for, each as often as it was.
    reason: why the last hole is one; empty without holes.
    """

    scores: Float[ndarray, " N"]
    num_calls: int
    reason: str


def score_all(
    ranker: HeavyRanker,
    query: Mapping[str, Any],
    candidates: Sequence[Candidate],
    at_once: int = 256,
    timeout_s: float | None = None,
) -> ScoredCandidates:
    """Scores of any number of items. Where a call fails, each half is tried on its own, so that a failing item leaves
    one hole and no more. A call that takes too long leaves a hole for each of its items: its halves may hang too.

    Args:
        at_once: most items of a call.
        timeout_s: limit for a call; None for none.
    """
    score = scores_of if timeout_s is None else partial(scores_within, timeout_s)
    scores, num_calls, reason = np.full(len(candidates), np.nan), 0, ""
    waiting = [slice(first, first + at_once) for first in range(0, len(candidates), at_once)]
    while waiting:
        part = waiting.pop()
        chunk = candidates[part]
        num_calls += len(chunk)
        try:
            scores[part] = score(ranker, query, chunk)
        except UnavailableError as error:
            reason = str(error)
            if len(chunk) > 1 and not isinstance(error, LateError):
                middle = part.start + len(chunk) // 2
                waiting += [slice(part.start, middle), slice(middle, part.start + len(chunk))]
    return ScoredCandidates(scores, num_calls, reason)


def answers_of(
    ranker: HeavyRanker,
    calls: Sequence[RankerCall],
    within_s: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Float[ndarray, " _"] | UnavailableError]:
    """The answers to `AskRanker` by a ranker in this process, call by call. A call that is under way goes on past the
    deadline; its answer comes too late, and no other begins.
    """
    end = None if within_s is None else clock() + within_s
    answers = list[Any]()
    for call in calls:
        try:
            answer = None if end is not None and clock() > end else scores_of(ranker, call.query, call.candidates)
        except UnavailableError as error:
            answers.append(error)
            continue
        is_late = answer is None or (end is not None and clock() > end)
        answers.append(LateError("the heavy ranker must answer in time, got no answer") if is_late else answer)
    return answers


def _refusal(config: RankerConfig) -> str:
    return f"ranker must be the import path of a callable, MODULE:NAME, got {config.path!r}"


def _first_line(error: BaseException) -> str:
    try:
        return str(error).partition("\n")[0] or "no message"
    except Exception:  # somebody else's exception, too
        return "no message"
