"""Budget of a query: what it does with calls of the heavy ranker, once an index has named candidates.

    calls  =  |S_I| for the query's own embedding (RBE; 0 for a dual encoder)  +  the rest, on the best candidates

The rest is spent in one round, or in several: the scores of a round correct the query's vector (`axn`), and the next
round searches with it among what is not scored yet. The answer is the best of all items whose score is known, supports
that were found included.

Source: RBE, Section 5, Tables 3 to 6; Yadav et al., 2024.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from rails_ray.reranking.axn import Correction

AXN_RIDGE = 0.1  # lambda of items of length 1: of .01, .1 and 1 the best on molecules (jobs.benches.rbe_models)
SMALLEST = 1e-12  # a ridge must be above 0, also for items of length 0


class FoundItem(NamedTuple):
    """An item that the index found.

    row: its row in the corpus.
    estimated: its score by the index.
    vector: its vector [D]; None if nobody needs it.
    fields: its attributes; None if nobody needs them.
    """

    row: int
    item_id: Any
    title: str | None
    text: str
    estimated: float
    vector: Float[ndarray, " D"] | None = None
    fields: Mapping[str, Any] | None = None


class RankedItem(NamedTuple):
    """An item and the score by which it is answered."""

    item: FoundItem
    score: float


@dataclass
class Spending:
    """One query's budget, while it is spent.

    left: calls that are left.
    used: calls that the ranker has answered.
    supports: scores that are known already, by item id; they cost no further call.
    has_units: whether the index estimates in the units of the ranker's scores.
    reason: why not all was spent; None otherwise.
    found: what the index found at first, best first.
    ranked: what has a score of the ranker.
    """

    left: int
    used: int = 0
    supports: Mapping[Any, float] = field(default_factory=dict)
    has_units: bool = True
    reason: str | None = None
    found: list[FoundItem] = field(default_factory=list)
    ranked: list[RankedItem] = field(default_factory=list)
    _free: list[RankedItem] = field(default_factory=list)  # supports that this round found
    _correction: Correction | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is to be asked."""
        return self.left == 0 or self.reason is not None

    def choose(self, found: Sequence[FoundItem], num_calls: int) -> list[FoundItem]:
        """The best items to be scored next, `num_calls` at most. Supports cost nothing: all that were found are taken
        with the score that is known, once the ranker has answered.

        Args:
            found: what the index found, best first, none of it scored yet.
        """
        chosen = list[FoundItem]()
        self._free = []
        for item in found:
            if item.item_id in self.supports:
                self._free.append(RankedItem(item, self.supports[item.item_id]))
            elif len(chosen) < min(num_calls, self.left):
                chosen.append(item)
        return chosen

    def learn(self, chosen: Sequence[FoundItem], scores: Float[ndarray, " N"]) -> None:
        """Take the ranker's scores of what `choose` gave. If that was nothing, nothing is left to be scored."""
        self.left = self.left - len(chosen) if chosen else 0
        self.used += len(chosen)
        scored = [RankedItem(item, float(score)) for item, score in zip(chosen, scores, strict=True)]
        self._learn([*self._free, *scored])

    def stop(self, reason: str) -> None:
        """Spend nothing more."""
        self.reason = reason

    def correction(self) -> Float[ndarray, " D"] | None:
        """Return what to add to the query's vector; None if nothing is known."""
        return None if self._correction is None else self._correction.vector()[0].float().numpy()

    def _learn(self, ranked: Sequence[RankedItem]) -> None:
        self.ranked += ranked
        if not ranked:
            return
        vectors = [one.item.vector for one in ranked if one.item.vector is not None]
        if not vectors:
            return
        learned = torch.from_numpy(np.stack(vectors))
        if self._correction is None:
            ridge = AXN_RIDGE * float(learned.double().square().sum(dim=1).mean())
            self._correction = Correction(1, learned.shape[1], max(ridge, SMALLEST), has_units=self.has_units)
        pairs = torch.tensor([(one.item.estimated, one.score) for one in ranked], dtype=torch.float64)
        self._correction.learn(learned[None], pairs[None, :, 0], pairs[None, :, 1])

    def answer(self, k: int) -> tuple[list[RankedItem], bool]:
        """The k best items, and whether they are the ranker's. If it scored fewer than k, the order is the index's."""
        if len(self.ranked) >= min(k, len(self.found)) and self.ranked:
            best = sorted(self.ranked, key=lambda one: (-one.score, one.item.row))
            return best[:k], True
        return [RankedItem(item, item.estimated) for item in self.found[:k]], False


def split(calls: int, rounds: int) -> list[int]:
    """Calls of each round: sizes differ by at most one, none is 0."""
    size, larger = divmod(calls, rounds)
    return [size + (number < larger) for number in range(rounds) if size or number < larger]
