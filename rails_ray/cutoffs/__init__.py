"""Cut-offs: how many of the items found are worth returning, decided per query.

| member          | paper                                                              |
|-----------------|--------------------------------------------------------------------|
| `distributions` | pEBR, Section 2.4: the score of a relevant item as a random variable |
| `policies`      | pEBR, Section 3: `mass`, beside fixed `score` and `top_k`          |
| `calibration`   | choose the default mass on held-out queries                        |
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Cutoff(Protocol):
    """Decides from the query alone which scores are high enough."""

    @property
    def max_items(self) -> int | None:
        """At most so many items are kept, whatever their scores; None for no limit."""

    def threshold(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """The lowest score [B] that is kept, for tau_q [B] of each query; -inf keeps all."""
