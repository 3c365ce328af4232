"""Which cut-off a request gets: its own, or else the deployment's, or else the version's mass, or else top_k."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rails_ray import build
from rails_ray.config import RunConfig
from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import Background, ScoreDistribution
from rails_ray.cutoffs.policies import CoverageCutoff, MassCutoff, NucleusCutoff, ScoreCutoff, TopKCutoff
from rails_ray.errors import UnsupportedError
from rails_ray.on_ray.serving.schemas import CutoffInput
from rails_ray.storage import calibrations
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Manifest

DEFAULT_K = 10  # items of a request that says no number at all


@dataclass(frozen=True)
class Cutoffs:
    """What a version offers.

    config: of the run that it comes from.
    num_items: of the version.
    version_mass: the mass that it was published with; None where its model has no trained tau_q.
    calibration, fitted: and the background of its own scores; None where it was not calibrated.
    default: the deployment's; None for the version's.
    calibrated: when and on what; None where it was not.
    """

    config: RunConfig
    num_items: int
    version_mass: float | None
    calibration: Calibration | None = None
    fitted: Background | None = None
    default: CutoffInput | None = None
    calibrated: Mapping[str, object] | None = None

    @staticmethod
    def read(store: Storage, manifest: Manifest, default: CutoffInput | None) -> "Cutoffs":
        """Those of a stored version.

        Raises:
            DamagedError: if the config or the calibration are not as they were written.
            UnsupportedError: if the version lacks what the deployment's default needs.
            ValueError: if the default cannot be.
        """
        config = build.version_config(store, manifest)
        stored = calibrations.read(store, manifest.version)
        found = Cutoffs(
            config,
            manifest.num_items,
            manifest.cutoff_mass,
            None if stored is None else build.calibration(config, stored),
            None if stored is None else stored.fitted,
            default,
            None if stored is None else stored.summary(),
        )
        asked = found.resolve(None, DEFAULT_K)
        if asked.nucleus is None:  # whose normaliser comes with the queries
            found.policy(asked, found.limit(asked, None))
        return found

    def summary(self) -> dict[str, object]:
        """What a client may know of it."""
        asked = self.resolve(None, None)
        return {"calibration": self.calibrated, "cutoff": asked.model_dump(exclude_defaults=True)}

    def resolve(self, asked: CutoffInput | None, k: int | None) -> CutoffInput:
        """The cut-off that a request gets."""
        if asked is not None:
            return asked
        if self.default is not None:
            return self.default
        return CutoffInput(top_k=k or DEFAULT_K) if self.version_mass is None else CutoffInput(mass=self.version_mass)

    def limit(self, cutoff: CutoffInput, k: int | None) -> int:
        """The most items of a list: the least of the numbers that are given, DEFAULT_K where there is none."""
        given = [number for number in (k, cutoff.max_items, cutoff.top_k) if number is not None]
        return min([*(given or [DEFAULT_K]), self.num_items])

    def policy(self, cutoff: CutoffInput, max_items: int, log_normaliser: NDArray[np.float64] | None = None) -> Cutoff:
        """The policy that does it.

        Args:
            log_normaliser: of each query over the corpus, which a nucleus needs [B].

        Raises:
            UnsupportedError: if the version lacks what it needs.
            ValueError: if its value cannot be.
        """
        least = cutoff.min_items
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
            logit = build.logit(self.config)
            return NucleusCutoff(
                cutoff.nucleus, logit, log_normaliser, self.num_items, min_items=least, max_items=max_items
            )
        if cutoff.score is not None:
            return ScoreCutoff(cutoff.score, min_items=least, max_items=max_items)
        assert cutoff.top_k is not None
        return TopKCutoff(cutoff.top_k, min_items=least, max_items=max_items)

    def _distribution(self, cutoff: CutoffInput) -> ScoreDistribution:
        if not build.has_trained_temperature(self.config):
            raise UnsupportedError(
                "cutoff mass needs a model with a trained tau_q, got one without (loss "
                f"{self.config.loss.kind}): take coverage, nucleus, score or top_k"
            )
        name = cutoff.background or "uniform"
        if name == "fitted" and self.fitted is None:
            raise UnsupportedError(
                "background fitted needs a version that is calibrated, got one that is not: run `rails-ray calibrate` "
                "and start the server anew, or take uniform or sphere"
            )
        return build.score_distribution(self.config, build.background(self.config, name, self.fitted))
