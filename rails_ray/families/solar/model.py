"""SOLAR as it is served: the trained chunks, which make tables of queries; items are looked up by their codes.

Axes: B queries, K chunks, R buckets, N texts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.modules.encoders.bags import Bags, num_known
from rails_ray.modules.encoders.solar import Chunk, ChunksConfig, InputVectors, tokens_of
from rails_ray.modules.quantizers.item_codes import ItemCodes
from rails_ray.modules.similarities.look_up import LookUp, LookUpConfig
from rails_ray.modules.similarities.states import Codes, Tables

NUM_PREDICTED = 10  # buckets of a chunk, from which their loads choose a new item's; not tuned
BATCH_SIZE = 128  # texts at a time for which buckets are predicted


@dataclass(frozen=True)
class CodedItems:
    """Items as the model reads them: their ids, and the codes among which it finds theirs."""

    item_ids: Sequence[Any]
    known: ItemCodes


class Solar(nn.Module):
    """The contract of `Model`: what is served.

    Args:
        chunks: the trained chunks by number; a missing chunk counts nothing.
    """

    def __init__(self, config: ChunksConfig, compared: LookUpConfig, chunks: Mapping[int, Chunk]) -> None:
        super().__init__()
        if not chunks:
            raise ValueError("a model must have at least 1 trained chunk, got none")
        self.config = config
        self.values = compared.values
        self.chunks = nn.ModuleDict({f"{number:03d}": chunks[number] for number in sorted(chunks)})
        self.similarity: Any = LookUp(config.num_buckets)

    finds_zeros_last = False

    @property
    def form(self) -> str:
        return self.config.input

    @property
    def vector_width(self) -> int | None:
        return self.config.width if self.config.input == "vector" else None

    @property
    def representation_width(self) -> None:
        """A query has no representation of its own, but one in each chunk."""
        return

    @property
    def first(self) -> Chunk:
        """Any of the chunks: all know the same tokens."""
        first = next(iter(self.chunks.values()))
        assert isinstance(first, Chunk)
        return first

    def query_features(self, inputs: Any) -> Bags | InputVectors:
        return self.first.features(inputs)

    def is_blank(self, query: Any) -> bool:
        """Never: the biases answer a query without any known token."""
        return False

    def are_known(self, inputs: Any) -> list[bool]:
        """For each query, whether training saw any of its tokens; for a vector, whether it is not 0."""
        if self.config.input == "vector":
            return torch.as_tensor(np.asarray(inputs)).any(dim=1).tolist()
        return (num_known(tokens_of(self.config, inputs), self.first.known) > 0).tolist()

    @torch.no_grad()
    def encode_queries(self, features: Any, precision: torch.dtype = torch.float32) -> Tables:
        """Return what buckets add to a score: their probabilities or logits, over the number of chunks.

        Args:
            precision: dtype of the products; tables are float32.
        """
        device = self.first.hidden_bias.device
        tables = torch.zeros(len(features), self.config.num_chunks, self.config.num_buckets, device=device)
        value_of: Callable[[Tensor], Tensor] = torch.sigmoid if self.values == "probability" else torch.clone
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            for name, chunk in self.chunks.items():
                torch.div(value_of(chunk(features).float()), len(self.chunks), out=tables[:, int(name)])
        return Tables(tables, torch.ones(len(features), device=device))

    def represent(self, features: Any, *, are_items: bool = False) -> Any:
        raise ValueError("a query must have one representation, got a model of SOLAR")

    def query_state(self, representation: Any) -> Tables:
        raise ValueError("a query of SOLAR must be a text, features or a vector, got a representation")

    @staticmethod
    def item_features(inputs: CodedItems) -> CodedItems:
        """The ids themselves."""
        return inputs

    @staticmethod
    def encode_items(features: CodedItems) -> Codes:
        """Look the items up. An item has no encoder, so that this needs no chunk.

        Raises:
            DamagedError: if an item has no code.
        """
        return Codes(features.known.of(features.item_ids).tensor)


@dataclass(frozen=True)
class Predicted:
    """The buckets that SOLAR predicts for the N' of N texts that hold a word it knows.

    is_known: whether it knows a word of each text [N].
    chunks: the trained chunks, K' of K.
    buckets: the known texts' buckets in each of these chunks, best first [N', K', C].
    """

    is_known: NDArray[np.bool_]
    chunks: list[int]
    buckets: NDArray[np.int64]


def predicted_buckets(model: Solar, texts: list[str]) -> Predicted:
    """The buckets from which codes of new items can be chosen."""
    is_known = np.array(model.are_known(texts), dtype=bool)
    known = [text for text, own in zip(texts, is_known, strict=True) if own]
    chunks = [int(name) for name in model.chunks]
    num = min(NUM_PREDICTED, model.config.num_buckets)
    best = [torch.empty(0, len(chunks), num, dtype=torch.int64)]
    features, device = model.query_features(known), model.first.hidden_bias.device
    for rows in torch.arange(len(known)).split(BATCH_SIZE):
        tables = model.encode_queries(features.take(rows).to(device)).tables
        best.append(tables[:, chunks].topk(num, dim=2).indices.cpu())
    return Predicted(is_known, chunks, torch.cat(best).numpy())
