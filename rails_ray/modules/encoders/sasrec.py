"""SASRec: a causal transformer over the items of a history; what it says at a position is compared with the next item.

    h_t^0     = E[x_t] * sqrt(D) + P[t]                             dropout
    h^{l+1/2} = h^l + Attention(LayerNorm(h^l))                     each position sees itself and those before it
    h^{l+1}   = h^{l+1/2} + FFN(LayerNorm(h^{l+1/2}))               FFN: two layers of width D, ReLU between
    query     = LayerNorm(h^L_t),   item x = E[x]

Source: Kang and McAuley, Self-Attentive Sequential Recommendation (RAILS, Section 5.1, takes it as a backbone).
Differs from the source: keys and values are normalised as queries are; histories are padded at their end.

Axes: B histories, T positions, D width.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.allowed_code import AllowedCode
from rails_ray.modules.encoders.histories import Histories, HistoryConfig, HistoryEncoder
from rails_ray.modules.encoders.transformer import Block, LigrBlock

LAYERS = ("transformer", "ligr")


@dataclass(frozen=True, kw_only=True)
class SasrecConfig(HistoryConfig):
    """Sizes of the transformer; see `HistoryConfig`.

    Args:
        layers: `transformer` for the blocks above, `ligr` for gated ones with a SwiGLU (eSASRec).
        swiglu_factor: width of the SwiGLU's hidden layer, in multiples of `width`.
    """

    kind: Literal["sasrec"] = "sasrec"
    layers: Literal["transformer", "ligr"] = "transformer"
    swiglu_factor: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in LAYERS:
            raise ValueError(f"layers must be one of {', '.join(LAYERS)}, got {self.layers!r}")
        if self.swiglu_factor < 1:
            raise ValueError(f"swiglu_factor must be at least 1, got {self.swiglu_factor}")

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "Sasrec":
        return Sasrec(self, width)


class Sasrec(HistoryEncoder):
    """Histories by a causal transformer."""

    def __init__(self, config: SasrecConfig, own_width: int = 0) -> None:
        super().__init__(config, own_width)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.num_blocks))
        self.norm = nn.LayerNorm(config.width)

    def hidden(self, inputs: Float[Tensor, "B T D"], features: Histories) -> Float[Tensor, "B T D"]:
        for block in self.blocks:
            inputs = block(inputs)
        found: Tensor = self.norm(inputs)
        return found


def _block(config: SasrecConfig) -> Block:
    if config.layers == "ligr":
        return LigrBlock(config.width, config.num_heads, config.swiglu_factor * config.width, config.dropout)
    return Block(config.width, config.num_heads, config.width, nn.ReLU(), config.dropout)
