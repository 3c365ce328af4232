"""The loss of a run, and what is added to it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig:
    """A softmax over the positive and the negatives of each query.

    Args:
        kind: `beta_nce` and `exp_nce` train tau_q, which cut-offs by mass need; `sampled_softmax` (pair-wise) does not.
        pointwise_weight: weight of the point-wise loss, which teaches tau_q where to cut; at least 0.
    """

    kind: Literal["beta_nce", "exp_nce", "sampled_softmax"] = "beta_nce"
    pointwise_weight: float = 0.3

    def __post_init__(self) -> None:
        if self.pointwise_weight < 0:
            raise ValueError(f"pointwise_weight must be at least 0, got {self.pointwise_weight}")


@dataclass(frozen=True, kw_only=True)
class PointwiseConfig:
    """The point-wise loss alone, which trains no tau_q."""

    kind: Literal["pointwise"] = "pointwise"


@dataclass(frozen=True, kw_only=True)
class MaximumLikelihoodConfig:
    """Beta densities of relevant and irrelevant scores, which train no tau_q."""

    kind: Literal["maximum_likelihood"] = "maximum_likelihood"


@dataclass(frozen=True, kw_only=True)
class NoneConfig:
    """No loss: nothing is trained."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class TermsConfig:
    """Weights of the terms beside the loss.

    Args:
        mutual_information_weight: weight of L_MI, at least 0; without effect on a similarity that has no gates.
        mutual_information_of: whose gates it reads: each query's positive, or beside it an item of the batch at random.
        glas_weight: weight of GLaS on item embeddings, at least 0; a baseline for dot products of texts.
    """

    mutual_information_weight: float = 0.001
    mutual_information_of: Literal["positives", "all"] = "positives"
    glas_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mutual_information_weight", "glas_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
