"""The temperature of a query, tau_q: small where relevant items score close together, large where they spread.

    tau_q = lowest * (highest / lowest)^sigmoid(w . SiLU(W q + b) + c)

Without a hidden layer it is one learnt temperature for all queries, sigmoid(c) in the exponent.

Source: pEBR, Section 2.4, which asks for a positive tau_q and gives no form. Bounded on both sides and even in its
logarithm, the head can neither make the loss's logits overflow nor switch a query off.

Axes: B queries, D width of a representation.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class TemperatureConfig:
    """Bounds and size of the head of tau_q.

    Args:
        lowest: smallest tau_q, above 0.
        highest: largest tau_q, above `lowest`.
        hidden: width of the head's hidden layer; 0 for one temperature, the same for all queries.
    """

    lowest: float = 0.005
    highest: float = 0.2
    hidden: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.lowest < self.highest:
            raise ValueError(f"lowest must be above 0 and below highest, got {self.lowest} and {self.highest}")
        if self.hidden < 0:
            raise ValueError(f"hidden must be at least 0, got {self.hidden}")


class TemperatureHead(nn.Module):
    """Representation of a query -> tau_q."""

    def __init__(self, width: int, config: TemperatureConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden = nn.Linear(width, config.hidden) if config.hidden else None
        self.output = nn.Linear(config.hidden, 1) if config.hidden else None
        self.shared = None if config.hidden else nn.Parameter(torch.zeros(1))
        if self.output is not None:
            nn.init.zeros_(self.output.weight)  # all queries begin with the temperature in the middle
            nn.init.zeros_(self.output.bias)

    def forward(self, representation: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        if self.shared is not None:
            inner = self.shared.expand(len(representation))
        else:
            assert self.hidden is not None
            assert self.output is not None
            inner = self.output(F.silu(self.hidden(representation))).squeeze(1)
        return self.config.lowest * torch.exp(torch.sigmoid(inner) * math.log(self.config.highest / self.config.lowest))
