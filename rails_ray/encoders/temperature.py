"""The temperature of a query, tau_q: small where relevant items score close together, large where they spread.

    tau_q = lowest * (highest / lowest)^sigmoid(w . q + b)

Source: pEBR, Section 2.4, which asks for a positive tau_q and gives no form. Bounded on both sides and even in its
logarithm, the head can neither make the loss's logits overflow nor switch a query off.

Axes: B queries, D width of a representation.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class TemperatureConfig:
    """lowest, highest: bounds of tau_q, 0 < lowest < highest."""

    lowest: float = 0.01
    highest: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.lowest < self.highest:
            raise ValueError(f"lowest must be above 0 and below highest, got {self.lowest} and {self.highest}")


class TemperatureHead(nn.Module):
    """Representation of a query -> tau_q."""

    def __init__(self, width: int, config: TemperatureConfig) -> None:
        super().__init__()
        self.config = config
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, representation: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        share = torch.sigmoid(self.linear(representation)).squeeze(1)
        return self.config.lowest * torch.exp(share * math.log(self.config.highest / self.config.lowest))
