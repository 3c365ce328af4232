"""Items whose components are codes, decoded a block at a time for a search by components.

Components are read back in the space that the rotation turns to, R x~, where a turned query R f has the same inner
products with them; so nothing is turned back. What is longer than 1 is shortened, where no component is,

    shortened(x~) = x~ / max(|x~|, 1)

which brings it nearer to x, and keeps scores in [-1, 1].

Axes: X items, P_X item components, d width of a component, M subspaces of all components, V component.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from rails_ray.kernels import lookup_scan
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.modules.similarities.states import ItemState, Lines

NUMBERS_AT_ONCE = 2**20  # 4 MB


@dataclass(frozen=True)
class ReadBack:
    """The contract of `Searched`.

    codes: one codeword a byte, of all components.
    gate: the items' part of the gate's input; None if the similarity has no gate.
    longest: length that no component exceeds.
    """

    quantizer: ProductQuantizer
    codes: UInt8[Tensor, "X M"]
    gate: Float[Tensor, "X P"] | None
    num_components: int
    longest: float = 1.0

    surrogate: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def width(self) -> int:
        """d."""
        return self.quantizer.width // self.num_components

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the components."""
        return self.quantizer.codebooks.dtype

    @property
    def has_gate(self) -> bool:
        """Return whether items have their part of the gate's input."""
        return self.gate is not None

    @property
    def most_at_once(self) -> int:
        """Items to read back at a time, so that they stay in the cache."""
        return max(NUMBERS_AT_ONCE // self.quantizer.width, 1)

    @property
    def in_place(self) -> None:
        """The contract of `Searched`: codes alone are there."""
        return None

    def taken(self, rows: Lines) -> ItemState:
        """Some items."""
        codes, gate = _lines(self.codes, rows), None if self.gate is None else _lines(self.gate, rows)
        components = self.quantizer.decode_rotated(codes).unflatten(-1, (self.num_components, -1))
        return ItemState(shortened(components, self.longest), gate, None)

    def vectors(self, component: int | None) -> None:
        """None: indexes of codes stand for the vectors."""

    def together(self) -> None:
        """None, too."""


def shortened(components: Float[Tensor, "*X P_X d"], longest: float = 1.0) -> Float[Tensor, "*X P_X d"]:
    """Vectors of at most that length."""
    if longest == float("inf"):
        return components
    lengths: Tensor = components.norm(dim=-1, keepdim=True).clamp(min=longest)
    return components / (lengths / longest)


def decoded(
    quantizer: ProductQuantizer,
    codes: UInt8[Tensor, "X M"],
    num_components: int,
    gate: Float[Tensor, "X P"] | None,
    longest: float = 1.0,
) -> ItemState:
    """All items as a similarity scores them, not turned; no component is longer than `longest`."""
    components = shortened(quantizer.decode(codes).unflatten(1, (num_components, -1)), longest)
    return ItemState(components, gate, components.mean(dim=1))


def excess(
    quantizer: ProductQuantizer, codes: UInt8[Tensor, "X M"], num_components: int, longest: float = 1.0
) -> Float[Tensor, "X P_X"]:
    """By how much each decoded component is longer than `longest`: a look-up differs from the score of the shortened
    one by at most this."""
    squares = quantizer.codebooks.square().sum(dim=2)[None]  # as tables of one query
    of_parts = [
        lookup_scan.scores(squares[:, place], codes[:, place].contiguous())[0]
        for place in torch.arange(quantizer.num_subspaces).chunk(num_components)
    ]
    lengths: Tensor = torch.stack(of_parts, dim=1).sqrt()
    return (lengths - longest).clamp(min=0)


def of_component(quantizer: ProductQuantizer, num_components: int, component: int) -> tuple[ProductQuantizer, slice]:
    """The quantizer of one of an item's components, and where its codes stand among all."""
    size = quantizer.num_subspaces // num_components
    own = slice(component * size, (component + 1) * size)
    parts = {name: getattr(quantizer, name)[own] for name in ("codebooks", "selectors", "biases")}
    return replace(quantizer, **parts), own


def _lines(tensor: Tensor, rows: Lines) -> Tensor:
    if isinstance(rows, Tensor):
        taken: Tensor = tensor.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        return taken
    return tensor[rows]
