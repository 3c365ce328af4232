"""Which cut-off a request gets: its own, or else the deployment's, or else the version's mass, or else top_k."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rails_ray.build.version import version_calibration, version_family
from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import ScoreDistribution
from rails_ray.cutoffs.offers import Offers
from rails_ray.cutoffs.policies import (
    CoverageCutoff,
    MassCutoff,
    NucleusCutoff,
    ProbabilityCutoff,
    ScoreCutoff,
    TopKCutoff,
)
from rails_ray.errors import UnsupportedError
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.schemas import CutoffInput
from rails_ray.storage import calibrations
from rails_ray.storage.calibrations import StoredCalibration
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Manifest
from rails_ray.top_k import check_k

DEFAULT_K = 10  # items of a request for the best that says no number
MOST_ITEMS = 1000  # of one that goes by scores and says none
NO_CALIBRATION = "none"  # where a deployment began without one


@dataclass(frozen=True)
class Cutoffs:
    """What a version offers.

    offers: what its model's scores let cut-offs build on.
    num_items: of the version.
    version_mass: the mass that it was published with; None where its model has no trained tau_q.
    stored, calibration: as it lies in storage, and ready to cut; None where the version was not calibrated.
    default: the deployment's; None for the version's.
    """

    offers: Offers
    num_items: int
    version_mass: float | None
    stored: StoredCalibration | None = None
    calibration: Calibration | None = None
    default: CutoffInput | None = None

    @staticmethod
    def read(store: Storage, manifest: Manifest, args: ServeArgs) -> "Cutoffs":
        """Those of a stored version.

        Raises:
            DamagedError: if the config or the calibration are not as they were written.
            UnsupportedError: if the version lacks what the deployment's default needs.
            ValueError: if the default cannot be.
        """
        offers = version_family(store, manifest).offers
        name = args.calibration or calibrations.current(store, manifest.version) or NO_CALIBRATION
        stored = None if name == NO_CALIBRATION else calibrations.read(store, manifest.version, name)
        calibration = None if stored is None else version_calibration(offers, stored)
        found = Cutoffs(offers, manifest.num_items, manifest.cutoff_mass, stored, calibration, args.cutoff)
        asked = found.resolve(None, None)
        found.policy(asked, found.limit(asked, None), np.zeros(1))
        return found

    def summary(self) -> dict[str, object]:
        """What a client may know of it."""
        asked = self.resolve(None, None)
        return {
            "calibration": None if self.stored is None else self.stored.summary(),
            "cutoff": asked.model_dump(exclude_defaults=True),
        }

    def resolve(self, asked: CutoffInput | None, k: int | None) -> CutoffInput:
        """The cut-off that a request gets."""
        if asked is not None:
            return asked
        if self.default is not None:
            return self.default
        if self.version_mass is not None:
            return CutoffInput(mass=self.version_mass)
        return CutoffInput(top_k=k or min(DEFAULT_K, self.num_items))

    def limit(self, cutoff: CutoffInput, k: int | None, most: int = MOST_ITEMS) -> int:
        """The most items of a list: the least of the numbers that are given, or else a default.

        Args:
            most: of the default.

        Raises:
            ValueError: if more of the best items are asked for than there are, or min_items beyond the limit.
        """
        for number in (k, cutoff.top_k):
            if number is not None:
                check_k(number, self.num_items)
        given = [number for number in (k, cutoff.max_items, cutoff.top_k) if number is not None]
        default = max(min(MOST_ITEMS, most), cutoff.min_items)
        limit = min([*(given or [default]), self.num_items])
        if min(cutoff.min_items, self.num_items) > limit:
            raise ValueError(f"min_items must be at most the {limit} items of a list, got {cutoff.min_items}")
        return limit

    def policy(self, cutoff: CutoffInput, max_items: int, log_normaliser: NDArray[np.float64] | None = None) -> Cutoff:
        """The policy that does it.

        Args:
            log_normaliser: of each query over the corpus [B], which nucleus and probability need.

        Raises:
            UnsupportedError: if the version lacks what it needs.
            ValueError: if its value cannot be.
        """
        least = min(cutoff.min_items, max_items)
        if cutoff.mass is not None:
            return MassCutoff(cutoff.mass, self._distribution(cutoff), min_items=least, max_items=max_items)
        if cutoff.coverage is not None:
            if self.calibration is None:
                raise UnsupportedError(
                    "cutoff coverage needs a version that is calibrated, got one that is not: run `rails-ray "
                    "calibrate` and start the server anew, or take another cut-off"
                )
            return CoverageCutoff(cutoff.coverage, self.calibration, min_items=least, max_items=max_items)
        if cutoff.nucleus is not None:
            assert log_normaliser is not None
            return NucleusCutoff(
                self.offers.logit,
                log_normaliser,
                cutoff.nucleus,
                self.num_items,
                min_items=least,
                max_items=max_items,
            )
        if cutoff.probability is not None:
            assert log_normaliser is not None
            return ProbabilityCutoff(
                self.offers.logit,
                log_normaliser,
                cutoff.probability,
                min_items=least,
                max_items=max_items,
            )
        if cutoff.score is not None:
            self.offers.check_score(cutoff.score)
            return ScoreCutoff(cutoff.score, min_items=least, max_items=max_items)
        assert cutoff.top_k is not None
        return TopKCutoff(cutoff.top_k, min_items=least, max_items=max_items)

    def check_logit(self) -> None:
        """Raises:
        UnsupportedError: if the version has no logit, which cut-offs by the softmax over all items need.
        """
        self.offers.check_logit()

    def _distribution(self, cutoff: CutoffInput) -> ScoreDistribution:
        self.offers.check_temperature()
        name = cutoff.background or "uniform"
        fitted = None if self.stored is None else self.stored.fitted
        if name == "fitted" and fitted is None:
            raise UnsupportedError(
                "background fitted needs a version that is calibrated, got one that is not: run `rails-ray calibrate` "
                "and start the server anew, or take uniform or sphere"
            )
        return self.offers.distribution(self.offers.background(name, fitted))
