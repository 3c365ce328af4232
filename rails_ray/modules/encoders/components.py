"""From a representation to the components that a similarity compares, and to the vectors that its gate reads.

    f(q) = scaled(W GLU(q))  [P_Q, d]        u(q) = two layers, SiLU between  [P]
    g(x) = scaled(W x)       [P_X, d]        v(x) = two layers, SiLU between  [P]; 1 in a gate that does not read it

with GLU(q) = (A q + a) * sigmoid(B q + b). By default scaled(v) = v / max(|v|, 1e-6), so that components have length 1
and are compared by cosines; with lengths `at_most_one` it is v / max(|v|, 1), so that an item that is rarely the answer
may be short, and score low for every query.

Components may also be given: an item's representation then is its P_X vectors, a query's its only one, or its P_Q
vectors, whose gate alone is trained. In a model of histories the only component of an item may be its embedding, and
that of a query what the encoder gives.

Source: RAILS, Section 2 and Figure 1; the widths of its public configurations.

Axes: B queries, X items, D width of a representation, P_Q / P_X components, P = P_Q * P_X, d width of a component.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.kernels.unit import unit
from rails_ray.modules.encoders.temperature import TemperatureConfig, TemperatureHead
from rails_ray.modules.similarities.states import ItemState, QueryState

Made = Literal["projected", "given"]
Lengths = Literal["one", "at_most_one"]
LENGTHS = ("one", "at_most_one")
SMALL = 0.1  # of the weights that torch begins with
SHORTEST_LENGTH = 1e-6  # below it a vector is noise, and is not scaled up to length 1


@dataclass(frozen=True, kw_only=True)
class ComponentsConfig:
    """How components and gates are made.

    Args:
        queries: `projected` from the representation; `given`, for one component that is the representation itself, or
            for the several vectors that it is made of.
        items: likewise; `given` for the vectors that the representation is made of.
        lengths: of components; `one` for cosines, `at_most_one` for inner products in [-1, 1].
        width: width d of each component; of given ones, the vectors' own.
        query_hidden: width of the GLU on the query's side; 0 for a linear map, as on the item's side.
        gate_hidden: hidden width of u and v, the query's and the item's part of the gate.
    """

    queries: Made = "projected"
    items: Made = "projected"
    lengths: Lengths = "one"
    width: int = 64
    query_hidden: int = 512
    gate_hidden: int = 128

    def __post_init__(self) -> None:
        if self.queries == "given" and self.items == "projected":
            raise ValueError(
                "components.queries must be projected where components.items are projected, got given: set both to "
                "given, or both to projected"
            )
        if self.lengths not in LENGTHS:
            raise ValueError(f"lengths must be one of {', '.join(LENGTHS)}, got {self.lengths!r}")
        for name, least in (("width", 1), ("query_hidden", 0), ("gate_hidden", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def shortest(self) -> float:
        """The length up to which a component is not scaled up."""
        return 1.0 if self.lengths == "at_most_one" else SHORTEST_LENGTH


class QueryComponents(nn.Module):
    """Representation of a query -> `QueryState`. A single pair of components needs no gate, and gets none.

    Args:
        width: D.
        own_width: if above 0, the last numbers of a representation are a component as they are, the last one.
        gate_reads: whether the gate reads the query; u is 1 if not.
    """

    def __init__(
        self,
        width: int,
        num_components: tuple[int, int],
        config: ComponentsConfig,
        temperature: TemperatureConfig,
        own_width: int = 0,
        gate_reads: bool = True,
    ) -> None:
        super().__init__()
        self.num_query_components, num_item_components = num_components
        self.shortest = config.shortest
        self.own_width = own_width
        width -= own_width
        num_pairs = self.num_query_components * num_item_components
        self.num_projected = self.num_query_components - (own_width > 0)
        self.hidden = nn.Linear(width, 2 * config.query_hidden) if config.query_hidden else None
        self.project = nn.Linear(config.query_hidden or width, self.num_projected * config.width)
        self.gate = _gate(width, num_pairs, config, gate_reads)
        self.temperature = TemperatureHead(width, temperature)

    def forward(self, representation: Float[Tensor, "B D"]) -> QueryState:
        representation, own = representation.tensor_split([representation.shape[1] - self.own_width], dim=1)
        hidden = representation if self.hidden is None else F.glu(self.hidden(representation))
        components = self.project(hidden).unflatten(1, (self.num_projected, -1))
        if self.own_width:
            components = torch.cat([components, own.unsqueeze(1)], dim=1)
        return QueryState(
            components=unit(components, self.shortest),
            gate=None if self.gate is None else self.gate(representation),
            temperature=self.temperature(representation),
        )


class ItemComponents(nn.Module):
    """Representation of an item -> `ItemState`.

    Args:
        width: D.
        gate_reads: whether the gate reads the item; v is 1 if not.
    """

    def __init__(
        self, width: int, num_components: tuple[int, int], config: ComponentsConfig, gate_reads: bool = True
    ) -> None:
        super().__init__()
        num_query_components, self.num_item_components = num_components
        self.shortest = config.shortest
        num_pairs = num_query_components * self.num_item_components
        self.project = nn.Linear(width, self.num_item_components * config.width)
        self.gate = _gate(width, num_pairs, config, gate_reads)

    def forward(self, representation: Float[Tensor, "X D"]) -> ItemState:
        components = self.project(representation).unflatten(1, (self.num_item_components, -1))
        components = unit(components, self.shortest)
        return ItemState(
            components=components,
            gate=None if self.gate is None else self.gate(representation),
            average=components.mean(dim=-2),
        )


class GivenQueries(nn.Module):
    """Representation of a query -> `QueryState` of one component, the representation scaled to length 1. Every query
    has the same tau_q.

    Args:
        shortest: as of `unit`; 1 if shorter ones stay as they are.
    """

    def __init__(self, temperature: TemperatureConfig, shortest: float = 0.0) -> None:
        super().__init__()
        self.shortest = shortest
        middle = math.sqrt(temperature.lowest * temperature.highest)
        self.temperature = nn.Parameter(torch.tensor(middle), requires_grad=False)

    def forward(self, representation: Float[Tensor, "B D"]) -> QueryState:
        components = unit(representation, self.shortest).unsqueeze(1)
        return QueryState(components, None, self.temperature.expand(len(representation)).clone())


class GatedQueries(nn.Module):
    """Representation of a query, its vectors one after the other -> `QueryState` of their directions.

    Args:
        widths: numbers of each vector.
        gate_reads: as in `QueryComponents`.
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_components: tuple[int, int],
        config: ComponentsConfig,
        temperature: TemperatureConfig,
        gate_reads: bool = True,
    ) -> None:
        super().__init__()
        self.widths, self.width = widths, config.width
        self.gate = _gate(sum(widths), math.prod(num_components), config, gate_reads)
        self.temperature = TemperatureHead(sum(widths), temperature)

    def forward(self, representation: Float[Tensor, "B E"]) -> QueryState:
        return QueryState(
            components=unit(_apart(representation, self.widths, self.width)),
            gate=None if self.gate is None else self.gate(representation),
            temperature=self.temperature(representation),
        )


