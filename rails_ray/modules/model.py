"""The contract of a model: what a run leaves behind and a version serves, one for each family."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, ItemState, QueryState


@runtime_checkable
class Features(Protocol):
    """The tensors of many inputs, from which some can be taken."""

    def __len__(self) -> int: ...

    def take(self, rows: Any) -> Any: ...

    def to(self, device: torch.device | str) -> Any: ...


@runtime_checkable
class Model(Protocol):
    """Encodes queries and items; a module, whose weights lie beside the config of its run."""

    similarity: Any  # a `Scorer` of its states, which no type can say of a module

    @property
    def form(self) -> str:
        """The name of the form of query that it reads, one of `data.forms`."""

    @property
    def vector_width(self) -> int | None:
        """D if queries are vectors, None otherwise."""

    @property
    def representation_width(self) -> int | None:
        """D of the representations that `query_state` takes; None if it takes none."""

    @property
    def finds_zeros_last(self) -> bool:
        """Return whether items whose components are all zeros come last in every list, as their scores are cosines."""

    def query_features(self, inputs: Any) -> Any:
        """Return what `encode_queries` reads, from inputs of the form that the model reads."""

    def encode_queries(self, features: Any) -> AnyQuery: ...

    def represent(self, features: Any, *, are_items: bool = False) -> Float[Tensor, "B D"]:
        """Representations of queries, from which `query_state` makes what `encode_queries` does, or of items.

        Raises:
            ValueError: if `representation_width` is None.
        """

    def query_state(self, representation: Float[Tensor, "B D"]) -> AnyQuery:
        """The state of queries whose representations were made elsewhere."""

    def item_features(self, inputs: Any) -> Any:
        """Return what `encode_items` reads, from the inputs of items."""

    def encode_items(self, features: Any) -> AnyItems: ...

    def is_blank(self, query: Any) -> bool:
        """Return whether nothing in a query tells it from another, so that it is refused."""

    def are_known(self, inputs: Any) -> Sequence[bool | None]:
        """For each query, whether training saw any part of it; None if the model cannot tell."""

    def parameters(self) -> Any: ...

    def to(self, device: Any) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...


@runtime_checkable
class PairModel(Protocol):
    """Gives a training step the states of the queries and items of a batch, and the scores of its pairs."""

    similarity: Any  # a `Similarity` that is also a module, which no type can say

    def encode_queries(self, features: Any, precision: torch.dtype = torch.float32) -> QueryState: ...

    def encode_items(self, features: Any, precision: torch.dtype = torch.float32) -> ItemState: ...

    def score(self, query: QueryState, items: ItemState) -> Scored: ...
