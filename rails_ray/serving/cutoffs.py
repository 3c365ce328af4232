"""Which cut-off a request gets: its own, else the deployment's, else the version's mass, else top_k."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import ScoreDistribution
from rails_ray.cutoffs.policies import (
    CoverageCutoff,
    MassCutoff,
    NucleusCutoff,
    ProbabilityCutoff,
    ScoreCutoff,
    TopKCutoff,
)
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.cutoffs.temperatures import AS_TRAINED, HELD_OUT, Factors
from rails_ray.errors import UnsupportedError
from rails_ray.families import calibrations
from rails_ray.families.calibrations import StoredCalibration
from rails_ray.families.version import Version
from rails_ray.modules.losses import ScoreLogit
from rails_ray.schema.requests import CutoffInput
from rails_ray.search.certificates import self_slack
from rails_ray.storage.parquet import StateEntry

DEFAULT_K = 10  # most items per query for top_k without a number
MOST_ITEMS = 1000  # most items per query for cut-offs by score without a number
NO_CALIBRATION = "none"  # the deployment started without a calibration


@dataclass(frozen=True)
class Cutoffs:
    """The cut-offs that a version offers.

    cutoff_support: which cut-offs the model's scores allow.
    num_items: items of the version.
    version_mass: the best mass by F1 in calibration, or else in training; None if the model has no trained tau_q.
    stored, calibration: the calibration as stored, and ready to use; None if the version is not calibrated.
    default: the deployment's cut-off; None for the version's.
    rounding: how far below 1 the score of a stored vector with itself may lie, by its precision. A threshold by score
        asks for no more than that.
    filter: text of the filter whose items the calibration measured; None for all items.
    of_filters: the cut-offs under filters that have a calibration of their own, by the text of the filter.
    """

    cutoff_support: CutoffSupport
    num_items: int
    version_mass: float | None
    stored: StoredCalibration | None = None
    calibration: Calibration | None = None
    default: CutoffInput | None = None
    rounding: float = 0.0
    filter: str | None = None
    of_filters: "Mapping[str, Cutoffs]" = field(default_factory=dict)

    @staticmethod
    def read(
        version: Version,
        *,
        default: CutoffInput | None = None,
        calibration: str | None = None,
        filter_calibrations: Sequence[str] | None = None,
    ) -> "Cutoffs":
        """The cut-offs of a version.

        Args:
            default: as in `Cutoffs`.
            calibration: file of the calibration; by default the version's current one.
            filter_calibrations: files of calibrations under filters; by default the version's current ones.

        Raises:
            DamagedError: if the config or the calibration differs from what was written.
            UnsupportedError: if the version lacks what the deployment's default needs.
            ValueError: if the default is out of range.
        """
        described, store = version.described, version.storage
        name = calibration or version.tuned.calibration or NO_CALIBRATION
        of_filters = version.tuned.of_filters if filter_calibrations is None else filter_calibrations

        def of(stored: StoredCalibration | None) -> Cutoffs:
            made = Cutoffs.of(version.family.cutoff_support, described.num_live, described.cutoff_mass, stored)
            return replace(made, default=default, rounding=_rounding(described.state))

        found = of(None if name == NO_CALIBRATION else calibrations.read(store, version.name, name))
        cutoff = found.resolve(None, None)
        found.policy(cutoff, found.limit(cutoff, None), np.zeros(1))
        under = (of(calibrations.read(store, version.name, own)) for own in of_filters)
        return replace(found, of_filters={own.filter: own for own in under if own.filter is not None})

    @staticmethod
    def of(
        cutoff_support: CutoffSupport, num_items: int, cutoff_mass: float | None, stored: StoredCalibration | None
    ) -> "Cutoffs":
        """The cut-offs of a model's scores.

        Args:
            cutoff_mass: the best mass by F1 in training, which a calibration that has fitted its own replaces.
        """
        ready = None if stored is None else calibration_of(cutoff_support, stored)
        mass = cutoff_mass if stored is None or stored.mass is None else stored.mass
        return Cutoffs(cutoff_support, num_items, mass, stored, ready, filter=None if stored is None else stored.filter)

    def under(self, filter: str) -> "Cutoffs":
        """The cut-offs of searches under a filter: those that were calibrated for it, else those of all items.

        Args:
            filter: text of the filter, by `schema.filters.canonical`.
        """
        return self.of_filters.get(filter, self)

    def summary(self) -> dict[str, object]:
        """The facts that a client may see."""
        cutoff = self.resolve(None, None)
        return {
            "calibration": None if self.stored is None else self.stored.summary(),
            "calibrated_filters": [json.loads(filter) for filter in sorted(self.of_filters)],
            "cutoff": cutoff.model_dump(exclude_defaults=True),
        }

    def resolve(self, cutoff: CutoffInput | None, k: int | None) -> CutoffInput:
        """The cut-off that a request gets. One that it does not name keeps the best item, unless the deployment says
        otherwise, and as many as k at least if it is `top_k`."""
        if cutoff is not None:
            return cutoff
        if self.default is not None:
            own = self.default
        elif self.version_mass is not None:
            own = CutoffInput(mass=self.version_mass)
        else:
            own = CutoffInput(top_k=k or DEFAULT_K)
        most = [number for number in (k, own.max_items) if number is not None]
        least = min([own.min_items if "min_items" in own.model_fields_set or own.top_k is not None else 1, *most])
        return own.model_copy(update={"min_items": least})

    def limit(self, cutoff: CutoffInput, k: int | None, most: int = MOST_ITEMS) -> int:
        """The most items in a list: the smallest of the numbers given, or a default, and no more than there are.

        Args:
            most: upper limit of the default.

        Raises:
            ValueError: if min_items exceeds the limit.
        """
        given = [number for number in (k, cutoff.max_items, cutoff.top_k) if number is not None]
        default = max(min(MOST_ITEMS, most), cutoff.min_items)
        limit = min([*(given or [default]), self.num_items])
        if min(cutoff.min_items, self.num_items) > limit:
            raise ValueError(f"min_items must be at most the {limit} items of a list, got {cutoff.min_items}")
        return limit

    def policy(self, cutoff: CutoffInput, max_items: int, log_normaliser: NDArray[np.float64] | None = None) -> Cutoff:
        """The policy that applies a cut-off.

        Args:
            log_normaliser: log sum exp of each query over the corpus [B], of logits over `softmax_factor`; nucleus and
                probability need it.

        Raises:
            UnsupportedError: if the version lacks what the cut-off needs.
            ValueError: if its value is out of range.
        """
        least = min(cutoff.min_items, max_items)
        if cutoff.mass is not None:
            return MassCutoff(cutoff.mass, self.distribution(cutoff.background), min_items=least, max_items=max_items)
        if cutoff.coverage is not None:
            self.cutoff_support.check_bounded_scores()
            if self.calibration is None:
                raise UnsupportedError(
                    "cutoff coverage needs a version that is calibrated, got one that is not: run `rails-ray "
                    "calibrate`, and restart a server that runs without --follow; or use another cut-off"
                )
            return CoverageCutoff(cutoff.coverage, self.calibration, min_items=least, max_items=max_items)
        if cutoff.nucleus is not None:
            assert log_normaliser is not None
            return NucleusCutoff(
                self.factors.tempered_logit(self.cutoff_support.logit),
                log_normaliser,
                cutoff.nucleus,
                self.num_items,
                min_items=least,
                max_items=max_items,
            )
        if cutoff.probability is not None:
            assert log_normaliser is not None
            return ProbabilityCutoff(
                self.factors.tempered_logit(self.cutoff_support.logit),
                log_normaliser,
                cutoff.probability,
                min_items=least,
                max_items=max_items,
            )
        if cutoff.score is not None:
            self.cutoff_support.check_score(cutoff.score)
            highest = 1 - self.rounding if self.cutoff_support.has_bounded_scores else math.inf
            return ScoreCutoff(min(cutoff.score, highest), min_items=least, max_items=max_items)
        assert cutoff.top_k is not None
        return TopKCutoff(cutoff.top_k, min_items=least, max_items=max_items)

    @property
    def factors(self) -> Factors:
        """The temperatures fitted on held-out queries; tau_q as trained if the version is not calibrated."""
        return AS_TRAINED if self.stored is None else self.stored.factors

    @property
    def softmax_factor(self) -> float:
        """Return what the training logits are divided by; 1 if no temperature is fitted."""
        return 1.0 if self.factors.softmax is None else self.factors.softmax.value

    @property
    def softmax_logit(self) -> ScoreLogit | None:
        """The training logit at the fitted temperature; None if the model has none."""
        logit = self.cutoff_support.training_logit
        return None if logit is None else self.factors.tempered_logit(logit)

    @property
    def calibrated_temperature(self) -> NDArray[np.float64] | None:
        """tau_q of the calibration queries [Q]; None without a calibration, or if tau_q is not trained."""
        if self.calibration is None or not self.cutoff_support.has_trained_temperature:
            return None
        return self.calibration.positives.temperature

    def is_calibrated(self, cutoff: CutoffInput) -> bool:
        """Return whether the calibration says what a cut-off keeps of the items that it measured."""
        if cutoff.mass is not None:
            return (cutoff.background or self.factors.background) in self.factors.mass
        return cutoff.coverage is not None or (cutoff.needs_normaliser and self.factors.softmax is not None)

    def is_calibrated_under(self, filter: Any, cutoff: CutoffInput) -> bool | None:
        """Return whether the calibration says what a cut-off keeps under a filter: False if it measured other items,
        None if it says nothing of the cut-off.

        Args:
            filter: as in `Scope`.
        """
        return (filter is None or self.filter is not None) if self.is_calibrated(cutoff) else None

    def check_logit(self) -> None:
        """Raises:
        UnsupportedError: if the version has no logit; cut-offs by the softmax over all items need one.
        """
        self.cutoff_support.check_logit()

    def distribution(self, background: str | None = None) -> ScoreDistribution:
        """The distribution of a relevant item's score, at the fitted temperature.

        Args:
            background: its name; by default the one that calibration fitted, or else uniform.

        Raises:
            UnsupportedError: if tau_q is not trained, or the background needs a calibration that the version lacks.
        """
        self.cutoff_support.check_temperature()
        name = background or self.factors.background
        fitted = None if self.stored is None else self.stored.held_out if name == HELD_OUT else self.stored.fitted
        if name in ("fitted", HELD_OUT) and fitted is None:
            raise UnsupportedError(
                f"background {name} needs a version that is calibrated, got one that is not: run `rails-ray "
                "calibrate`, and restart a server that runs without --follow; or use "
                f"{self.cutoff_support.uncalibrated}"
            )
        distribution = self.cutoff_support.distribution(self.cutoff_support.background(name, fitted))
        return self.factors.tempered_distribution(distribution, name)


def _rounding(state: StateEntry) -> float:
    """How far below 1 the score of a stored vector with itself may lie; 0 if no vectors are stored."""
    if "components" not in state.shapes:
        return 0.0
    [num_pairs], (_, width) = state.shapes.get("gate", [1]), state.shapes["components"]
    return self_slack(num_pairs, width, getattr(torch, state.dtypes["components"]))


def calibration_of(cutoff_support: CutoffSupport, stored: StoredCalibration) -> Calibration:
    """A stored calibration, ready to cut."""
    return Calibration(stored.positives, cutoff_support.distribution(stored.background), stored.num_segments)
