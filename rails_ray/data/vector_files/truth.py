"""Neighbors that came with vectors, as relevance, where they are also the nearest by cosine.

Search here is by the inner product of normalised vectors, the cosine. Neighbors by another distance are the same if
all items have one length c, whatever the queries' lengths:

    |q - x|^2 = |q|^2 + c^2 - 2 <q, x>        cos(q, x) = <q, x> / (c |q|)

Otherwise a search that is right would be measured against answers that are wrong for it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.vector_files.rows import ListFile

ANGULAR = {"angular", "cosine"}
BY_LENGTH = {"euclidean", "l2", "dot", "ip"}  # order items as cosine does if these have one length
DISTANCES = (*sorted(ANGULAR), *sorted(BY_LENGTH))
SAME_LENGTH = 1e-4  # largest relative difference; normalising in float32 leaves 1e-6


@dataclass
class Lengths:
    """The least and the largest length of vectors."""

    least: float = np.inf
    most: float = 0.0

    def add(self, block: NDArray[np.float32]) -> None:
        lengths = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
        self.least, self.most = min(self.least, float(lengths.min())), max(self.most, float(lengths.max()))

    @property
    def are_equal(self) -> bool:
        return self.most - self.least <= SAME_LENGTH * self.most

    def __str__(self) -> str:
        return f"of length {self.most:.4g}" if self.are_equal else f"of lengths {self.least:.4g} to {self.most:.4g}"


def is_cosine(distance: str | None, lengths: Lengths) -> bool:
    """Return whether a distance orders items of these lengths as cosine does; None is one that nobody has named."""
    named = None if distance is None else distance.lower()
    return named in ANGULAR or (named in {None, *BY_LENGTH} and lengths.are_equal)


def distance_of(truth: ListFile, given: str | None) -> str | None:
    """The distance of neighbors: what their file says, or else what the caller does.

    Raises:
        ValueError: if they disagree, or the distance is one that never orders items as cosine does.
    """
    if given is not None and given not in DISTANCES:
        raise ValueError(f"distance must be one of {', '.join(DISTANCES)}, got {given!r}")
    if None not in (given, truth.distance) and given != truth.distance:
        raise ValueError(f"distance must be {truth.distance!r} as {truth.file} says, got {given!r}")
    named = truth.distance or given
    if named is not None and named.lower() not in ANGULAR | BY_LENGTH:
        raise ValueError(
            f"{truth.file} must be the neighbors by cosine, got those by the distance {named!r}: import without truth"
        )
    return named


def check_cosine(truth: ListFile, distance: str | None, lengths: Lengths) -> None:
    """Raises:
    ValueError: if the neighbors are not those by cosine.
    """
    if is_cosine(distance, lengths):
        return
    if distance is None:
        raise ValueError(
            f"{truth.file} must hold the neighbors by cosine, or all items one length, got items {lengths} and no "
            "distance: give --distance angular if the neighbors are by angle, or leave the neighbors out"
        )
    raise ValueError(
        f"{truth.file} must be the neighbors by cosine, got those by the distance {distance!r} of items {lengths}: "
        "normalise the vectors and find their neighbors anew, or import without truth"
    )


def relevance(
    truth: ListFile, query_ids: pa.ChunkedArray, item_ids: pa.ChunkedArray | None, num_items: int
) -> pa.Table:
    """A row for each neighbor: query_id, item_id, and its place in the query's list, `rank`, from 0.

    Args:
        item_ids: None if they are the row numbers.

    Raises:
        ValueError: if a neighbor is not the row of an item.
    """
    tables = []
    first = 0
    for block in truth.blocks():
        wrong = np.argwhere((block < 0) | (block >= num_items))
        if len(wrong):
            row, place = wrong[0]
            raise ValueError(
                f"{truth.file} must hold rows of items, 0 to {num_items - 1}, got {block[row, place]} in row "
                f"{first + row}"
            )
        tables.append(_pairs(block, query_ids.slice(first, len(block)), item_ids))
        first += len(block)
    return pa.concat_tables(tables)


def _pairs(block: NDArray[np.int64], query_ids: Any, item_ids: pa.ChunkedArray | None) -> pa.Table:
    num_queries, width = block.shape
    rows = pa.array(block.reshape(-1))
    return pa.table(
        {
            "query_id": query_ids.take(pa.array(np.repeat(np.arange(num_queries), width))),
            "item_id": rows if item_ids is None else item_ids.take(rows),
            "rank": np.tile(np.arange(width, dtype=np.int32), num_queries),
        }
    )
