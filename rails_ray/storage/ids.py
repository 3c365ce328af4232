"""Ids of items as a column: 8 bytes or a few characters each, with a search by id where a dictionary would take ten
times the memory.

The ids, or 64-bit hashes of strings, stand beside their rows in ascending order, 16 bytes an item. A search bisects
them.

Axes: X items, N ids asked for.
"""

import hashlib
import itertools
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, SupportsIndex, overload

import mmh3
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.item_ids import ItemId
from rails_ray.storage.numbers import numbers_in, values_at

DIGITS = re.compile("0|-?[1-9][0-9]{0,19}")  # one spelling of each integer of 64 bits
BLOCK = 2**16  # ids that are Python objects at once


class Ordered(NamedTuple):
    """Keys in ascending order, and the row of each."""

    keys: NDArray[np.integer]
    rows: NDArray[np.int64]


class ItemIds(Sequence[ItemId]):
    """Distinct ids in order.

    Args:
        values: integers or strings, Arrow's or any sequence.
    """

    def __init__(self, values: Any) -> None:
        column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values)])
        self.column = column

    @property
    def is_integer(self) -> bool:
        return bool(pa.types.is_integer(self.column.type))

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, row: SupportsIndex) -> ItemId: ...

    @overload
    def __getitem__(self, row: slice) -> "ItemIds": ...

    def __getitem__(self, row: SupportsIndex | slice) -> "ItemId | ItemIds":
        if isinstance(row, slice):
            return ItemIds(self.column.take(pa.array(np.arange(len(self))[row])))
        value: ItemId = self.column[operator.index(row)].as_py()
        return value

    def __iter__(self) -> Iterator[ItemId]:
        return itertools.chain.from_iterable(self.blocks())

    def blocks(self) -> Iterator[list[ItemId]]:
        """All ids as Python's, a block at a time."""
        return (self.column.slice(first, BLOCK).to_pylist() for first in range(0, len(self), BLOCK))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ItemIds):
            return bool(self.column.equals(other.column))
        return list(self) == other

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        whole = self.column.combine_chunks()
        return whole if type is None else whole.cast(type)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> list[ItemId]:
        """The ids at some rows."""
        if self._numbers is None:
            found: list[ItemId] = values_at(self.column, np.asarray(rows, np.int64))
        else:
            found = self._numbers[np.asarray(rows, np.int64)].tolist()
        return found

    def digest(self) -> str:
        """The sha256 of all ids, whatever the chunks in which they are held."""
        digest = ColumnDigest()
        digest.add(self.column)
        return digest.hexdigest()

    def rows(self, ids: Iterable[ItemId]) -> NDArray[np.int64]:
        """The row of each id [N], or -1 where there is none. Integers may be given in decimal digits, as JavaScript
        has no others above 2^53."""
        wanted = [self._as_stored(own) for own in ids]
        kind = int if self.is_integer else str
        is_kind = np.array([isinstance(own, kind) for own in wanted], dtype=bool)
        found = np.full(len(wanted), -1, dtype=np.int64)
        named = [own for own in wanted if isinstance(own, kind)]
        found[is_kind] = self._rows_of_integers(named) if self.is_integer else self._rows_of_strings(named)
        return found

    def _as_stored(self, own: ItemId) -> ItemId:
        is_digits = self.is_integer and isinstance(own, str) and DIGITS.fullmatch(own)
        return int(own) if is_digits else own

    @cached_property
    def _numbers(self) -> NDArray[np.integer] | None:
        """All ids, of which some are found sooner than in a column; None for strings."""
        return numbers_in(self.column) if self.is_integer else None

    def prepare(self) -> "ItemIds":
        """Order the ids now, so that no search has to."""
        _ = self._ordered
        return self

    @cached_property
    def _ordered(self) -> Ordered:
        keys = keys_of(self.column)
        rows = np.argsort(keys, kind="stable")
        return Ordered(keys[rows], rows)

    def _rows_of_integers(self, wanted: list[Any]) -> NDArray[np.int64]:
        keys, rows = self._ordered
        limits = np.iinfo(keys.dtype)
        is_near = np.array([limits.min <= own <= limits.max for own in wanted], dtype=bool)
        near = np.array([own if near else 0 for own, near in zip(wanted, is_near, strict=True)], dtype=keys.dtype)
        places = np.searchsorted(keys, near)
        inside = np.minimum(places, max(len(keys) - 1, 0))
        is_found = is_near & (places < len(keys)) & (keys[inside] == near if len(keys) else False)
        return np.where(is_found, rows[inside] if len(keys) else -1, -1)

    def _rows_of_strings(self, sought: list[Any]) -> NDArray[np.int64]:
        keys, rows = self._ordered
        wanted = np.array([hash_of(own) for own in sought], dtype=np.int64)
        first, end = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
        found = np.full(len(sought), -1, dtype=np.int64)
        for number in np.flatnonzero(first < end):
            same_hash = rows[first[number] : end[number]]
            found[number] = next((row for row in same_hash if self.column[int(row)].as_py() == sought[number]), -1)
        return found


