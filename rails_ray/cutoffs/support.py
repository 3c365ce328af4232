"""Support of cut-offs: what the scores of a model allow, and what they do not."""

from collections.abc import Callable
from dataclasses import dataclass

from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution, ScoreDistribution, sphere
from rails_ray.errors import UnsupportedError
from rails_ray.modules.losses import ScoreLogit

BACKGROUNDS = ("uniform", "sphere", "fitted")


@dataclass(frozen=True, kw_only=True)
class CutoffSupport:
    """
    trained_by: name of the loss, for messages.
    training_logit: logit of a score, as the loss compares it; None if training had no softmax over items.
    distribution_of: gives the distribution of a relevant item's score that the loss implies, from the background of
        any item's scores; if tau_q is not trained, one that orders scores alike.
    has_trained_temperature: whether tau_q means something, so that a cut-off by mass can be offered.
    has_bounded_scores: whether scores are in [-1, 1], as distributions of scores need; of items without a direction,
        just below -1.
    least_score: the least score of an item that answers a query at all; None where any score may.
    width: width of the vectors of length 1 or less whose inner products make the scores; None if there are none.
    has_cosines: whether these vectors have length 1.
    """

    trained_by: str
    has_bounded_scores: bool
    training_logit: ScoreLogit | None = None
    distribution_of: Callable[[Background], ScoreDistribution] = BetaDistribution
    has_trained_temperature: bool = False
    least_score: float | None = None
    width: int | None = None
    has_cosines: bool = True

    @property
    def logit(self) -> ScoreLogit:
        """The training logit; raises what `check_logit` does."""
        self.check_logit()
        assert self.training_logit is not None
        return self.training_logit

    def check_logit(self) -> None:
        """Raises:
        UnsupportedError: if there is no training logit, which cut-offs by the softmax over all items need.
        """
        if self.training_logit is None:
            raise UnsupportedError(
                "cut-offs nucleus and probability need a model that was trained by a softmax over items, got loss "
                f"{self.trained_by}: take {self._instead}"
            )

    def distribution(self, background: Background = UNIFORM) -> ScoreDistribution:
        """The distribution of a relevant item's score."""
        return self.distribution_of(background)

    @property
    def uncalibrated(self) -> str:
        """Backgrounds that need no calibration."""
        return "uniform or sphere" if self.width is not None and self.has_cosines else "uniform"

    def background(self, name: str, fitted: Background | None) -> Background:
        """The distribution of any item's scores, by name.

        Args:
            fitted: the background of that name that was fitted, needed only for `fitted` and `held_out`.

        Raises:
            ValueError: if there is no such background.
            UnsupportedError: if the background of cosines is asked for, but scores are no cosines.
        """
        match name:
            case "uniform":
                return UNIFORM
            case "sphere":
                if self.width is None or not self.has_cosines:
                    got = f"loss {self.trained_by}" if self.width is None else "components.lengths at_most_one"
                    raise UnsupportedError(
                        f"background sphere needs scores that are cosines, got {got}: take uniform or fitted"
                    )
                return sphere(self.width)
            case "fitted" | "held_out":
                assert fitted is not None
                return fitted
            case _:
                raise ValueError(f"background must be one of {', '.join(BACKGROUNDS)}, got {name!r}")

    def check_temperature(self) -> None:
        """Raises:
        UnsupportedError: if tau_q is not trained, which a cut-off by mass needs.
        """
        if not self.has_trained_temperature:
            raise UnsupportedError(
                f"cutoff mass needs a model with a trained tau_q, got one without (loss {self.trained_by}): take "
                f"{self._instead}"
            )

    def check_score(self, score: float) -> None:
        """Raises:
        ValueError: if no score can be so high, or so low.
        """
        if self.has_bounded_scores and not -1 <= score <= 1:
            raise ValueError(f"cutoff.score must be in [-1, 1], as scores of this model are, got {score:g}")

    def check_bounded_scores(self) -> None:
        """Raises:
        UnsupportedError: if scores may be any number, of which calibration knows no distribution.
        """
        if not self.has_bounded_scores:
            raise UnsupportedError(
                "calibration needs scores in [-1, 1], got a model whose scores may be any number (loss "
                f"{self.trained_by}): take {self._instead}"
            )

    @property
    def _instead(self) -> str:
        """Cut-offs that such a model can have, beside mass."""
        has = {"coverage": self.has_bounded_scores, "nucleus": self.training_logit is not None, "score": True}
        return f"{', '.join(name for name, can in has.items() if can)} or top_k"
