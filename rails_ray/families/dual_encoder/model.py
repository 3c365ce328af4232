"""The dual encoder: two towers, their components and the similarity that compares them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.modules.encoders import Encoder
from rails_ray.modules.encoders.components import (
    GatedQueries,
    GivenItems,
    GivenQueries,
    ItemComponents,
    QueryComponents,
)
from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import ItemState, QueryState

COMPILERS = ("g++", "clang++", "c++")


class DualEncoder(nn.Module):
    """Encodes queries and items, and scores queries against items.

    Args:
        finds_zeros_last: whether items without a direction come last in every list: those whose vectors, which the
            data or a frozen model of texts give, are all zeros. All their components are zeros then, whatever a
            projection makes of them. An encoder that is trained needs no such choice: the bias of its projection gives
            an item a direction even where it reads nothing.
    """

    def __init__(
        self,
        encoder: nn.Module,
        query_components: QueryComponents | GatedQueries | GivenQueries,
        item_components: ItemComponents | GivenItems,
        similarity: nn.Module,
        *,
        finds_zeros_last: bool = False,
    ) -> None:
        super().__init__()
        self.encoder: Any = encoder  # an `Encoder` that is also a module, which no type can say
        self.query_components = query_components
        self.item_components = item_components
        self.similarity: Any = similarity  # a `Similarity`, likewise
        self.finds_zeros_last = finds_zeros_last

    @property
    def form(self) -> str:
        form: str = self.encoder.form
        return form

    @property
    def vector_width(self) -> int | None:
        width: int = self.encoder.query_width
        return width if self.form == "vector" else None

    @property
    def vector_widths(self) -> dict[str, int]:
        """Numbers of each vector of a query by its name; empty unless queries are several vectors."""
        if self.form != "named_vectors":
            return {}
        config = self.encoder.config
        return dict(zip(config.query_columns, config.query_widths, strict=True))

    @property
    def representation_width(self) -> int | None:
        width: int = self.encoder.query_width
        return width if self.encoder.takes_representations else None

    def is_blank(self, query: Any) -> bool:
        blank: bool = self.encoder.is_blank(query)
        return blank

    def are_known(self, inputs: Any) -> list[None]:
        return [None] * len(inputs)

    def query_features(self, inputs: Any) -> Any:
        """Return what `encode_queries` reads, from texts, histories or vectors."""
        encoder: Encoder[Any] = self.encoder
        return encoder.query_features(inputs)

    def item_features(self, inputs: Any) -> Any:
        """Return what `encode_items` reads, from texts, item rows or vectors."""
        encoder: Encoder[Any] = self.encoder
        return encoder.item_features(inputs)

    def encode_queries(self, features: Any, precision: torch.dtype = torch.float32) -> QueryState:
        """
        Args:
            precision: dtype of the encoder's products; what follows is in the weights' dtype.
        """
        state: QueryState = self.query_components(self._representations(self.encoder.queries, features, precision))
        return state

    def represent(self, features: Any, *, are_items: bool = False) -> Float[Tensor, "B D"]:
        """Representations of queries or items, before they become components.

        Raises:
            ValueError: if a query is a vector itself.
        """
        if not self.encoder.takes_representations:
            raise ValueError("queries of this model must be vectors, got a model without representations")
        return self._representations(self.encoder.items if are_items else self.encoder.queries, features, torch.float32)

    def query_state(self, representation: Float[Tensor, "B D"]) -> QueryState:
        """The state of queries whose representations were made elsewhere.

        Raises:
            ValueError: if a query is a vector itself.
        """
        if not self.encoder.takes_representations:
            raise ValueError("queries of this model must be vectors, got a representation")
        state: QueryState = self.query_components(representation)
        return state

    def encode_items(self, features: Any, precision: torch.dtype = torch.float32) -> ItemState:
        """
        Args:
            precision: as in `encode_queries`.
        """
        representations = self._representations(self.encoder.items, features, precision)
        state: ItemState = self.item_components(representations)
        if not self.finds_zeros_last:
            return state
        is_item = representations.any(dim=1, keepdim=True)
        average = None if state.average is None else state.average * is_item
        return replace(state, components=state.components * is_item[:, :, None], average=average)

    def _representations(
        self, encode: Callable[[Any], Tensor], features: Any, precision: torch.dtype
    ) -> Float[Tensor, "B D"]:
        weight = next(self.query_components.parameters())
        if precision == torch.float32:
            return encode(features).to(weight.dtype)
        with torch.autocast(weight.device.type, precision):
            representations = encode(features)
        return representations.to(weight.dtype)

    def compile_blocks(self) -> None:
        """Let `torch.compile` compile each block of the encoder when it first runs, for each kind of input anew.

        Raises:
            ValueError: if there is no compiler.
        """
        if not any(map(shutil.which, COMPILERS)):
            raise ValueError(
                f"compile_blocks needs a C++ compiler on the PATH, one of {', '.join(COMPILERS)}, got none: install "
                "one, or train without --compile-blocks"
            )
        for block in self.encoder.blocks:
            block.compile()

    def score(self, query: QueryState, items: ItemState) -> Scored:
        scored: Scored = self.similarity(query, items)
        return scored