class GivenItems(nn.Module):
    """Representation of an item, its vectors one after the other -> `ItemState` of these, scaled to length 1.

    Args:
        gate_reads: as in `ItemComponents`.
        widths: numbers of each vector; empty if all have one width.
        shortest: as in `GivenQueries`.
    """

    def __init__(
        self,
        width: int,
        num_components: tuple[int, int],
        config: ComponentsConfig,
        gate_reads: bool = True,
        widths: Sequence[int] = (),
        shortest: float = 0.0,
    ) -> None:
        super().__init__()
        num_query_components, self.num_item_components = num_components
        self.widths = widths or [width // self.num_item_components] * self.num_item_components
        self.width = config.width if widths else self.widths[0]
        self.shortest = shortest
        num_pairs = num_query_components * self.num_item_components
        self.gate = _gate(width, num_pairs, config, gate_reads)

    def forward(self, representation: Float[Tensor, "X E"]) -> ItemState:
        components = unit(_apart(representation, self.widths, self.width), self.shortest)
        return ItemState(
            components=components,
            gate=None if self.gate is None else self.gate(representation),
            average=components.mean(dim=-2),
        )


def _apart(representation: Float[Tensor, "N E"], widths: Sequence[int], width: int) -> Float[Tensor, "N P d"]:
    """The vectors of a representation, each followed by zeros up to one width."""
    if min(widths) == width:
        whole: Tensor = representation.unflatten(1, (len(widths), width))
        return whole
    vectors = representation.split(list(widths), dim=1)
    return torch.stack([F.pad(own, (0, width - own.shape[1])) for own in vectors], dim=1)


def start_as_cosines(project: nn.Linear) -> None:
    """Let a projection begin as a rotation: cosines of what it projects are those of its inputs, as far as it is wide
    enough."""
    nn.init.orthogonal_(project.weight)
    nn.init.zeros_(project.bias)


def start_as_copies(project: nn.Linear, num_components: int) -> None:
    """Let every component begin as the input itself, as far as both are wide enough."""
    blocks = project.weight.detach().unflatten(0, (num_components, -1))
    blocks.copy_(torch.eye(*blocks.shape[1:]).expand_as(blocks))
    nn.init.zeros_(project.bias)


def start_small(gate: nn.Module) -> None:
    """Let u or v begin small, so that the gate begins as its bias says."""
    if isinstance(gate, nn.Sequential):
        for parameter in gate[-1].parameters():
            parameter.data.mul_(SMALL)


class _Ones(nn.Module):
    """The part of a gate that does not read its side."""

    def __init__(self, num_pairs: int) -> None:
        super().__init__()
        self.num_pairs = num_pairs

    def forward(self, representation: Float[Tensor, "N D"]) -> Float[Tensor, "N P"]:
        return representation.new_ones(len(representation), self.num_pairs)


def _gate(width: int, num_pairs: int, config: ComponentsConfig, reads: bool) -> nn.Module | None:
    if num_pairs == 1:
        return None
    if not reads:
        return _Ones(num_pairs)
    return nn.Sequential(nn.Linear(width, config.gate_hidden), nn.SiLU(), nn.Linear(config.gate_hidden, num_pairs))
