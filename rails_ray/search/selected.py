"""Some items of a corpus as if there were no others, read from it block by block, so that memory has them once.

Axes: X items of the corpus, N of them that are selected.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.modules.similarities.states import ItemState, Lines, Searched


@dataclass(frozen=True)
class Selected:
    """The contract of `Searched`.

    rows: of the items, ascending.
    """

    items: Searched
    rows: Int[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_components(self) -> int:
        return self.items.num_components

    @property
    def width(self) -> int:
        return self.items.width

    @property
    def dtype(self) -> torch.dtype:
        return self.items.dtype

    @property
    def has_gate(self) -> bool:
        return self.items.has_gate

    @property
    def most_at_once(self) -> int:
        return self.items.most_at_once

    @property
    def in_place(self) -> None:
        """The contract of `Searched`: only the corpus is there."""
        return None

    @property
    def surrogate(self) -> Float[Tensor, "N D"] | None:
        return self._of_rows(self.items.surrogate)

    def taken(self, rows: Lines) -> ItemState:
        return self.items.taken(self.rows[rows])

    def vectors(self, component: int | None) -> Float[Tensor, "N d"] | None:
        return self._of_rows(self.items.vectors(component))

    def together(self) -> Float[Tensor, "N _"] | None:
        return self._of_rows(self.items.together())

    def _of_rows(self, vectors: Tensor | None) -> Tensor | None:
        return None if vectors is None else vectors.index_select(0, self.rows)
