"""How far live queries are from those that calibrated: cut-offs hold for queries like these.

    distance = max_t |F(t) - F_calibration(t)|          F: share of queries whose tau_q is at most t

the Kolmogorov-Smirnov distance of tau_q, which is all that a calibrated cut-off reads of a query. p is the probability
of such a distance, or a longer one, if live queries were like those that calibrated.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 1000  # live queries that are compared, the newest
EVERY = 100  # live queries between two comparisons


@dataclass(frozen=True)
class Distance:
    """
    num_queries: live queries that were compared.
    distance, p: as above; None before the first comparison.
    """

    num_queries: int = 0
    distance: float | None = None
    p: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what `/v1/index` says."""
        return {"num_queries": self.num_queries, "distance": self.distance, "p": self.p}


class Drift:
    """
    Args:
        calibrated: tau_q of the calibration queries [Q]; None if there are none, or tau_q is not trained.
        on_distance: called after each comparison.
    """

    def __init__(
        self, calibrated: NDArray[np.floating] | None, on_distance: Callable[[Distance], None] = lambda _: None
    ) -> None:
        self._calibrated, self._on_distance = calibrated, on_distance
        self._lock = threading.Lock()
        self._newest, self._num_seen = deque[float](maxlen=WINDOW), 0
        self.found = Distance()

    def seen(self, temperature: float | None) -> None:
        """Take note of the tau_q of a live query; answers are written in several threads."""
        if self._calibrated is None or temperature is None:
            return
        with self._lock:
            self._newest.append(temperature)
            self._num_seen += 1
            if self._num_seen % EVERY == 0:
                from scipy import stats  # 46 MB, which most servers never need

                compared = stats.ks_2samp(np.array(self._newest), self._calibrated, method="asymp")
                self.found = Distance(len(self._newest), float(compared.statistic), float(compared.pvalue))
                self._on_distance(self.found)
