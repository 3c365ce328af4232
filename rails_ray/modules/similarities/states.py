"""States that encoding leaves behind: the tensors that a similarity compares and an index stores.

They lie below encoders, which make them, below retrieval, which stores and searches them, and below similarities, which
score them.

There are two kinds. Components are vectors, compared by inner products. Tables and codes are compared by looking up:
a query has a table of numbers, an item a code of small integers that says which of them are its own.

An item state says what an index stores of it (`columns`), and can be made again from that (`from_columns`).

Axes: B queries, X items, C candidates, P_Q / P_X components, P = P_Q * P_X, d width of a component, D of a surrogate;
M parts of a code (subspaces of a product quantizer, chunks of SOLAR), L entries of a table for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int, Integer, UInt8
from torch import Tensor


class AnyQuery(ABC):
    """A batch of encoded queries, of whatever kind: a dataclass of tensors, one line per query."""

    kind: ClassVar[str]
    stays_on_host: ClassVar[bool] = False
    """True if a search reads it in the host's memory, also where the items are on a GPU."""

    temperature: Float[Tensor, " B"]
    """tau_q > 0 of each query; 1 if none is trained."""

    @abstractmethod
    def __len__(self) -> int:
        """B."""

    def vectors(self) -> Float[Tensor, "B d"]:
        """The vectors of queries that are one vector each.

        Raises:
            ValueError: if they are not.
        """
        raise ValueError(f"queries must be one vector each, got {self.kind}")

    def by_vectors(self, vectors: Float[Tensor, "B d"]) -> "AnyQuery":
        """Replace the vectors; raises what `vectors` does."""
        raise ValueError(f"queries must be one vector each, got {self.kind}")


class AnyItems(ABC):
    """Encoded items, of whatever kind: a dataclass of tensors, one line per item."""

    kind: ClassVar[str]

    @property
    def num_components(self) -> int:
        """P_X of the similarity that compares them; 1 if items have no components."""
        return 1

    @abstractmethod
    def __len__(self) -> int:
        """X."""

    @abstractmethod
    def columns(self) -> dict[str, Tensor]:
        """Return what an index stores of each item, by name."""

    @staticmethod
    @abstractmethod
    def from_columns(columns: Mapping[str, Tensor]) -> "AnyItems":
        """Read the items from their columns.

        Raises:
            KeyError: if a column is missing.
        """


@dataclass(frozen=True)
class QueryState(AnyQuery):
    """A batch of encoded queries.

    components: f_p(q), each of length 1, or at most 1.
    gate: u(q), the query's part of the gate's input; None if the similarity has no gate.
    temperature: tau_q > 0 of pEBR.
    """

    kind: ClassVar[str] = "components"

    components: Float[Tensor, "B P_Q d"]
    gate: Float[Tensor, "B P"] | None
    temperature: Float[Tensor, " B"]

    def __len__(self) -> int:
        return self.components.shape[0]

    @property
    def average(self) -> Float[Tensor, "B d"]:
        """The mean component."""
        return self.components.mean(dim=-2)

    def vectors(self) -> Float[Tensor, "B d"]:
        if self.components.shape[1] != 1:
            raise ValueError(f"queries must be one vector each, got {self.components.shape[1]} components")
        return self.components[:, 0]

    def by_vectors(self, vectors: Float[Tensor, "B d"]) -> "QueryState":
        return replace(self, components=vectors[:, None])


