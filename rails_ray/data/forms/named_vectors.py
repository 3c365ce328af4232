"""A query is several vectors by name, and so is an item; a request gives them as `embeddings`.

    items       item_id (integer or string, distinct), title or text (string; may be left out), and a column of vectors
                (lists of numbers, of one length in a column) for each vector of an item
    queries     query_id (integer or string, distinct), split ("train", "valid" or "test"), and such a column for each
                vector of a query
    relevance   query_id, item_id: this item answers this query

The model names the columns. One named title or text is no text then. A null or an empty list in a column of items says
that the item lacks that vector, which is read as zeros; an item must have one vector at least, and a query all of them.

Axes: X items, Q queries, P vectors of one, D_p width of vector p, E = D_1 + .. + D_P.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import numbers
from rails_ray.data.queries import SPLITS, DenseRows
from rails_ray.data.relevance import are_to_be_read, by_split, no_queries
from rails_ray.data.sources import Sources, null_notes
from rails_ray.data.vectors import VectorShape, as_column, mapped, vectors_of
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.schema.fields import check_embedding
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.parquet_files import RowBatch
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.tables import Table
from rails_ray.storage.values import FILLED_VECTOR, ID, NUMBERS, TEXT, Columns

LARGEST_FLOAT = float(np.finfo(np.float32).max)
NO_WIDTHS: Mapping[str, int] = {}


@runtime_checkable
class NamedVectorsModel(Model, Protocol):
    """A model whose queries are several vectors."""

    @property
    def vector_widths(self) -> dict[str, int]:
        """Numbers of each vector of a query by its name."""


@dataclass(frozen=True)
class NamedVectorsForm:
    """The contract of `QueryForm`.

    query_columns: columns with the vectors of queries.
    item_columns: columns with the vectors of items.
    query_widths: numbers of each vector of a query, if the model already has them.
    item_widths: numbers of each vector of an item, if the model already has them.
    """

    query_columns: tuple[str, ...] = ()
    item_columns: tuple[str, ...] = ()
    query_widths: tuple[int, ...] = ()
    item_widths: tuple[int, ...] = ()

    fields: ClassVar[tuple[str, ...]] = ("embeddings",)
    tables: ClassVar[str] = numbers.TABLES
    packaged: ClassVar[None] = None

    @property
    def item_shape(self) -> tuple[int, ...]:
        """(E,) of an item, whose vectors are joined; empty for the data's."""
        return (sum(self.item_widths),) if self.item_widths else ()

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> DataSet:
        items = numbers.item_files(sources, (), without=self.item_columns).read()
        check_distinct(items, "item_id")
        item_ids = ItemIds(items["item_id"])
        titles = Texts(items["title"]) if "title" in items else None
        columns = dict.fromkeys(self.item_columns, FILLED_VECTOR)
        if not are_to_be_read(sources, needed):
            none = DenseRows(np.empty((0, 0), dtype=np.float32))
            return DataSet(item_ids, none, no_queries(none), titles=titles)
        inputs = _read(sources, "items", columns)
        numbers.check_compared(sources, "items", items["item_id"], inputs)
        columns = dict.fromkeys(self.query_columns, NUMBERS)
        queries = sources.read("queries", {"query_id": ID, "split": TEXT})
        asked = _read(sources, "queries", columns)
        numbers.check_compared(sources, "queries", queries["query_id"], asked)
        return DataSet(item_ids, inputs, by_split(sources, queries, items, asked.take, needed), titles=titles)

    def corpus(self, sources: Sources) -> Corpus:
        items = numbers.item_files(sources, (), sources.attribute_columns(), self.item_columns)
        vectors = dict.fromkeys(self.item_columns, FILLED_VECTOR)
        table = sources.open("items", vectors)
        known = dict(zip(self.item_columns, self.item_widths, strict=False))
        shapes = _shapes(table, vectors, known)
        for name, width in known.items():
            [found] = shapes[name].sizes
            if found != width:
                raise ValueError(
                    f"column {name!r} of {table.name} must hold vectors of {width} numbers, as the model reads them, "
                    f"got {found}: train a new run"
                )
        made = partial(_with_vectors, changed=items.changed, shapes=shapes)
        files = replace(items, columns={**items.columns, **vectors}, changed=made)
        return Corpus(files, {"embeddings": "vectors"})

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "NamedVectorsReader":
        assert isinstance(model, NamedVectorsModel)
        return NamedVectorsReader(model)

    def item(self, vectors: Mapping[str, Sequence[float]], where: str) -> list[float]:
        """The contract of `NamedItems`, with zeros for vectors that are left out."""
        return joined(vectors, dict(zip(self.item_columns, self.item_widths, strict=True)), where, may_lack=True)


