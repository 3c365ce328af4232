"""A heavy ranker by its import path, and its answers as numbers that are known to be sound.

A ranker is somebody else's code. What it does wrong fails the query that it was called for, with a sentence.

Axes: N candidates of one call.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from rails_ray.errors import UnavailableError
from rails_ray.relevance.rankers import Candidate, HeavyRanker


def ranker_by_path(path: str) -> HeavyRanker:
    """The ranker at an import path, MODULE:NAME. A class is made once, without arguments.

    Raises:
        ValueError: if there is none, or it cannot be called.
    """
    module, separator, name = path.partition(":")
    told = f"ranker must be the import path of a callable, MODULE:NAME, got {path!r}"
    if not (module and separator and name):
        raise ValueError(told)
    try:
        found = getattr(importlib.import_module(module), name)
        made = found() if isinstance(found, type) else found
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise ValueError(f"{told}: {_first_line(error)}") from None
    if not callable(made):
        raise ValueError(f"{told}, which cannot be called")
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
        answer = np.asarray(ranker(query, candidates), dtype=np.float64)
    except Exception as error:
        raise UnavailableError(
            f"the heavy ranker must score {len(candidates)} items, got {type(error).__name__}: {_first_line(error)}"
        ) from None
    if answer.shape != (len(candidates),):
        raise UnavailableError(
            f"the heavy ranker must answer with {len(candidates)} scores, one for each item, got an answer of shape "
            f"{list(answer.shape)}"
        )
    if not np.isfinite(answer).all():
        row = int(np.flatnonzero(~np.isfinite(answer))[0])
        raise UnavailableError(
            f"the heavy ranker must answer with finite scores, got {answer[row]} for item {candidates[row].item_id!r}"
        )
    return answer


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or "no message"