@dataclass(frozen=True)
class ItemState(AnyItems):
    """Encoded items: one line per item of a corpus [X], or one per candidate of each query [B C].

    components: g_p(x), each of length 1, or at most 1.
    gate: v(x), the item's part of the gate's input; None if the similarity has no gate.
    average: the mean component, kept because the `average` search reads nothing else; None if there is no such search.
    surrogate: the vector by which the `surrogate` search finds the item; None if there is no such search.
    """

    kind: ClassVar[str] = "components"

    components: Float[Tensor, "*X P_X d"]
    gate: Float[Tensor, "*X P"] | None
    average: Float[Tensor, "*X d"] | None
    surrogate: Float[Tensor, "*X D"] | None = None

    def __len__(self) -> int:
        return self.components.shape[0]

    @property
    def num_components(self) -> int:
        """P_X."""
        return self.components.shape[-2]

    @property
    def width(self) -> int:
        """d."""
        return self.components.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the components."""
        return self.components.dtype

    @property
    def has_gate(self) -> bool:
        """Return whether items have their part of the gate's input."""
        return self.gate is not None

    @property
    def most_at_once(self) -> int:
        """Items that `taken` gives at a time; as many as one likes, as they lie there already."""
        return max(len(self), 1)

    @property
    def in_place(self) -> "ItemState":
        """The contract of `Searched`."""
        return self

    def taken(self, rows: "Lines") -> "ItemState":
        """Some items, with all that a similarity reads."""
        return take(replace(self, average=None, surrogate=None), rows)

    def vectors(self, component: int | None) -> Float[Tensor, "X d"] | None:
        """One component of all items; None for the mean component, which they may lack."""
        return self.average if component is None else self.components[:, component]

    def together(self) -> Float[Tensor, "X _"]:
        """All components of each item, one after the other, in the memory that they lie in."""
        return self.components.flatten(start_dim=1)

    def columns(self) -> dict[str, Tensor]:
        """Return what an index stores of each item, by name. A single component is its own average, and stored once."""
        average = self.average if self.components.shape[1] > 1 else None
        found = {"components": self.components, "average": average, "gate": self.gate, "surrogate": self.surrogate}
        return {name: column for name, column in found.items() if column is not None}

    @staticmethod
    def from_columns(columns: Mapping[str, Tensor]) -> "ItemState":
        components = columns["components"]
        average = components[:, 0] if components.shape[1] == 1 else columns.get("average")
        return ItemState(components, columns.get("gate"), average, columns.get("surrogate"))


@dataclass(frozen=True)
class QuantizedItems(AnyItems):
    """Encoded items whose components are product-quantised: one line per item of a corpus.

    codes: the codewords of its components, one component after the other, as bytes; two in a byte where codebooks have
        at most 16 codewords.
    residuals: |g_p(x) - what its codes stand for|.
    gate: v(x), the item's part of the gate's input; None if the similarity has no gate.
    components, average: as in `ItemState`, if they are kept beside the codes; else None.
    lists: the inverted list of an item; None if there are none.
    """

    kind: ClassVar[str] = "quantized"

    codes: UInt8[Tensor, "*X _"]
    residuals: Float[Tensor, "*X P_X"]
    gate: Float[Tensor, "*X P"] | None = None
    components: Float[Tensor, "*X P_X d"] | None = None
    average: Float[Tensor, "*X d"] | None = None
    lists: Int[Tensor, "*X"] | None = None

    def __len__(self) -> int:
        return self.codes.shape[0]

    @property
    def num_components(self) -> int:
        """P_X."""
        return self.residuals.shape[-1]

    def columns(self) -> dict[str, Tensor]:
        """Return what an index stores of each item, by name. A single component is its own average, and stored once."""
        average = self.average if self.num_components > 1 else None
        lists = None if self.lists is None else self.lists[:, None]
        found = {"components": self.components, "average": average, "gate": self.gate, "lists": lists}
        kept = {name: column for name, column in found.items() if column is not None}
        return {"codes": self.codes, "residuals": self.residuals, **kept}

    @staticmethod
    def from_columns(columns: Mapping[str, Tensor]) -> "QuantizedItems":
        components, average = columns.get("components"), columns.get("average")
        if components is not None and components.shape[1] == 1:
            average = components[:, 0]
        lists = columns["lists"][:, 0] if "lists" in columns else None
        return QuantizedItems(columns["codes"], columns["residuals"], columns.get("gate"), components, average, lists)


