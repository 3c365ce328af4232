"""SASRec: a causal transformer over the items of a history; what it says at a position is compared with the next item.

    h_t^0     = E[x_t] * sqrt(D) + P[t]                             dropout
    h^{l+1/2} = h^l + Attention(LayerNorm(h^l))                     each position sees itself and those before it
    h^{l+1}   = h^{l+1/2} + FFN(LayerNorm(h^{l+1/2}))               FFN: two layers of width D, ReLU between
    query     = LayerNorm(h^L_t),   item x = E[x]

Source: Kang and McAuley, Self-Attentive Sequential Recommendation (RAILS, Section 5.1, takes it as a backbone).
Differs from the source: keys and values are normalised as queries are; histories are padded at their end, where
causality hides the padding from every position that is read.

Axes: B histories, T positions, Q positions that are read, X items, D width.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.encoders.transformer import Block, dropped

INITIAL_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class SasrecConfig:
    """Sizes of the transformer.

    Args:
        width: width D of embeddings and hidden states.
        num_blocks: number L of blocks of attention and network.
        num_heads: attention heads of each block; width is a multiple of it.
        max_length: T; only the last T items of a history are read.
        dropout: share of embeddings, attention outputs and network outputs that training drops, in [0, 1).
        num_items: number X of items; 0 is replaced by the data set's when training begins.
        corpus: digest of the item ids, by which a row stays the same item. Leave it empty: training fills it in.
    """

    kind: Literal["sasrec"] = "sasrec"
    width: int = 64
    num_blocks: int = 2
    num_heads: int = 1
    max_length: int = 50
    dropout: float = 0.2
    num_items: int = 0
    corpus: str = ""

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("num_blocks", 1), ("num_heads", 1), ("max_length", 1), ("num_items", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.width % self.num_heads:
            raise ValueError(f"width must be a multiple of the {self.num_heads} heads, got {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class Histories:
    """Histories as item rows, padded at their end with any row, and the positions whose representation is asked.

    asked: b * T + t of each such position, by b.
    """

    rows: Int[Tensor, "B T"]
    asked: Int[Tensor, " Q"]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Int[Tensor, " M"]) -> "Histories":
        """Some histories; one position of each must be asked."""
        length = self.rows.shape[1]
        return Histories(self.rows[rows], self.asked[rows] % length + torch.arange(len(rows)) * length)

    def to(self, device: torch.device | str) -> "Histories":
        return Histories(self.rows.to(device), self.asked.to(device))


class Sasrec(nn.Module):
    """Histories and items to representations; both read one table of item embeddings."""

    form: Literal["history"] = "history"
    takes_representations = True

    def __init__(self, config: SasrecConfig) -> None:
        super().__init__()
        if not config.num_items:
            raise ValueError("num_items must be at least 1 for a model, got 0: the data set says how many")
        self.config = config
        self.embeddings = nn.Embedding(config.num_items, config.width)
        self.positions = nn.Embedding(config.max_length, config.width)
        self.blocks = nn.ModuleList(
            Block(config.width, config.num_heads, config.width, nn.ReLU(), config.dropout)
            for _ in range(config.num_blocks)
        )
        self.norm = nn.LayerNorm(config.width)
        for table in (self.embeddings, self.positions):
            nn.init.normal_(table.weight, std=INITIAL_STD)

    @property
    def query_width(self) -> int:
        return self.config.width

    @property
    def item_width(self) -> int:
        return self.config.width

    def query_features(self, inputs: Iterable[Sequence[int] | NDArray[np.int64]]) -> Histories:
        """Histories of item rows; the last position of each is asked."""
        length = self.config.max_length
        kept = [history[-length:] for history in inputs]
        rows = torch.zeros(len(kept), length, dtype=torch.int64)
        last = torch.zeros(len(kept), dtype=torch.int64)
        for number, history in enumerate(kept):
            rows[number, : len(history)] = torch.tensor(history)
            last[number] = len(history) - 1
        return Histories(rows, torch.arange(len(kept)) * length + last)

    def item_features(self, inputs: NDArray[np.int64]) -> Int[Tensor, " X"]:
        return torch.tensor(inputs)

    def is_blank(self, query: Sequence[int] | NDArray[np.int64]) -> bool:
        return not len(query)

    def queries(self, features: Histories) -> Float[Tensor, "Q D"]:
        length = features.rows.shape[1]
        hidden = self.embeddings(features.rows) * math.sqrt(self.config.width) + self.positions.weight[:length]
        hidden = dropped(hidden, self.config.dropout, self.training)
        for block in self.blocks:
            hidden = block(hidden)
        representations: Tensor = self.norm(hidden.flatten(0, 1)[features.asked])
        return representations

    def items(self, features: Int[Tensor, " X"]) -> Float[Tensor, "X D"]:
        rows: Tensor = self.embeddings(features)
        return rows