@dataclass(frozen=True)
class NamedVectorsReader:
    """The contract of `QueryReader`."""

    model: NamedVectorsModel

    def read(self, query: dict[str, Any], where: str) -> list[float]:
        found = joined(query["embeddings"], self.model.vector_widths, where)
        if self.model.is_blank(found):
            raise ValueError(f"{where}.embeddings must hold a number other than 0, got {len(found)} zeros")
        return found

    def seen(self, read: list[float]) -> list[ItemId]:
        return []

    def batch(self, read: list[list[float]]) -> DenseRows:
        return DenseRows(np.array(read, dtype=np.float32))

    def batch_of(self, vectors: NDArray[np.float32]) -> None:
        """The contract of `QueryReader`: a query is several vectors."""

    def example(self) -> dict[str, Any]:
        return {"embeddings": {name: [1.0] * width for name, width in self.model.vector_widths.items()}}


def joined(
    vectors: Mapping[str, Sequence[float]], widths: Mapping[str, int], where: str, *, may_lack: bool = False
) -> list[float]:
    """Vectors of a request, one after the other.

    Args:
        widths: numbers of each, by name.
        where: place in the request, for messages.
        may_lack: whether one may be left out, and is zeros then.

    Raises:
        ValueError: if a name is missing or unknown, or a vector has another width or too large numbers.
    """
    names = vectors.keys()
    if not names <= widths.keys() or (not may_lack and names != widths.keys()):
        some = "some of " if may_lack else ""
        raise ValueError(
            f"{where}.embeddings must have a vector for {some}{', '.join(widths)}, got {', '.join(names) or 'none'}"
        )
    for name, vector in vectors.items():
        check_embedding(list(vector), widths[name], where, LARGEST_FLOAT, field=f"embeddings.{name}")
    return [number for name, width in widths.items() for number in vectors.get(name, [0.0] * width)]


def _read(sources: Sources, name: str, columns: Columns) -> DenseRows:
    """The vectors of a table, those of a row one after the other, mapped into memory, with a note on those missing."""
    table = sources.open(name, columns)
    shapes, num_null = _shapes(table, columns), Counter[str]()

    def blocks() -> Iterator[NDArray[np.float32]]:
        for batch in table.batches(columns):
            num_null.update(batch.num_null)
            yield _joined(batch, shapes)

    widths = tuple(shape.sizes[0] for shape in shapes.values())
    found = DenseRows(mapped(blocks(), VectorShape((sum(widths),), table.paths[0])), widths)
    for note in null_notes(name, num_null, len(found), vectors=columns):
        sources.note(note)
    return found


def _shapes(table: Table, columns: Columns, known: Mapping[str, int] = NO_WIDTHS) -> dict[str, VectorShape]:
    """The shape of each column's vectors, as its first vector has it, or else as the model knows it.

    Args:
        known: widths by column.

    Raises:
        ValueError: if a column has no vector, and the model does not know its width.
    """
    shapes = dict[str, VectorShape]()
    for column, kind in columns.items():
        for batch in table.batches({column: kind}):
            lengths = pc.list_value_length(batch[column]).to_numpy()
            if lengths.any():
                first = int(np.flatnonzero(lengths)[0])
                shapes[column] = VectorShape((int(lengths[first]),), batch.file, batch.at(first))
                break
        else:
            if column in known:
                shapes[column] = VectorShape((known[column],), table.paths[0])
                continue
            raise ValueError(
                f"column {column!r} of {table.name} must hold a vector in some row, got none in all: leave it out of "
                "the encoder's columns"
            )
    return shapes


def _joined(batch: RowBatch, shapes: Mapping[str, VectorShape]) -> NDArray[np.float32]:
    """Raises what `vectors_of` does."""
    return np.concatenate(
        [vectors_of(_filled(batch, column, shape.sizes[0]), column, shape) for column, shape in shapes.items()], axis=1
    )


def _filled(batch: RowBatch, column: str, width: int) -> RowBatch:
    """The batch with zeros for each vector that an item lacks."""
    lengths = pc.list_value_length(batch[column]).to_numpy()
    if column not in batch.num_null or lengths.all():
        return batch
    given = pc.list_flatten(batch[column]).combine_chunks()
    zero = pa.array(np.zeros(1, given.type.to_pandas_dtype()), given.type)
    sizes = np.where(lengths == 0, width, lengths)
    places = np.full(sizes.sum(), len(given))
    places[np.repeat(lengths > 0, sizes)] = np.arange(len(given))
    values = pa.concat_arrays([given, zero]).take(pa.array(places))
    lists = pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(sizes)]), values)
    return replace(batch, table=batch.table.set_column(batch.table.column_names.index(column), column, lists))


def _with_vectors(
    batch: RowBatch, changed: Callable[[RowBatch], pa.Table], shapes: Mapping[str, VectorShape]
) -> pa.Table:
    return changed(batch).append_column("input", as_column(_joined(batch, shapes)))
