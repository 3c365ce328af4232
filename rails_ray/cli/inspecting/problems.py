"""All that is wrong with a data set, in the sentences with which training would refuse it.

Training stops at the first problem. Here every file and every column is checked on its own, by the checks that training
makes, so that each problem has its sentence: the first of its kind in a file's column. This is done only for data that
training refuses; others are read once.
"""

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.cli.inspecting.readings import OPTIONAL, USERS, Reading
from rails_ray.cli.inspecting.tables import Survey
from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import VectorShape, vectors_of
from rails_ray.errors import NotFoundError
from rails_ray.storage.rows import check_distinct, rows_of
from rails_ray.storage.tables import ID, Columns, Table

DISTINCT = {"items": "item_id", "queries": "query_id", "users": "user_id"}
KNOWN = (  # the ids of one table that another must have
    ("relevance", "query_id", "queries"),
    ("relevance", "item_id", "items"),
    ("interactions", "item_id", "items"),
    ("interactions", "user_id", "users"),
)


@dataclass
class Found:
    """
    sentences: what is wrong, each once.
    broken: the (table, column) that are no good, so that nothing is concluded from them.
    """

    sentences: list[str] = field(default_factory=list)
    broken: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def noting(self, table: str, *columns: str) -> Iterator[None]:
        """Take down what is wrong with some columns of a table."""
        try:
            yield
        except ValueError as error:
            self.broken |= {(table, column) for column in columns}
            if str(error) not in self.sentences:
                self.sentences.append(str(error))

    def are_good(self, *columns: tuple[str, str]) -> bool:
        return not self.broken & set(columns)


def problems(sources: Sources, reading: Reading, surveyed: dict[str, Survey], first: str) -> list[str]:
    """Find what is wrong with data that training refuses.

    Args:
        reading: how recipes read it; it lacks no column of the tables that are there.
        first: what training says.
    """
    found = Found([first])
    needed = {name: columns for name, columns in reading.columns.items() if name in surveyed}
    tables = {name: surveyed[name].table for name in needed}
    if "interactions" in tables and "users" in surveyed:
        tables["users"], needed["users"] = surveyed["users"].table, USERS
    for name, table in tables.items():
        optional = OPTIONAL[reading.form_name] if name == "items" else {}
        _check_columns(found, name, table, needed[name], optional)
    _check_ids(found, tables)
    for column in reading.item_columns:
        _check_vectors(found, "items", tables["items"], column, needed["items"][column])
    if "vector" in needed.get("queries", {}):
        _check_vectors(found, "queries", tables["queries"], "vector", needed["queries"]["vector"])
    if "queries" in tables and found.are_good(*(("queries", column) for column in needed["queries"])):
        _check_queries(found, tables["queries"], reading)
    return found.sentences


def _files(table: Table) -> list[Table]:
    """Each file as a table of its own."""
    return [Table(table.root, (path,)) for path in table.paths]


def _check_columns(found: Found, name: str, table: Table, needed: Columns, optional: Columns) -> None:
    """Each column of each file: whether it is there, its type, and nulls; then whether files go together."""
    for number, file in enumerate(_files(table)):
        for column, kinds in needed.items():
            with found.noting(name, column):
                _read_through(file.batches({column: kinds}))
        for column, kinds in optional.items():
            with found.noting(name, column):
                if column in file.column_names():
                    _read_through(file.batches({column: kinds}))
        with found.noting(name):
            next(table.batches(needed, optional, [number]), None)


def _read_through(batches: Iterator[object]) -> None:
    deque(batches, maxlen=0)


def _check_ids(found: Found, tables: dict[str, Table]) -> None:
    for name, column in DISTINCT.items():
        if name in tables and found.are_good((name, column)):
            with found.noting(name):
                check_distinct(tables[name].read({column: ID}), column)
    for name, column, other in KNOWN:
        if name in tables and other in tables and found.are_good((name, column), (other, column)):
            with found.noting(name):
                rows_of(tables[name].read({column: ID}), tables[other].read({column: ID}), column)


def _check_vectors(found: Found, name: str, table: Table, column: str, kinds: Sequence[str]) -> None:
    if not found.are_good((name, column)):
        return
    shape = None
    with found.noting(name, column):
        shape = VectorShape.of(table, column, kinds)
    for file in _files(table) if shape is not None else ():
        with found.noting(name, column):
            for batch in file.batches({column: kinds}):
                vectors_of(batch, column, shape)


def _check_queries(found: Found, table: Table, reading: Reading) -> None:
    """The values of each file of queries: they are read beside one item and no relevance. If reading gets as far as the
    missing relevance, everything before it is right."""
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder:
        items = str(Path(folder) / "items.parquet")
        pq.write_table(pa.table({"item_id": [0], "text": [""]}), items)
        for path in table.paths:
            with found.noting("queries"):
                try:
                    FORMS[reading.form_name].read(Sources(None, {"items": items, "queries": f"{table.root}/{path}"}))
                except NotFoundError:
                    continue
