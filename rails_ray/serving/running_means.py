"""The mean of shares of live queries, with its interval.

The interval is Wilson's, at 95%, on the mean over queries: a share in [0, 1] varies at most as much as a coin of the
same mean.
"""

import math
from dataclasses import dataclass
from typing import Any

Z = 1.959964  # of a normal distribution, for 95%


@dataclass(frozen=True)
class RunningMean:
    """
    num_queries: queries that have a share.
    total: sum of their shares.
    """

    num_queries: int = 0
    total: float = 0.0

    def plus(self, share: float) -> "RunningMean":
        """With the share of one more query, in [0, 1]."""
        return RunningMean(self.num_queries + 1, self.total + share)

    @property
    def mean(self) -> float | None:
        """None without a query."""
        return self.total / self.num_queries if self.num_queries else None

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return self._end(-1)

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return self._end(1)

    def _end(self, sign: int) -> float | None:
        mean, n = self.mean, self.num_queries
        if mean is None:
            return None
        spread = Z * math.sqrt(max(mean * (1 - mean), 0.0) / n + Z**2 / (4 * n**2))
        return min(max((mean + Z**2 / (2 * n) + sign * spread) / (1 + Z**2 / n), 0.0), 1.0)

    def to_dict(self, name: str) -> dict[str, Any]:
        """Return what `/v1/index` says, the mean by this name."""
        return {"num_queries": self.num_queries, name: self.mean, "low": self.low, "high": self.high}
