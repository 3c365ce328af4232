"""A data folder from files of vectors, and a file from a data folder.

    items/part-000000000000-NONCE.parquet ...   item_id, vector (FixedSizeList of float32): consecutive items; the name
                                                has the row of the first, and the nonce of the import
    queries.parquet                             query_id, vector, split
    relevance.parquet                           query_id, item_id, rank: the neighbors of each query, the nearest first

These are tables of `rails_ray.data.forms.numbers`; queries and relevance are there if the files have them. While a
folder is filled, a file among its items says so. As this file is no Parquet, nobody takes some of the items for all of
them if the import is cut off.

An import that finds this file takes the one that wrote it for cut off, and begins anew with a file of its own. If the
other still runs, it sees that, and ends.
"""

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rails_ray.data.queries import SPLITS
from rails_ray.data.sources import Sources
from rails_ray.data.vector_files.formats import open_lists, open_vectors, write_vectors
from rails_ray.data.vector_files.parquet import VECTOR, open_table
from rails_ray.data.vector_files.rows import ListFile, VectorFile, rows_within
from rails_ray.data.vector_files.truth import Lengths, check_cosine, distance_of, is_cosine, relevance
from rails_ray.data.vectors import as_column
from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import part_to_bytes, to_bytes

ITEMS, QUERIES, RELEVANCE = "items", "queries.parquet", "relevance.parquet"
UNFINISHED = f"{ITEMS}/import-not-finished.parquet"
PART = re.compile(r"part-\d{12}-[0-9a-f]{32}\.parquet")
PART_BYTES = 2**26  # of vectors: what a reader holds at a time


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Summary of what a data folder was given.

    num_pairs: number of neighbors, of all queries together.
    distance: what the files say of their distance; None if nothing.
    """

    num_items: int
    width: int
    num_queries: int
    num_pairs: int
    distance: str | None
    lengths: Lengths

    def __str__(self) -> str:
        summary = f"{self.num_items} items of width {self.width} and {self.lengths}, {self.num_queries} queries, "
        summary += f"{self.num_pairs} neighbors"
        if self.distance is None:
            return summary
        order = "as" if is_cosine(self.distance, self.lengths) else "otherwise than"
        return f"{summary}; search by cosine orders these items {order} the file's distance, {self.distance}"


def import_folder(
    source: str,
    folder: Storage,
    *,
    queries: str | None = None,
    truth: str | None = None,
    split: str = "test",
    format: str | None = None,
    distance: str | None = None,
    use_truth: bool = True,
) -> Imported:
    """Make a data folder of vectors. Memory holds one part of the items; all queries, neighbors and ids.

    Args:
        source: file of the items; a file of HDF5 may also hold queries and their neighbors.
        queries: file of queries, instead of those.
        truth: file of each query's nearest items by their rows, instead of those.
        split: of all queries.
        format: of `source`; None for what its ending says.
        distance: of `truth`, if its file does not say it.
        use_truth: False to leave out the neighbors of a file of HDF5.

    Raises:
        NotFoundError: if there is no such file.
        ConflictError: if someone else fills the folder at the same time.
        ValueError: if a file is not of its format, the files do not fit each other, the neighbors are not those by
            cosine, or the folder holds a data set.
    """
    items = open_vectors(source, format=format)
    of_queries, lists = items.queries, items.truth if use_truth else None
    if queries is not None:
        of_queries = open_vectors(queries)
        of_queries, lists = of_queries.queries or of_queries, None
    if truth is not None:
        lists = open_lists(truth)
    if lists is None and distance is not None:
        raise ValueError(
            f"distance must be given with neighbors, got {distance!r} without any: add --truth, or leave --distance out"
        )
    named = items.distance if lists is None else distance_of(lists, distance)
    _check_fit(items, of_queries, lists, split)
    with _filled(folder) as filling:
        lengths = _write_items(filling, items)
        if of_queries is not None:
            table = _queries(of_queries, split)
            filling.write_table(QUERIES, to_bytes(table))
            if lists is not None:
                check_cosine(lists, named, lengths)
                pairs = relevance(lists, table["query_id"], items.ids, items.num_rows)
                filling.write_table(RELEVANCE, to_bytes(pairs))
    return Imported(
        num_items=items.num_rows,
        width=items.width,
        num_queries=0 if of_queries is None else of_queries.num_rows,
        num_pairs=0 if lists is None else lists.num_rows * lists.width,
        distance=named,
        lengths=lengths,
    )


def open_items(folder: Storage) -> VectorFile:
    """The items of a data folder with their column `vector`.

    Raises:
        NotFoundError: if there are none.
        DamagedError: if their import was cut off.
        ValueError: if a file is not Parquet, has no such column, or has ids that are not distinct.
    """
    if folder.exists(UNFINISHED):
        raise DamagedError(f"{folder} must hold all items of an import, got one that was cut off: import them again")
    return open_table(Sources(str(folder)).table(ITEMS), f"{folder}/{ITEMS}", VECTOR)


def export_folder(folder: Storage, path: str, *, format: str | None = None, use_ids: bool = True) -> None:
    """Write the items of a data folder as one file. Raises what `open_items` and `write_vectors` do.

    Args:
        use_ids: False to write the vectors alone, in the order of the folder's items.
    """
    items = open_items(folder)
    write_vectors(path, items.width, items.blocks(), items.ids if use_ids else None, format=format)


class _Filling:
    """An import that fills a folder as long as its marker stands there."""

    def __init__(self, folder: Storage) -> None:
        self.folder = folder
        self.nonce = uuid.uuid4().hex
        self.marker = f"an import writes the items beside this file, or was cut off: {self.nonce}\n".encode()

    @property
    def stands(self) -> bool:
        """Return whether the folder is still this import's."""
        try:
            return self.folder.read(UNFINISHED) == self.marker
        except NotFoundError:
            return False

    def write_part(self, first: int, data: bytes) -> None:
        """Write the items from row `first` on. Raises what `finish` does."""
        self._add(f"{ITEMS}/part-{first:012d}-{self.nonce}.parquet", data, self.folder.write)

    def write_table(self, path: str, data: bytes) -> None:
        """Write another table; all imports call it the same. Raises what `finish` does."""
        self._add(path, data, self.folder.create)

    def _add(self, path: str, data: bytes, write: Callable[[str, bytes], None]) -> None:
        self._check()
        write(path, data)
        try:
            self._check()
        except ConflictError:  # what came meanwhile may be finished already
            self.folder.delete(path)
            raise

    def finish(self) -> None:
        """Delete the marker, and before it the parts that another import wrote too late.

        Raises:
            ConflictError: if someone else fills the folder.
        """
        self._check()
        for path in _parts(self.folder):
            if self.nonce not in path:
                self.folder.delete(path)
        self.folder.delete(UNFINISHED)

    def _check(self) -> None:
        if not self.stands:
            raise ConflictError(f"{self.folder} must be filled by one import at a time, got another one: import again")


