"""Cut-offs: how many of the items found are worth returning, decided per query.

| member          | paper                                                                                      |
|-----------------|--------------------------------------------------------------------------------------------|
| `distributions` | pEBR, Section 2.4 and Appendix A: the score of a relevant item as a random variable        |
| `policies`      | pEBR, Section 3: `mass`, `score`, `top_k`; and what they lack: `coverage`, `nucleus` ... |
| `calibration`   | what `coverage` rests on: held-out positives; the default mass                             |
| `segments`      | which calibration queries count for a new one, by tau_q                                    |
| `measuring`     | how much a calibration covers on other queries                                             |
| `temperatures`  | the factor on tau_q that fits held-out positives, for `mass`, `nucleus`, `probability`     |
| `tuning`        | which kind and value has the highest F-beta                                                |
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Decision(NamedTuple):
    """
    threshold: the lowest score that is kept [B]; -inf if scores do not decide.
    is_open: if all items of a list are kept, whether one below its end might be kept as well [B].
    """

    threshold: NDArray[np.float64]
    is_open: NDArray[np.bool_]


@runtime_checkable
class Cutoff(Protocol):
    """Decides which scores are high enough; `policies.cut` applies it."""

    @property
    def min_items(self) -> int:
        """At least so many items are kept, whatever their scores."""

    @property
    def max_items(self) -> int | None:
        """At most so many items are kept, whatever their scores; None for no limit."""

    @property
    def num_wanted(self) -> int | None:
        """A number of items that is enough, whatever scores the others have; None if scores decide."""

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """A score [B] known before the search: no item that scores below it is kept, `min_items` aside.

        Args:
            temperature: tau_q of each query [B].
        """

    def decide(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> Decision:
        """Which scores are high enough.

        Args:
            scores: found for each query [B, k], descending, -inf where nothing was.
        """
