"""The ways to cut a list of scores descending, under one contract.

    top_k         a number of items
    score         s >= a fixed score
    mass          s >= t_q with P(score of a relevant item >= t_q) = c, from tau_q and a background (`distributions`)
    coverage      s >= t_q such that a share c of a query's relevant items is kept on average (`calibration`)
    nucleus       the fewest items that hold the mass c of p(x | q) = softmax(training logit) over the corpus
    probability   p(x | q) >= p

Each keeps at least `min_items` (as far as there are any) and at most `max_items`.

Source: pEBR, Section 3, for the first three.
Differs from the source: the normaliser cancels in both losses, so that training leaves open how much of the relevant a
mass keeps; coverage measures it. Nucleus and probability ask for no background at all. If p is what it says, lists that
end at one p(x | q) for all queries have the highest recall for their average length: the next item of each query is
then worth the same.

Axes: B queries, X items, k results.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff, Decision
from rails_ray.cutoffs.calibration import CANDIDATE_MASSES, Calibration
from rails_ray.cutoffs.distributions import ScoreDistribution, check_temperature
from rails_ray.modules.losses import ScoreLogit

TOLERANCE = 2**-7  # of a cosine: vectors stored in bfloat16 are longer than 1 by up to half of it
SHARES = (*np.round(np.arange(0.05, 0.96, 0.05), 2).tolist(), 0.97, 0.98, 0.99, 0.995, 0.999)  # to try in tuning
LENGTHS = tuple(sorted({round(length) for length in np.geomspace(1, 1000, 60).tolist()}))
NUM_SCORES = 60  # fixed scores to try, of lists from a tenth of an item to all that were found
GRIDS, CELLS = 4, 128  # of [-1, 1]: to 7e-9, below the spacing of float32 at 1


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """How many items a policy keeps whatever their scores, and what most policies have in common.

    Args:
        min_items: items to keep at least.
        max_items: items to keep at most; None for no limit.
    """

    min_items: int = 0
    max_items: int | None = None

    def __post_init__(self) -> None:
        if self.min_items < 0:
            raise ValueError(f"min_items must be at least 0, got {self.min_items}")
        if self.max_items is not None and self.max_items < max(self.min_items, 1):
            raise ValueError(
                f"max_items must be at least 1 and at least the {self.min_items} of min_items, got {self.max_items}"
            )

    @property
    def num_wanted(self) -> int | None:
        return None

    @staticmethod
    def values(scores: NDArray[np.floating]) -> list[float]:
        """The values to try in tuning, ascending.

        Args:
            scores: of the best items of each query, descending, -inf where nothing was found [Q, k].
        """
        return list(SHARES)

    @abstractmethod
    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]: ...

    def decide(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> Decision:
        return Decision(self.floor(temperature), np.ones(len(scores), dtype=bool))


@dataclass(frozen=True)
class TopKCutoff(Policy):
    """Keep the best k."""

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.k}")

    @staticmethod
    def values(scores: NDArray[np.floating]) -> list[float]:
        return [float(length) for length in LENGTHS if length <= scores.shape[1]]

    @property
    def num_wanted(self) -> int:
        return self.k

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.full(len(temperature), -np.inf)

    def decide(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> Decision:
        return Decision(self.floor(temperature), (scores > -np.inf).sum(axis=1) < self.k)


@dataclass(frozen=True)
class ScoreCutoff(Policy):
    """Keep items whose score is at least `score`."""

    score: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.score):
            raise ValueError(f"score must be a number, got {self.score}")

    @staticmethod
    def values(scores: NDArray[np.floating]) -> list[float]:
        found = np.sort(scores[scores > -np.inf])[::-1]
        lengths = np.geomspace(0.1, max(len(found) / len(scores), 0.2), NUM_SCORES)
        places = np.minimum((lengths * len(scores)).astype(int), len(found) - 1) if len(found) else []
        return sorted({round(float(found[place]), 4) for place in places})

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.full(len(temperature), self.score, dtype=np.float64)


@dataclass(frozen=True)
class MassCutoff(Policy):
    """Keep items above the score that a relevant item reaches with probability `mass`. Needs a trained tau_q."""

    mass: float
    distribution: ScoreDistribution

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("mass", self.mass)

    @staticmethod
    def values(scores: NDArray[np.floating]) -> list[float]:
        return sorted({*SHARES, *(round(1 - float(f"{1 - mass:.2g}"), 14) for mass in CANDIDATE_MASSES.tolist())})

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.distribution.quantile(1 - self.mass, temperature)

    def decide(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> Decision:
        """Raises:
        ValueError: if a score is outside [-1, 1], where the distributions are.
        """
        found = scores[~np.isneginf(scores)]
        worst = found[np.abs(found).argmax()] if found.size else 0.0
        if not abs(worst) <= 1 + TOLERANCE:
            raise ValueError(f"cutoff mass needs scores in [-1, 1], got {worst:g}: take coverage, score or top_k")
        return super().decide(scores, temperature)


@dataclass(frozen=True)
class CoverageCutoff(Policy):
    """Keep, on average over queries, a share `coverage` of a query's relevant items."""

    coverage: float
    calibration: Calibration

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("coverage", self.coverage)
        self.calibration.check(self.coverage)

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.calibration.threshold(self.coverage, temperature)


