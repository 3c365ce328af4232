"""Cut-offs: how many of the items found are worth returning, decided per query.

| member          | paper                                                                                      |
|-----------------|--------------------------------------------------------------------------------------------|
| `distributions` | pEBR, Section 2.4 and Appendix A: the score of a relevant item as a random variable        |
| `policies`      | pEBR, Section 3: `mass`, `score`, `top_k`; and what they lack: `coverage`, `nucleus` ... |
| `calibration`   | what `coverage` rests on: held-out positives; the default mass                             |
| `measuring`     | how much a calibration covers on other queries                                             |
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


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
        """A number of items that is enough, whatever scores the others have; None where scores decide."""

    def floor(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """What can be said before the search: no item that scores below it [B] is kept, `min_items` aside.

        Args:
            temperature: tau_q of each query [B].
        """

    def threshold(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """The lowest score [B] that is kept; -inf where the scores do not decide.

        Args:
            scores: found for each query [B, k], descending, -inf where nothing was.
        """

    def is_open(self, scores: NDArray[np.floating], temperature: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Whether an item below the end of a list whose items are all kept might be kept as well [B].

        Args:
            scores: as of `threshold`.
        """
