"""From a representation to the components that a similarity compares, and to the vectors that its gate reads.

    f(q) = normalise(W GLU(q))  [P_Q, d]        u(q) = two layers, SiLU between  [P]
    g(x) = normalise(W x)       [P_X, d]        v(x) = two layers, SiLU between  [P]

with GLU(q) = (A q + a) * sigmoid(B q + b), and lengths clamped at 1e-6 before division.

Source: RAILS, Section 2 and Figure 1; the widths of its public configurations.

Axes: B queries, X items, D width of a representation, P_Q / P_X components, P = P_Q * P_X, d width of a component.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.encoders.temperature import TemperatureConfig, TemperatureHead
from rails_ray.similarities.states import ItemState, QueryState

SHORTEST_LENGTH = 1e-6  # below it a vector is noise, and is not scaled up to length 1


@dataclass(frozen=True, kw_only=True)
class ComponentsConfig:
    """Sizes of components and gates.

    Args:
        width: width d of each component.
        query_hidden: width of the GLU on the query's side; 0 for a linear map, as on the item's side.
        gate_hidden: hidden width of u and v, the query's and the item's part of the gate.
    """

    width: int = 64
    query_hidden: int = 512
    gate_hidden: int = 128

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("query_hidden", 0), ("gate_hidden", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


class QueryComponents(nn.Module):
    """Representation of a query -> `QueryState`. A single pair of components needs no gate, and gets none."""

    def __init__(
        self, width: int, num_components: tuple[int, int], config: ComponentsConfig, temperature: TemperatureConfig
    ) -> None:
        super().__init__()
        self.num_query_components, num_item_components = num_components
        num_pairs = self.num_query_components * num_item_components
        self.hidden = nn.Linear(width, 2 * config.query_hidden) if config.query_hidden else None
        self.project = nn.Linear(config.query_hidden or width, self.num_query_components * config.width)
        self.gate = _gate(width, num_pairs, config) if num_pairs > 1 else None
        self.temperature = TemperatureHead(width, temperature)

    def forward(self, representation: Float[Tensor, "B D"]) -> QueryState:
        hidden = representation if self.hidden is None else F.glu(self.hidden(representation))
        components = self.project(hidden).unflatten(1, (self.num_query_components, -1))
        return QueryState(
            components=F.normalize(components, dim=-1, eps=SHORTEST_LENGTH),
            gate=None if self.gate is None else self.gate(representation),
            temperature=self.temperature(representation),
        )


class ItemComponents(nn.Module):
    """Representation of an item -> `ItemState`."""

    def __init__(self, width: int, num_components: tuple[int, int], config: ComponentsConfig) -> None:
        super().__init__()
        num_query_components, self.num_item_components = num_components
        num_pairs = num_query_components * self.num_item_components
        self.project = nn.Linear(width, self.num_item_components * config.width)
        self.gate = _gate(width, num_pairs, config) if num_pairs > 1 else None

    def forward(self, representation: Float[Tensor, "X D"]) -> ItemState:
        components = self.project(representation).unflatten(1, (self.num_item_components, -1))
        components = F.normalize(components, dim=-1, eps=SHORTEST_LENGTH)
        return ItemState(
            components=components,
            gate=None if self.gate is None else self.gate(representation),
            average=components.mean(dim=-2),
        )


def _gate(width: int, num_pairs: int, config: ComponentsConfig) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, config.gate_hidden), nn.SiLU(), nn.Linear(config.gate_hidden, num_pairs))