@contextmanager
def _filled(folder: Storage) -> Iterator[_Filling]:
    """Fills a folder. If something is raised inside, it is empty afterwards, unless someone else fills it by now.

    Raises:
        ConflictError: if someone else has filled it meanwhile.
        ValueError: if it holds a data set.
    """
    if folder.exists(UNFINISHED):
        _empty(folder)
    for name in ("items", "queries", "relevance"):
        if Sources(str(folder)).has(name):
            raise ValueError(f"{folder} must hold no data set yet, got a table of {name}: choose another folder")
    filling = _Filling(folder)
    folder.create(UNFINISHED, filling.marker)
    try:
        yield filling
    except Exception:
        if filling.stands:
            _empty(folder)
        raise
    filling.finish()


def _empty(folder: Storage) -> None:
    """Delete what an import has written so far."""
    for path in (*_parts(folder), QUERIES, RELEVANCE, UNFINISHED):
        folder.delete(path)


def _parts(folder: Storage) -> list[str]:
    return [f"{ITEMS}/{name}" for name in folder.list(ITEMS) if PART.fullmatch(name)]


def _write_items(filling: _Filling, items: VectorFile) -> Lengths:
    lengths, first = Lengths(), 0
    for block in items.blocks(rows_within(PART_BYTES, items.width)):
        ids = np.arange(first, first + len(block)) if items.ids is None else items.ids.slice(first, len(block))
        part = pa.table({"item_id": ids, VECTOR: as_column(block)})
        filling.write_part(first, part_to_bytes(part))
        lengths.add(block)
        first += len(block)
    return lengths


def _queries(of_queries: VectorFile, split: str) -> pa.Table:
    blocks = [as_column(block) for block in of_queries.blocks()]
    ids = pa.chunked_array([np.arange(of_queries.num_rows)]) if of_queries.ids is None else of_queries.ids
    return pa.table({"query_id": ids, VECTOR: pa.chunked_array(blocks), "split": pa.repeat(split, of_queries.num_rows)})


def _check_fit(items: VectorFile, of_queries: VectorFile | None, lists: ListFile | None, split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if of_queries is not None and of_queries.width != items.width:
        raise ValueError(
            f"{of_queries.file} must hold rows of {items.width} numbers as {items.file}, got {of_queries.width}"
        )
    if lists is not None and of_queries is None:
        raise ValueError(f"{lists.file} must come with the queries whose neighbors it holds, got none: give them too")
    if lists is not None and of_queries is not None and lists.num_rows != of_queries.num_rows:
        raise ValueError(
            f"{lists.file} must hold a list for each of the {of_queries.num_rows} rows of {of_queries.file}, got "
            f"{lists.num_rows}"
        )
