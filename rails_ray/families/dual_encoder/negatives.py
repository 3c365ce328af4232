"""Negatives: the items that a query of a dual encoder is trained against."""

from dataclasses import dataclass
from typing import Literal

from rails_ray.data.batch import SharedBy


@dataclass(frozen=True, kw_only=True)
class DrawnNegatives:
    """Items drawn from the corpus.

    Args:
        num_items: N, items drawn at a time; in text data the positives are among them.
        shared_by: queries that share the drawn items: all of a step (`batch`), those of one history (`history`), or
            none (`query`). Sharing widely is cheap; sharing little lets a step see more of the corpus.
    """

    num_items: int = 512
    shared_by: SharedBy = "batch"

    def __post_init__(self) -> None:
        if self.num_items < 1:
            raise ValueError(f"num_items must be at least 1, got {self.num_items}")


@dataclass(frozen=True, kw_only=True)
class UniformNegatives(DrawnNegatives):
    """Items drawn uniformly, or each once if there are no more than `num_items`; see `DrawnNegatives`."""

    kind: Literal["uniform"] = "uniform"


@dataclass(frozen=True, kw_only=True)
class PopularityNegatives(DrawnNegatives):
    """Items drawn as often as they answer training queries, to a power.

    Args:
        power: 0 draws all alike, 1 by how often they answer.
        is_corrected: whether a negative counts for as many items as it stands for (the logQ correction).
    """

    kind: Literal["popularity"] = "popularity"
    power: float = 1.0
    is_corrected: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.power <= 1:
            raise ValueError(f"power must be in [0, 1], got {self.power}")


@dataclass(frozen=True, kw_only=True)
class MixedNegatives(DrawnNegatives):
    """Uniform items and popular ones.

    For texts and vectors, these are the positives of the other queries of a worker, and `num_items` drawn uniformly.
    For histories, half of `num_items` are drawn by how often they come next.

    Args:
        is_corrected: as in `PopularityNegatives`.
    """

    kind: Literal["mixed"] = "mixed"
    is_corrected: bool = True


@dataclass(frozen=True, kw_only=True)
class HardNegatives(DrawnNegatives):
    """Items drawn uniformly, and the wrong items that the model ranks highest for the queries of a step.

    Args:
        num_hard: H, hard negatives of a query.
        mine_every: steps between two searches for them; the first steps train without.
    """

    kind: Literal["hard"] = "hard"
    num_hard: int = 1
    mine_every: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_hard", "mine_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class InBatchNegatives:
    """The positives of the other queries of the same worker.

    Args:
        is_corrected: as in `PopularityNegatives`.
    """

    kind: Literal["in_batch"] = "in_batch"
    is_corrected: bool = False


@dataclass(frozen=True, kw_only=True)
class CrossDeviceNegatives:
    """The positives of the other queries of all workers.

    Args:
        block_size: items that a worker scores at once; blocks of embeddings then travel from worker to worker. 0
            gathers all embeddings on each worker.
    """

    kind: Literal["cross_device"] = "cross_device"
    block_size: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 0:
            raise ValueError(f"block_size must be at least 0, got {self.block_size}")


Negatives = (
    UniformNegatives | PopularityNegatives | MixedNegatives | HardNegatives | InBatchNegatives | CrossDeviceNegatives
)
