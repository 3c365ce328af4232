"""Encoders: a query or an item becomes the tensors that a similarity compares.

| member             | paper                                                                           |
|--------------------|---------------------------------------------------------------------------------|
| `two_tower`        | the dual encoder of MoPQ and pEBR, on hashed character n-grams                  |
| `text`             | a transformer; RAILS, Appendix A.2.2: aggregation tokens, parameterized pooling |
| `tokenizer`        | text to tokens, the input of `text`                                             |
| `transformer`      | the blocks of `text` and `sasrec`, plain or with the gates of LiGR              |
| `vectors`          | vectors that were made elsewhere, as they are                                   |
| `named_vectors`    | several of them by name, of queries and of items, each of a width of its own    |
| `frozen`           | texts through a model that was trained elsewhere                                |
| `pretrained`       | a folder of sentence-transformers, as `frozen` loads and reads it               |
| `sasrec`           | RAILS, Section 5.1: a history of items asks for the next one                    |
| `hstu`             | the same by pointwise attention, with biases for positions and times            |
| `histories`        | what both share; RAILS, Appendix A.4.1: the user as a component                 |
| `solar`            | SOLAR, Section 3: K models, each with a probability for every bucket of its own |
| `bags`             | numbered tokens of each input, with weights or without: what `two_tower` reads, |
|                    | and `solar`, which hashes them anew for each chunk                              |
| `words`            | the words of a text in any script, for all that compares, counts or hashes them |
| `character_ngrams` | text to bags of words and n-grams                                               |
| `hashing`          | where a piece of a text or a token falls                                        |
| `components`       | RAILS, Section 2: representation -> P_Q / P_X components and gate vectors       |
| `temperature`      | pEBR, Section 2.4: the head that gives each query its tau_q                     |
"""

from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Features = TypeVar("Features")


@runtime_checkable
class Encoder(Protocol, Generic[Features]):
    """Two towers from inputs to representations."""

    @property
    def query_width(self) -> int:
        """D of a query."""

    @property
    def item_width(self) -> int:
        """D of an item."""

    @property
    def form(self) -> Literal["text", "history", "vector", "named_vectors"]:
        """Name the form of a query: a text, a history of item rows, a vector, or several vectors by name."""

    @property
    def takes_representations(self) -> bool:
        """Return whether a query may also be given by its representation; no vector is, as it is the query itself."""

    def query_features(self, inputs: Any) -> Features:
        """Queries as the tensors that `queries` reads."""

    def item_features(self, inputs: Any) -> Any:
        """Items (texts, item rows or vectors) as the tensors that `items` reads."""

    def is_blank(self, query: Any) -> bool:
        """Return whether nothing in a query tells it from another."""

    def queries(self, features: Features) -> Float[Tensor, "B D"]:
        """Representations of queries."""

    def items(self, features: Any) -> Float[Tensor, "X D"]:
        """Representations of items."""