@dataclass(frozen=True)
class Tables(AnyQuery):
    """A batch of queries that are compared by looking up.

    tables: what an item adds to its score if part m of its code is l.
    temperature: tau_q > 0 of pEBR; 1 if none is trained.
    """

    kind: ClassVar[str] = "tables"

    tables: Float[Tensor, "B M L"]
    temperature: Float[Tensor, " B"]

    def __len__(self) -> int:
        return self.tables.shape[0]


@dataclass(frozen=True)
class Codes(AnyItems):
    """Items by their codes, integers of any width in 0 .. L - 1."""

    kind: ClassVar[str] = "codes"

    codes: Integer[Tensor, "*X M"]

    def __len__(self) -> int:
        return self.codes.shape[0]

    def columns(self) -> dict[str, Tensor]:
        """Return what an index stores of each item, by name: int32 whatever the width of the codes."""
        return {"codes": self.codes.int()}

    @staticmethod
    def from_columns(columns: Mapping[str, Tensor]) -> "Codes":
        return Codes(columns["codes"])


State = TypeVar("State", bound=AnyQuery | AnyItems)


Lines = slice | list[int] | Tensor


@runtime_checkable
class Searched(Protocol):
    """The items that a search by components goes through: an `ItemState`, or codes that are read back as one."""

    def __len__(self) -> int: ...

    @property
    def num_components(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def has_gate(self) -> bool: ...

    @property
    def most_at_once(self) -> int:
        """Items to take at a time."""

    @property
    def in_place(self) -> ItemState | None:
        """All items as memory has them; None where `taken` makes them."""

    @property
    def surrogate(self) -> Float[Tensor, "X D"] | None:
        """Vectors that stand for scores, if there are any."""

    def taken(self, rows: Lines) -> ItemState:
        """Some items, with all that a similarity reads; rows of any shape [B C] give items of that shape."""

    def vectors(self, component: int | None) -> Float[Tensor, "X d"] | None:
        """One component of all items; None for the mean component, which they may lack."""

    def together(self) -> Float[Tensor, "X _"] | None:
        """All components of each item, one after the other, P_X * d numbers; None if these are not vectors."""


def map_tensors(function: Callable[[Tensor], Tensor], state: State) -> State:
    """`state` with `function` applied to each of its tensors (to move all alike, say)."""
    tensors = {name: getattr(state, name) for name in _names(state)}
    changed: dict[str, Any] = {name: None if value is None else function(value) for name, value in tensors.items()}
    return type(state)(**changed)


def to(state: State, device: torch.device | str) -> State:
    """`state` on another device."""
    return map_tensors(lambda tensor: tensor.to(device), state)


def on_device(items: AnyItems, device: torch.device | str) -> AnyItems:
    """`items` on another device, where a single component and its average still share their memory."""
    if torch.device(device).type == "cpu":
        return items
    return items.from_columns({name: column.to(device) for name, column in items.columns().items()})


def take(state: State, rows: Lines) -> State:
    """Some lines of a state; rows of any shape [B C] give lines of that shape."""
    if isinstance(rows, Tensor):  # index_select is more than twice as fast as indexing by a tensor
        flat, shape = rows.flatten(), rows.shape
        return map_tensors(lambda tensor: tensor.index_select(0, flat).unflatten(0, shape), state)
    return map_tensors(lambda tensor: tensor[rows], state)


def concatenate(states: list[State]) -> State:
    """The lines of several states, one after the other."""
    columns = {name: [getattr(state, name) for state in states] for name in _names(states[0])}
    joined: dict[str, Any] = {name: None if parts[0] is None else torch.cat(parts) for name, parts in columns.items()}
    return type(states[0])(**joined)


def tensors_of(state: AnyQuery | AnyItems) -> list[Tensor]:
    """The tensors that a state has, in the order of its fields."""
    columns = (getattr(state, name) for name in _names(state))
    return [column for column in columns if column is not None]


def with_tensors(state: State, tensors: Sequence[Tensor]) -> State:
    """`state` with these tensors in place of its own, in the order of `tensors_of`."""
    others = iter(tensors)
    return map_tensors(lambda _: next(others), state)


def _names(state: Any) -> list[str]:
    return [field.name for field in fields(state)]
