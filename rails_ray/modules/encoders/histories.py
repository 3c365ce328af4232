"""Shared parts of encoders of histories: sizes, the batch they read, and the table of items that both sides read.

    query = representation of the last item ++ U[hash(user)]        the second only if users have embeddings

An embedding of the user is a component of its own, as it is: training drops elements of it, and an unknown user has a
vector of zeros, whose cosines are 0.

Histories are padded at their end, where causality hides the padding from every position that is read. A batch of very
different lengths is encoded in groups of similar ones, each as wide as its longest, so that little padding is computed.

Of a history of n items, item t (from 0) has position embedding P[t], or P[n - 1 - t] where positions count from the
newest item, as public implementations of SASRec have it, which pad at the beginning.

Source: RAILS, Section 4.1 and Appendix A.4.1 (hashed ids of users as a component).

Axes: B histories, T positions, Q positions that are read, X items, D width.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.modules.encoders.config import EncoderConfig, Form
from rails_ray.modules.encoders.hashing import hashed
from rails_ray.modules.encoders.transformer import dropped

INITIAL_STD = 0.02
USERS = 0  # the seed by which users are hashed
GROUP = 8  # histories that are encoded together on a CPU
POSITIONS_FROM = ("oldest", "newest")
LEAST = {"width": 1, "num_blocks": 1, "num_heads": 1, "max_length": 1, "num_items": 0, "num_users": 0}
DIGITS = 16  # of the digest of item ids that a config keeps
PADDED_SHARE = 1.25  # cells of a batch for each that is read, above which groups cost less than padding
Config = TypeVar("Config", bound="HistoryConfig")


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(EncoderConfig):
    """Sizes of an encoder of histories.

    Args:
        width: width D of embeddings and hidden states.
        num_blocks: number L of blocks.
        num_heads: attention heads of each block; width is a multiple of it.
        max_length: T; only the last T items of a history are read.
        positions_from: the item whose position is 0. From the `newest` on, the last item of every history has the same
            position, whatever its length.
        dropout: share of embeddings and of what a block adds that training drops, in [0, 1).
        item_dropout: share of the numbers of an item's embedding that training drops where it compares the item with
            queries, in [0, 1).
        num_items: number X of items; 0 is replaced by the data set's when training begins.
        corpus: digest of the item ids, by which a row stays the same item. Leave it empty: training fills it in.
        num_users: rows of the table of users, whose ids are hashed; 0 for a model that reads no user.
        user_dropout: share of the numbers of a user's embedding that training drops, in [0, 1).
    """

    form: ClassVar[Form] = "history"

    width: int = 64
    num_blocks: int = 2
    num_heads: int = 1
    max_length: int = 50
    positions_from: Literal["oldest", "newest"] = "oldest"
    dropout: float = 0.2
    item_dropout: float = 0.0
    num_items: int = 0
    corpus: str = ""
    num_users: int = 0
    user_dropout: float = 0.5

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.width % self.num_heads:
            raise ValueError(f"width must be a multiple of the {self.num_heads} heads, got {self.width}")
        if self.positions_from not in POSITIONS_FROM:
            raise ValueError(f"positions_from must be one of {', '.join(POSITIONS_FROM)}, got {self.positions_from!r}")
        for name in ("dropout", "item_dropout", "user_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    @property
    def reads_at_most(self) -> int:
        return self.max_length

    def user_width(self, width: int) -> int:
        return width if self.num_users else 0

    def with_items(self: Config, num_items: int, digest: Callable[[], str], place: str) -> Config:
        if self.num_items not in (0, num_items):
            raise ValueError(f"encoder.num_items must be the {num_items} items of {place}, or 0, got {self.num_items}")
        corpus = digest()[:DIGITS]
        if self.corpus not in ("", corpus):
            raise ValueError(
                f"{place} must hold the items that the run was trained on, in their order, got others: train a new run"
            )
        return replace(self, num_items=num_items, corpus=corpus)


@dataclass(frozen=True)
class Histories:
    """Histories as item rows, padded at their end with any row, and the positions whose representation is asked.

    asked: b * T + t of each such position, by b.
    times: when each item was, in seconds; `UNKNOWN_TIME` where nobody knows. None if nobody ever does.
    users: number of each user; -1 where nobody knows. None if nobody ever does.
    """

    rows: Int[Tensor, "B T"]
    asked: Int[Tensor, " Q"]
    times: Int[Tensor, "B T"] | None = None
    users: Int[Tensor, " B"] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Int[Tensor, " M"]) -> "Histories":
        """Some histories; one position of each must be asked."""
        length = self.rows.shape[1]
        asked = self.asked[rows] % length + torch.arange(len(rows)) * length
        return replace(self._of(lambda tensor: tensor[rows]), asked=asked)

    def to(self, device: torch.device | str) -> "Histories":
        return replace(self._of(lambda tensor: tensor.to(device)), asked=self.asked.to(device))

    def _of(self, change: Callable[[Tensor], Tensor]) -> "Histories":
        """The histories with all but `asked` changed."""
        times = None if self.times is None else change(self.times)
        return Histories(change(self.rows), self.asked, times, None if self.users is None else change(self.users))

    def groups(self, size: int) -> Iterator[tuple["Histories", Int[Tensor, " _"]]]:
        """Histories of similar lengths, cut to the longest, and which of `asked` each group asks."""
        num_histories, width = self.rows.shape
        history, position = self.asked // width, self.asked % width
        lengths = self.lengths()
        order = lengths.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(num_histories, device=order.device)
        for first in range(0, num_histories, size):
            members = order[first : first + size]
            longest = max(int(lengths[members[-1]]), 1)
            own = ((place[history] >= first) & (place[history] < first + size)).nonzero()[:, 0]
            asked = (place[history[own]] - first) * longest + position[own]
            group = self._of(lambda tensor: tensor[members][:, :longest] if tensor.dim() == 2 else tensor[members])  # noqa: B023
            yield replace(group, asked=asked), own

    def lengths(self) -> Int[Tensor, " B"]:
        """Positions of each history up to the last that is asked; 0 if none is."""
        width = self.rows.shape[1]
        nothing = torch.zeros(len(self.rows), dtype=torch.int64, device=self.rows.device)
        return nothing.scatter_reduce(0, self.asked // width, self.asked % width + 1, "amax")


class HistoryEncoder(nn.Module, ABC):
    """Histories and items to representations; both read one table of item embeddings.

    Args:
        own_width: width d of a component, for the embeddings of users.
    """

    form: Literal["history"] = "history"
    takes_representations = True

    def __init__(self, config: HistoryConfig, own_width: int = 0) -> None:
        super().__init__()
        if not config.num_items:
            raise ValueError("num_items must be at least 1 for a model, got 0: the data set says how many")
        self.config = config
        self.own_width = own_width if config.num_users else 0
        self.embeddings = nn.Embedding(config.num_items, config.width)
        self.positions = nn.Embedding(config.max_length, config.width)
        self.users = nn.Embedding(config.num_users, self.own_width) if config.num_users else None
        for table in (self.embeddings, self.positions, self.users):
            if table is not None:
                nn.init.normal_(table.weight, std=INITIAL_STD)

    @abstractmethod
    def hidden(self, inputs: Float[Tensor, "B T D"], features: Histories) -> Float[Tensor, "B T D"]:
        """Run the blocks over embedded histories; each position reads itself and those before it."""

    @property
    def query_width(self) -> int:
        return self.config.width + self.own_width

    @property
    def item_width(self) -> int:
        return self.config.width

    def query_features(self, inputs: Sequence[Sequence[int]] | Any) -> Histories:
        """Histories of item rows; the last position of each is asked. Inputs that know times and users have attributes
        of these names, as `data.queries.Visits`."""
        length = self.config.max_length
        kept = [history[-length:] for history in inputs]
        lengths = np.array([len(history) for history in kept], np.int64)
        times, users = getattr(inputs, "times", None), getattr(inputs, "users", None)
        if times is not None:
            ends = np.cumsum([0, *map(len, inputs)])[1:]
            last = [times[end - size : end] for end, size in zip(ends, lengths, strict=True)]
            times = torch.from_numpy(_padded(last, length))
        return Histories(
            self._known(torch.from_numpy(_padded(kept, length))),
            torch.arange(len(kept)) * length + torch.from_numpy(lengths - 1).clamp(min=0),
            times,
            None if users is None else torch.from_numpy(np.array(users)),
        )

    def item_features(self, inputs: NDArray[np.int64]) -> Int[Tensor, " X"]:
        return self._known(torch.tensor(inputs))

    def is_blank(self, query: Sequence[int] | NDArray[np.int64]) -> bool:
        return not len(query)

    def queries(self, features: Histories) -> Float[Tensor, "Q D"]:
        if features.rows.device.type != "cpu" or len(features) <= GROUP or not self._pays(features):
            return self._asked(features, self.embeddings(features.rows))
        groups, order = zip(*features.groups(GROUP), strict=True)
        # Embedded at once: the way back makes a gradient as large as the table each time.
        embedded = self.embeddings(torch.cat([group.rows.flatten() for group in groups]))
        parts = embedded.split([group.rows.numel() for group in groups])
        found = [self._asked(own, part.view(*own.rows.shape, -1)) for own, part in zip(groups, parts, strict=True)]
        return torch.cat(found)[torch.cat(order).argsort()]

    def items(self, features: Int[Tensor, " X"]) -> Float[Tensor, "X D"]:
        return dropped(self.embeddings(features), self.config.item_dropout, self.training)

    def _known(self, rows: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Raises:
        ValueError: if the model has no such item.
        """
        unknown = rows[(rows < 0) | (rows >= self.config.num_items)]
        if len(unknown):
            raise ValueError(
                f"item rows must be those of the {self.config.num_items} items of the model, from 0 on, "
                f"got {int(unknown[0])}"
            )
        return rows

    def _asked(self, features: Histories, embedded: Float[Tensor, "B T D"]) -> Float[Tensor, "Q _"]:
        inputs = embedded * math.sqrt(self.config.width) + self._positions(features)
        hidden = self.hidden(dropped(inputs, self.config.dropout, self.training), features)
        asked = hidden.flatten(0, 1)[features.asked]
        return asked if self.users is None else torch.cat([asked, self._users(features, self.users)], dim=1)

    def _positions(self, features: Histories) -> Float[Tensor, "#B T D"]:
        """The embeddings of positions, from the side that the config says; padding has any."""
        length = features.rows.shape[1]
        if self.config.positions_from == "oldest":
            return self.positions.weight[None, :length]
        behind = features.lengths()[:, None] - 1 - torch.arange(length, device=features.rows.device)
        embedded: Tensor = self.positions(behind.clamp(min=0))
        return embedded

    def _users(self, features: Histories, table: nn.Embedding) -> Float[Tensor, "Q d"]:
        """The embedding of the user at each position that is asked."""
        if features.users is None:
            return table.weight.new_zeros(len(features.asked), self.own_width)
        rows = hashed(features.users, USERS, self.config.num_users)
        known = (features.users >= 0).unsqueeze(1)
        found = dropped(table(rows) * known, self.config.user_dropout, self.training)
        return found[features.asked // features.rows.shape[1]]

    def _pays(self, features: Histories) -> bool:
        """Return whether the histories are so much shorter than the batch is wide that groups cost less."""
        return features.rows.numel() > PADDED_SHARE * int(features.lengths().sum())


def _padded(lists: Sequence[Sequence[int] | NDArray[np.int64]], length: int) -> NDArray[np.int64]:
    found = np.zeros((len(lists), length), np.int64)
    for number, own in enumerate(lists):
        found[number, : len(own)] = own
    return found
