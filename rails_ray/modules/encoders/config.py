"""Contract of an encoder's config."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from rails_ray.allowed_code import AllowedCode

Form = Literal["text", "history", "vector", "named_vectors"]
Config = TypeVar("Config", bound="EncoderConfig")


@dataclass(frozen=True, kw_only=True)
class InputFacts:
    """Facts of a data set that an encoder is completed from.

    query_width: D of a query; None if queries are no vectors.
    item_shape: (P, D) of an item; None if items are no vectors.
    query_widths: numbers of each vector of a query, if queries are several by name; else empty.
    item_widths: numbers of each vector of an item, if items have several by name; else empty.
    has_times: whether the items of a history have times.
    is_compared: whether vectors are compared as they are, and nothing is trained over them.
    """

    query_width: int | None = None
    item_shape: tuple[int, int] | None = None
    query_widths: tuple[int, ...] = ()
    item_widths: tuple[int, ...] = ()
    has_times: bool = False
    is_compared: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ABC):
    """Config of an encoder of queries and items, which its module holds too.

    form: what a query is.
    is_frozen: whether nothing of the encoder is trained.
    has_tokens: whether the encoder learns its tokens from texts before it trains.
    """

    form: ClassVar[Form]
    is_frozen: ClassVar[bool] = False
    has_tokens: ClassVar[bool] = False

    @abstractmethod
    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> Any:
        """Make the encoder, untrained: an `Encoder` that is also a module.

        Args:
            num_components: (P_Q, P_X) of the similarity.
            width: d of a component.
            allowed: code that the config may name.

        Raises:
            ValueError: if it names other code.
        """

    @property
    def reads_at_most(self) -> int | None:
        """Tokens of a text, or items of a history, that it reads; None if it reads all."""
        return None

    @property
    def shapes(self) -> tuple[int, tuple[int, int]] | None:
        """D of a query and (P, D) of an item, of an encoder that is frozen; None if they are not known yet."""
        return None

    def user_width(self, width: int) -> int:
        """Width of the user's vector in the representation of a query: that of a component, or 0 without users."""
        return 0

    def check_code(self, allowed: AllowedCode) -> None:  # noqa: B027 - only some encoders name code
        """Check that the code that the config names may be called. Nothing is imported.

        Raises:
            ValueError: if not.
        """

    def with_items(self: Config, num_items: int, digest: Callable[[], str], place: str) -> Config:
        """Fill in the items, if the encoder has a row for each.

        Args:
            digest: of their ids, in order.
            place: where they are, for messages.

        Raises:
            ValueError: if a row is another item there.
        """
        return self

    def for_inputs(self: Config, facts: InputFacts, place: str, allowed: AllowedCode) -> Config:
        """Fill in what the data set, or a model that was trained elsewhere, decides.

        Raises:
            ValueError: if the config says otherwise, or names code that is not allowed.
        """
        return self
