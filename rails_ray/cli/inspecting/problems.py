"""All that is wrong with a data set, in the sentences with which training would refuse it.

Training stops at the first problem. Here every file and every column is checked on its own, by the checks that training
makes, so that each problem has its sentence: the first of its kind in a file's column. This is done only for data that
training refuses; others are read once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from rails_ray.cli.inspecting.readings import INSTEAD, USERS, Reading
from rails_ray.cli.inspecting.tables import Survey
from rails_ray.data.forms.numbers import check_one_form, features_of
from rails_ray.data.queries import SPLITS
from rails_ray.data.relevance import splits_of
from rails_ray.data.sources import Sources
from rails_ray.data.times import times_of
from rails_ray.data.vectors import VectorShape, vectors_of
from rails_ray.storage.parquet_files import RowBatch
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.tables import Table
from rails_ray.storage.values import REFERENCE, TEXT, TIME, WEIGHT, Columns, Kind

DISTINCT = {"items": "item_id", "queries": "query_id", "users": "user_id"}
KNOWN = (  # the ids of one table that another must have
    ("relevance", "query_id", "queries"),
    ("relevance", "item_id", "items"),
    ("interactions", "item_id", "items"),
    ("interactions", "user_id", "users"),
)
FEATURES = ("feature_indices", "feature_values")
MOST_WRONG = 1_000  # wrong rows of a batch that are looked at: our choice; a kind that comes later is left out


@dataclass
class Found:
    """
    sentences: what is wrong, by what must hold.
    broken: the (table, column, number of the file) that cannot be read.
    """

    sentences: dict[str, str] = field(default_factory=dict)
    broken: set[tuple[str, str, int]] = field(default_factory=set)

    def note(self, sentence: str) -> None:
        """Take down what is wrong, if nothing breaks that rule in that column of that file yet."""
        self.sentences.setdefault(sentence.partition(", got")[0], sentence)

    @contextmanager
    def noting(self, *broken: tuple[str, str, int]) -> Iterator[None]:
        """Take down what is wrong with some columns."""
        try:
            yield
        except ValueError as error:
            self.broken |= set(broken)
            self.note(str(error))

    def is_whole(self, name: str, column: str) -> bool:
        """Return whether a column can be read of every file."""
        return not any(broken[:2] == (name, column) for broken in self.broken)

    def readable_files(self, name: str, table: Survey, *columns: str) -> list[Table]:
        """Each file of which these columns can be read, as a table of its own."""
        together = self.readable(name, table, *columns)
        return [] if together is None else [together.only([number]) for number in range(len(together.paths))]

    def readable(self, name: str, table: Survey, *columns: str) -> Table | None:
        """The files of which these columns can be read; None if there are none."""
        broken = {number for other, column, number in self.broken if other == name and column in columns}
        numbers = [number for number in _numbers(table) if number not in broken]
        return table.table.only(numbers) if numbers else None


def problems(sources: Sources, reading: Reading, surveyed: dict[str, Survey], known: Sequence[str]) -> list[str]:
    """Find what is wrong with data that training refuses.

    Args:
        reading: how recipes read it.
        known: what is known to be wrong, first what training says.
    """
    found = Found()
    for sentence in known:
        found.note(sentence)
    tables = {name: surveyed[name] for name in reading.columns if name in surveyed and surveyed[name].num_files}
    needed = {name: _there(table, reading.columns[name]) for name, table in tables.items()}
    if "interactions" in tables and "users" in surveyed and surveyed["users"].num_files:
        tables["users"], needed["users"] = surveyed["users"], USERS
    for name, table in tables.items():
        _check_columns(found, name, table, needed[name], reading.optional.get(name, {}))
    _check_ids(found, sources, tables)
    for name, columns in (("items", reading.item_columns), ("queries", ("vector",))):
        for column in columns:
            if column in needed.get(name, {}) and not needed[name][column].is_filled:
                _check_vectors(found, name, tables[name], column, needed[name][column])
    if "queries" in tables:
        _check_queries(found, "queries", tables["queries"], needed["queries"])
    if "interactions" in tables:
        _check_times(found, sources, "interactions", tables["interactions"])
    _check_weights(found, sources, tables)
    return list(found.sentences.values())


def _there(table: Survey, columns: Columns) -> Columns:
    """The columns, with another in place of one that a table lacks, if it does as well."""
    named = ((name, kind, INSTEAD.get(name, (name, kind))) for name, kind in columns.items())
    return dict((name, kind) if table.has(name) or not table.has(other[0]) else other for name, kind, other in named)


def _numbers(table: Survey) -> list[int]:
    """The files with rows, or that cannot be read; all if none has a row."""
    empty = {footer.name for footer in table.footers if not footer.num_rows}
    numbers = range(table.num_files)
    return [number for number in numbers if table.table.only([number]).name not in empty] or list(numbers)


def _with_nulls(kind: Kind) -> Kind:
    return replace(kind, keeps_nulls=True)


def _check_columns(found: Found, name: str, table: Survey, needed: Columns, optional: Columns) -> None:
    """Each column of each file: that it is there, its type, its values, and nulls; then that files go together."""
    kinds = {**optional, **needed}
    for number in _numbers(table):
        file = table.table.only([number])
        for column, kind in kinds.items():
            with found.noting((name, column, number)):
                if column in needed or column in file:
                    _read_through(file.batches({column: _with_nulls(kind)}))
            with found.noting():
                if column in needed and not kind.keeps_nulls:
                    _read_through(file.batches({column: replace(kind, change=lambda values: values)}))
    for column, kind in kinds.items():
        together = found.readable(name, table, column)
        with found.noting():
            if together is not None and column in together:
                next(together.batches({}, {column: _with_nulls(kind)}), None)


def _read_through(batches: Iterator[object]) -> None:
    deque(batches, maxlen=0)


def _check_ids(found: Found, sources: Sources, tables: dict[str, Survey]) -> None:
    """Ids that are there twice, and those that name nothing; null is none of them."""
    for name, column in DISTINCT.items():
        there = found.readable(name, tables[name], column) if name in tables else None
        with found.noting():
            if there is not None:
                check_distinct(there.read({column: REFERENCE}), column)
    for name, column, other in KNOWN:
        there = found.readable(name, tables[name], column) if name in tables and other in tables else None
        with found.noting():
            if there is not None and found.is_whole(other, column):
                known = tables[other].table.read({column: REFERENCE})
                sources.references(name, there.read({column: REFERENCE}), {column: known})


def _check_rows(found: Found, files: Sequence[Table], columns: Columns, check: Callable[[RowBatch], object]) -> None:
    """Take down the first row of each kind that a check of batches refuses. Halving finds it."""
    kinds = {column: _with_nulls(kind) for column, kind in columns.items()}
    for file in files:
        for batch in file.batches(kinds):
            parts, num_wrong = [batch], 0
            while parts and num_wrong < MOST_WRONG:
                part = parts.pop()
                half, wrong = len(part.table) // 2, _refused(part, check)
                if wrong is not None and half:
                    parts += [_sliced(part, half, None), _sliced(part, 0, half)]
                elif wrong:
                    found.note(wrong)
                    num_wrong += 1


def _refused(batch: RowBatch, check: Callable[[RowBatch], object]) -> str | None:
    """Return what a check says against a batch, None if nothing; an empty text for nulls, which are noted already."""
    if any(column.null_count for column in batch.table.columns):
        return ""
    try:
        check(batch)
    except ValueError as error:
        return str(error)
    return None


def _sliced(batch: RowBatch, first: int, num_rows: int | None) -> RowBatch:
    return replace(batch, table=batch.table.slice(first, num_rows), first_row=batch.at(first))


def _check_weights(found: Found, sources: Sources, tables: dict[str, Survey]) -> None:
    for name in ("relevance", "interactions"):
        there = found.readable(name, tables[name], "weight") if name in tables else None
        with found.noting():
            if there is not None and "weight" in there:
                sources.weights(name, there.read({}, {"weight": WEIGHT}))


def _check_vectors(found: Found, name: str, table: Survey, column: str, kind: Kind) -> None:
    files = found.readable(name, table, column)
    with found.noting():
        if files is not None:
            shape = VectorShape.of(files, column, _with_nulls(kind))
            per_file = found.readable_files(name, table, column)
            _check_rows(found, per_file, {column: kind}, lambda batch: vectors_of(batch, column, shape))


def _check_queries(found: Found, name: str, table: Survey, needed: Columns) -> None:
    """Splits that are none, features that cannot be, and columns of both vectors and features."""
    for file in found.readable_files(name, table, "split") if "split" in needed else ():
        with found.noting():
            splits_of(file.read({"split": _with_nulls(TEXT)}, changed=_filled))
    features = {column: kind for column, kind in needed.items() if column in FEATURES}
    if features:
        _check_rows(found, found.readable_files(name, table, *features), features, features_of)
    whole = found.readable(name, table, *needed)
    with found.noting():
        if whole is not None and needed.keys() & {*FEATURES, "vector"}:
            check_one_form(whole)


def _filled(batch: RowBatch) -> pa.Table:
    """The splits of a batch, with a good one in place of null."""
    return pa.table({"split": batch["split"].fill_null(SPLITS[0])})


def _check_times(found: Found, sources: Sources, name: str, table: Survey) -> None:
    there = found.readable(name, table, "timestamp")
    with found.noting():
        if there is not None and "timestamp" in there:
            rows = there.read({}, {"timestamp": _with_nulls(TIME)})
            times_of(sources, rows, rows.table.drop_null())
