"""Bytes of an item, and the arithmetic of a pair of query and item. The formulas stand in `rails_ray.cli.planning`."""

from dataclasses import dataclass

DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}  # bytes of a number
GATE_BYTES = 4  # v(x) is float32 whatever the components are
LOOKUP_BYTES = 16  # a key and a row, by which a shard finds an id


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Components of queries and items, and the gate that mixes them. One pair of components needs no gate.

    Args:
        num_query_components: P_Q.
        num_item_components: P_X.
        width: d of each component.
        dtype: of components and their average, in memory.
        gate_hidden: hidden width H of the part of the gate that reads the cosines.
    """

    num_query_components: int = 8
    num_item_components: int = 4
    width: int = 64
    dtype: str = "fp32"
    gate_hidden: int = 128

    def __post_init__(self) -> None:
        for name in ("num_query_components", "num_item_components", "width", "gate_hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")

    @property
    def num_pairs(self) -> int:
        """P."""
        return self.num_query_components * self.num_item_components

    @property
    def vector_bytes(self) -> int:
        """Bytes of one component."""
        return self.width * DTYPES[self.dtype]

    @property
    def columns(self) -> dict[str, int]:
        """Bytes of an item in each column of its state."""
        columns = {"components": self.num_item_components * self.vector_bytes}
        if self.num_item_components > 1:
            columns["average"] = self.vector_bytes
        if self.num_pairs > 1:
            columns["gate"] = self.num_pairs * GATE_BYTES
        return columns

    @property
    def state_bytes(self) -> int:
        """Bytes of an item's state."""
        return sum(self.columns.values())

    @property
    def scored_bytes(self) -> int:
        """Bytes of an item that its score reads: all but the average."""
        return self.state_bytes - self.columns.get("average", 0)

    @property
    def pair_flops(self) -> int:
        """Floating-point operations of the matrix products of one pair of query and item."""
        gate = 4 * self.num_pairs * self.gate_hidden if self.num_pairs > 1 else 0
        return 2 * self.num_pairs * self.width + gate

    @property
    def pair_functions(self) -> int:
        """Special functions (exp, tanh) of one pair of query and item."""
        return self.gate_hidden + 2 * self.num_pairs if self.num_pairs > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Names:
    """Ids and titles.

    Args:
        id_bytes: bytes of an item id in storage: 8 for an integer, the length and 4 for a string.
        title_bytes: bytes of a title in storage: its length and 4; 0 without titles.
    """

    id_bytes: int = 8
    title_bytes: int = 36

    def __post_init__(self) -> None:
        if self.id_bytes < 1:
            raise ValueError(f"id_bytes must be at least 1, got {self.id_bytes}")
        if self.title_bytes < 0:
            raise ValueError(f"title_bytes must be at least 0, got {self.title_bytes}")

    @property
    def stored_bytes(self) -> int:
        """Bytes of an item's id and title in storage."""
        return self.id_bytes + self.title_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of an item's id and title in a shard."""
        return self.stored_bytes + LOOKUP_BYTES