class ColumnDigest:
    """The sha256 of a column that comes in parts: equal for equal values, however they are cut.

    Lengths, and places of nulls, are kept apart by how many lists they are in.
    """

    def __init__(self) -> None:
        self._values = hashlib.sha256()
        self._lengths, self._nulls = defaultdict[int, Any](hashlib.sha256), defaultdict[int, Any](hashlib.sha256)
        self._num_read = defaultdict[int, int](int)

    def add(self, column: pa.ChunkedArray | pa.Array) -> None:
        """Take in the next values."""
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            self._add(chunk, 0)

    def hexdigest(self) -> str:
        digest = hashlib.sha256(self._values.digest() + self._lengths[0].digest())
        for depth in sorted(self._lengths.keys() - {0}):
            digest.update(b"lengths" + self._lengths[depth].digest())
        for depth in sorted(self._nulls):
            digest.update(b"nulls %d" % depth + self._nulls[depth].digest())
        return digest.hexdigest()

    def _add(self, values: pa.Array, depth: int) -> None:
        kind, has_nulls = values.type, values.null_count > 0
        if has_nulls:
            places = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            self._nulls[depth].update((places + self._num_read[depth]).astype(np.int64).tobytes())
        self._num_read[depth] += len(values)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            wide = values.cast(pa.large_string())
            wide = wide.fill_null("") if has_nulls else wide
            offsets = np.frombuffer(wide.buffers()[1], np.int64)[wide.offset : wide.offset + len(wide) + 1]
            self._lengths[depth].update(np.diff(offsets).tobytes())
            if len(wide) and wide.buffers()[2] is not None:
                self._values.update(memoryview(wide.buffers()[2])[offsets[0] : offsets[-1]])
        elif pa.types.is_nested(kind):
            if not pa.types.is_fixed_size_list(kind):
                lengths = values.value_lengths().cast(pa.int64()).fill_null(0)
                self._lengths[depth].update(lengths.to_numpy(zero_copy_only=False).tobytes())
            self._add(values.flatten(), depth + 1)
        else:
            plain = values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values
            plain = plain.fill_null(False if pa.types.is_boolean(kind) else 0) if has_nulls else plain
            self._values.update(np.ascontiguousarray(plain.to_numpy(zero_copy_only=False)).data)


def keys_of(column: pa.ChunkedArray) -> NDArray[np.integer]:
    """A number for each id: an integer itself, the hash of a string."""
    if pa.types.is_integer(column.type):
        return numbers_in(column)
    blocks = [column.slice(first, BLOCK).to_pylist() for first in range(0, len(column), BLOCK)]
    return np.concatenate([np.empty(0, np.int64), *(np.array([hash_of(own) for own in block]) for block in blocks)])


def hash_of(text: str | bytes) -> int:
    """64 bits of MurmurHash3, also of half a surrogate pair, at which the library would end the process."""
    first: int = mmh3.hash64(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)[0]
    return first