@dataclass(frozen=True)
class OfSoftmax(Policy):
    """A policy that goes by p(x | q), the softmax of the training logit over the corpus.

    Args:
        logit: the logit of the loss that trained the model, from scores [B, X] and tau_q [B]; increasing in the score.
        log_normaliser: the log-sum-exp of the logits of all items that a query can find [B]; -inf without any.
    """

    logit: ScoreLogit
    log_normaliser: NDArray[np.float64]

    def log_probability(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """log p(x | q) of scores [B, k]; -inf where there is no item."""
        inside = np.maximum(np.asarray(scores, dtype=np.float64), -1.0)  # -inf marks a place without an item
        tau_q = np.asarray(temperature, dtype=np.float64)
        logits = self.logit(torch.from_numpy(inside), torch.from_numpy(tau_q)).numpy()
        normaliser = np.where(np.isfinite(self.log_normaliser), self.log_normaliser, 0.0)
        return np.where(scores > -np.inf, logits - normaliser[:, None], -np.inf)

    def score_at(self, log_probability: float, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """The score in [-1, 1] with this probability [B], from below, by a grid within a cell of a grid, and so on."""
        check_temperature(temperature)
        low, width = np.full(len(temperature), -1.0), 2.0
        for _ in range(GRIDS):
            width /= CELLS
            grid = low[:, None] + width * np.arange(1, CELLS)  # [B, CELLS - 1]
            num_below = (self.log_probability(grid, temperature) < log_probability).sum(axis=1)
            low = low + width * num_below
        return low


@dataclass(frozen=True)
class ProbabilityCutoff(OfSoftmax):
    """Keep items x with p(x | q) >= `probability`."""

    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("probability", self.probability)

    @staticmethod
    def values(scores: NDArray[np.floating]) -> list[float]:
        return [float(f"{10.0**-x:.3g}") for x in np.arange(6, 0.2, -0.1)]

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.score_at(math.log(self.probability), temperature)


@dataclass(frozen=True)
class NucleusCutoff(OfSoftmax):
    """Keep the best items until they hold a share `nucleus` of the softmax over the corpus.

    Args:
        num_items: X, items of the corpus.
    """

    nucleus: float
    num_items: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("nucleus", self.nucleus)

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """All items below it together hold half of what may be left out."""
        return self.score_at(math.log((1 - self.nucleus) / (2 * max(self.num_items, 1))), temperature)

    def decide(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> Decision:
        """The score of the item with which the share is reached; the floor if the list ends before."""
        is_held = np.exp(self.log_probability(scores, temperature)).cumsum(axis=1) >= self.nucleus
        is_open = np.asarray(~is_held.any(axis=1))
        threshold = self.floor(temperature) if is_open.any() else np.empty(len(scores))
        if is_held.size:
            last = np.take_along_axis(scores, is_held.argmax(axis=1)[:, None], axis=1)[:, 0]
            threshold = np.where(is_open, threshold, last)
        return Decision(threshold, is_open)


POLICIES: dict[str, type[Policy]] = {
    "top_k": TopKCutoff,
    "score": ScoreCutoff,
    "mass": MassCutoff,
    "nucleus": NucleusCutoff,
    "probability": ProbabilityCutoff,
    "coverage": CoverageCutoff,
}


@dataclass(frozen=True)
class Cut:
    """Decision of a cut-off for each query.

    threshold: the lowest score that is kept, `min_items` aside; -inf if the scores did not decide.
    num_kept: items of the list to return, from its start.
    is_truncated: whether items that qualify were left out: the list, or `max_items`, ended before them.
    """

    threshold: NDArray[np.float64]
    num_kept: NDArray[np.int64]
    is_truncated: NDArray[np.bool_]


def cut(
    scores: NDArray[np.floating],
    temperature: NDArray[np.floating],
    cutoff: Cutoff,
    is_cut_short: NDArray[np.bool_],
) -> Cut:
    """Apply `cutoff` to scores [B, k], descending, -inf where nothing was found.

    Args:
        is_cut_short: whether a query has items below the end of its list which may qualify [B].
    """
    threshold, is_open = cutoff.decide(scores, temperature)
    num_found = (scores > -np.inf).sum(axis=1)
    qualify = np.minimum((scores >= threshold[:, None]).sum(axis=1), num_found)
    if cutoff.num_wanted is not None:
        qualify = np.minimum(qualify, cutoff.num_wanted)
    num_kept = np.minimum(np.maximum(qualify, cutoff.min_items), num_found)
    most = num_found if cutoff.max_items is None else np.full(len(scores), cutoff.max_items)
    goes_on = is_cut_short & (qualify == num_found) & is_open
    return Cut(threshold, np.minimum(num_kept, most), goes_on | (num_kept > most))


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be above 0 and below 1, got {value}")
