"""The items of a shard in memory: its base with its indexes, and all of its deltas together, which are scanned.

A row of the shard counts the rows of the base, hidden ones too, as indexes do, then those of the deltas, of which only
live ones are kept.

Axes: X items of the shard, N rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.families.served_family import NO_INDEXES
from rails_ray.families.shards import Items, with_vectors_of
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.modules.similarities.states import AnyItems, concatenate, on_device, take
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.searcher import Searcher
from rails_ray.search.segmented import Segmented
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.numbers import numbers_as_array, values_at


@dataclass(frozen=True)
class Segment:
    """Items of one origin, ready to be searched.

    items: the base with its hidden items; or those of deltas that are live.
    zeros: rows of items without a direction, hidden ones too.
    files: the files that say which items these are; empty if no files do.
    """

    items: Items
    searcher: Searcher[Any]
    zeros: NDArray[np.int64]
    files: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        version: Version,
        similarity: Any,
        items: Items,
        indexes: Mapping[str, VectorIndex] = NO_INDEXES,
        device: str = "cpu",
        files: tuple[str, ...] = (),
    ) -> "Segment":
        """Make items ready to be searched, on a device."""
        if device == "cpu":
            items = replace(items, state=with_vectors_of(indexes, items.state))
        items.item_ids.prepare()
        state = on_device(items.state, device)
        zeros = version.family.zero_rows(items.state).numpy()
        return cls(items, version.family.searcher(similarity, state, indexes), zeros, files)

    def hiding(self, first_row: int, hidden: NDArray[np.int64]) -> "Segment":
        """These items in another version.

        Args:
            first_row: the row of the first one there.
            hidden: the rows that are hidden there.
        """
        return replace(self, items=replace(self.items, first_row=first_row, hidden=hidden))

    def __len__(self) -> int:
        return len(self.items.item_ids)


class HeldItems:
    """All items of a shard.

    Args:
        segments: the base and, if there are any, the live items of its deltas.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.base = segments[0].items
        self.first_rows = np.cumsum([0, *map(len, segments)])
        self.searcher: Searcher[Any] = segments[0].searcher
        if len(segments) > 1:
            self.searcher = Segmented([segment.searcher for segment in segments])
        own = [segment.zeros + first for segment, first in zip(segments, self.first_rows, strict=False)]
        zeros = np.concatenate(own)
        self.zeros = zeros if self.is_left is None else zeros[self.is_left.numpy()[zeros]]

    def __len__(self) -> int:
        """Number of rows, hidden ones too."""
        return int(self.first_rows[-1])

    @property
    def num_live(self) -> int:
        return len(self) - len(self.base.hidden)

    @cached_property
    def is_left(self) -> Bool[Tensor, " X"] | None:
        """Which rows are not hidden; None if none is."""
        if not len(self.base.hidden):
            return None
        left = torch.ones(len(self), dtype=torch.bool)
        left[torch.from_numpy(self.base.hidden)] = False
        return left

    @cached_property
    def item_ids(self) -> ItemIds:
        """The ids of all rows."""
        column = self._column([segment.items.item_ids.column for segment in self.segments])
        return self.base.item_ids if column is None or len(self.segments) == 1 else ItemIds(column)

    @cached_property
    def titles(self) -> pa.ChunkedArray | None:
        return self._column([segment.items.titles for segment in self.segments])

    @cached_property
    def texts(self) -> pa.ChunkedArray | None:
        return self._column([segment.items.texts for segment in self.segments])

    @cached_property
    def attributes(self) -> pa.Table | None:
        """The columns that filters may name, of all rows."""
        found = [segment.items.attributes for segment in self.segments]
        tables = [table for table in found if table is not None]
        return pa.concat_tables(tables) if len(tables) == len(found) else None

    def _column(self, columns: Sequence[pa.ChunkedArray | None]) -> pa.ChunkedArray | None:
        there = [column for column in columns if column is not None]
        if len(there) < len(columns):
            return None
        return there[0] if len(there) == 1 else pa.chunked_array([chunk for one in there for chunk in one.chunks])

    def fields(self, names: Sequence[str], rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Some attributes of some items, times in ISO 8601."""
        assert self.attributes is not None  # the names are its columns
        found = self.attributes.select(list(names)).take(numbers_as_array(rows)).to_pylist()
        return [{name: _shown(own) for name, own in one.items()} for one in found]

    def strings(self, column: pa.ChunkedArray | None, rows: NDArray[np.int64]) -> list[str] | None:
        """Some strings of a column of all rows; None if there is none."""
        return None if column is None else values_at(column, rows)

    def rows(self, item_ids: Sequence[ItemId]) -> NDArray[np.int64]:
        """The row of each id [N], or -1 where no live item has it."""
        found = self.segments[0].items.item_ids.rows(item_ids)
        if self.is_left is not None:
            is_there = found >= 0
            found[is_there] = np.where(self.is_left.numpy()[found[is_there]], found[is_there], -1)
        for first, segment in zip(self.first_rows[1:-1], self.segments[1:], strict=True):
            later = segment.items.item_ids.rows(item_ids)
            found = np.where(later >= 0, later + first, found)
        return found

    def live_rows(self) -> NDArray[np.int64]:
        """The rows that are not hidden, ascending."""
        return np.arange(len(self)) if self.is_left is None else np.flatnonzero(self.is_left.numpy())

    def state(self, rows: NDArray[np.int64]) -> AnyItems:
        """The stored state of some rows, in their order."""
        if len(self.segments) == 1:
            return take(self.base.state, torch.from_numpy(rows))
        which = np.searchsorted(self.first_rows, rows, side="right") - 1
        order, parts = list[NDArray[np.int64]](), list[AnyItems]()
        for number, segment in enumerate(self.segments):
            places = np.flatnonzero(which == number)
            order.append(places)
            parts.append(take(segment.items.state, torch.from_numpy(rows[places] - self.first_rows[number])))
        back = torch.from_numpy(np.argsort(np.concatenate(order), kind="stable"))
        found: AnyItems = take(concatenate(parts), back)
        return found

    def items(self, rows: NDArray[np.int64]) -> Items:
        """Some items, as if they were all from the shard's first row on."""
        ids, titles, texts = (
            None if column is None else column.take(pa.array(rows))
            for column in (self.item_ids.column, self.titles, self.texts)
        )
        attributes = None if self.attributes is None else self.attributes.take(pa.array(rows))
        return Items(self.base.first_row, ItemIds(ids), titles, self.state(rows), texts, attributes=attributes)


def _shown(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
