"""All that is wrong with a data set, in the sentences with which training would refuse it.

Training stops at the first problem. Here every file and every column is checked on its own, by the checks that training
makes, so that each problem has its sentence: the first of its kind in a file's column. This is done only for data that
training refuses; others are read once.
"""

import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.cli.inspecting.readings import INSTEAD, OPTIONAL, USERS, Reading
from rails_ray.cli.inspecting.tables import Survey
from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import VectorShape, vectors_of
from rails_ray.errors import NotFoundError
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.tables import Table
from rails_ray.storage.values import ID, REFERENCE, WEIGHT, Columns, Kind

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
    needed = {name: _there(surveyed[name], columns) for name, columns in reading.columns.items() if name in surveyed}
    if "interactions" in needed and "users" in surveyed:
        needed["users"] = USERS
    tables = {name: surveyed[name] for name in needed}
    for name, table in tables.items():
        optional = OPTIONAL[reading.form_name] if name == "items" else {}
        _check_columns(found, name, table, needed[name], optional)
    _check_ids(found, sources, tables)
    _check_weights(found, sources, tables)
    for column in reading.item_columns:
        _check_vectors(found, "items", tables["items"], column, needed["items"][column])
    if "vector" in needed.get("queries", {}):
        _check_vectors(found, "queries", tables["queries"], "vector", needed["queries"]["vector"])
    if "queries" in tables and found.are_good(*(("queries", column) for column in needed["queries"])):
        _check_queries(found, sources, tables["queries"], reading)
    return found.sentences


def _there(table: Survey, columns: Columns) -> Columns:
    """The columns, with another in place of one that a table lacks, if it does as well."""
    named = ((name, kind, INSTEAD.get(name, (name, kind))) for name, kind in columns.items())
    return dict((name, kind) if table.has(name) or not table.has(other[0]) else other for name, kind, other in named)


def _files(table: Survey) -> list[Table]:
    """Each file with rows, or that cannot be read, as a table of its own; all if none has a row."""
    empty = {footer.name for footer in table.footers if not footer.num_rows}
    files = [replace(table.table, paths=(path,)) for path in table.table.paths]
    return [file for file in files if file.name not in empty] or files


def _check_columns(found: Found, name: str, table: Survey, needed: Columns, optional: Columns) -> None:
    """Each column of each file: whether it is there, its type, and nulls; then whether files go together."""
    for file in _files(table):
        for column, kind in needed.items():
            with found.noting(name, column):
                _read_through(file.batches({column: kind}))
        for column, kind in optional.items():
            with found.noting(name, column):
                if column in file:
                    _read_through(file.batches({column: kind}))
    with found.noting(name):
        next(table.table.batches(needed, optional), None)


def _read_through(batches: Iterator[object]) -> None:
    deque(batches, maxlen=0)


def _check_ids(found: Found, sources: Sources, tables: dict[str, Survey]) -> None:
    for name, column in DISTINCT.items():
        if name in tables and found.are_good((name, column)):
            with found.noting(name):
                check_distinct(tables[name].table.read({column: ID}), column)
    for name, column, other in KNOWN:
        if name in tables and other in tables and found.are_good((name, column), (other, column)):
            with found.noting(name):
                references = tables[name].table.read({column: REFERENCE})
                sources.references(name, references, {column: tables[other].table.read({column: ID})})


def _check_weights(found: Found, sources: Sources, tables: dict[str, Survey]) -> None:
    for name in {"relevance", "interactions"} & tables.keys():
        if tables[name].has("weight"):
            with found.noting(name, "weight"):
                sources.weights(name, tables[name].table.read({"weight": WEIGHT}))


def _check_vectors(found: Found, name: str, table: Survey, column: str, kind: Kind) -> None:
    if not found.are_good((name, column)):
        return
    shape = None
    with found.noting(name, column):
        shape = VectorShape.of(table.table, column, kind)
    for file in _files(table) if shape is not None else ():
        with found.noting(name, column):
            for batch in file.batches({column: kind}):
                vectors_of(batch, column, shape)


def _check_queries(found: Found, sources: Sources, table: Survey, reading: Reading) -> None:
    """The values of each file of queries: they are read beside one item and no relevance. If reading gets as far as the
    missing relevance, everything before it is right."""
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder:
        items = str(Path(folder) / "items.parquet")
        pq.write_table(pa.table({"item_id": [0], "text": [""]}), items)
        for file in _files(table):
            with found.noting("queries"):
                places = {"items": items, "queries": file.name}
                try:
                    FORMS[reading.form_name].read(Sources(None, places, sources.columns))
                except NotFoundError:
                    continue
