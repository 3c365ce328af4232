"""Data sets of several vectors by name: what is read of their tables, and what is wrong with them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rails_ray.data.corpus import item_inputs
from rails_ray.data.forms import QueryForm, several_vectors, vectors_of_items
from rails_ray.data.sources import Sources
from support.data_folders import write_named_data, write_vector_data

NAMES = ("title", "body")
FORM = several_vectors((NAMES, NAMES), ((), ()))
NO_VECTORS = pa.array([[]] * 60, pa.list_(pa.float32()))
KNOWN = several_vectors((NAMES, NAMES), ((4, 7), (4, 7)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_named_data(tmp_path / "data")


def rewritten(folder: Path, table: str, column: str, change: Callable[[list[Any]], Any]) -> Sources:
    """Replace a column of a table, and read the folder."""
    path = folder / f"{table}.parquet"
    read = pq.read_table(path)
    values = pa.array(change(read[column].to_pylist()))
    pq.write_table(read.set_column(read.column_names.index(column), column, values), path)
    return Sources(str(folder))


def test_vectors_of_a_row_are_joined_and_those_that_an_item_lacks_are_zeros(folder: Path) -> None:
    sources = Sources(str(folder))
    read, rows = FORM.read(sources), pq.read_table(folder / "items.parquet").to_pylist()
    expected = np.array([(row["title"] or [0.0] * 4) + (row["body"] or [0.0] * 7) for row in rows], np.float32)
    assert np.array_equal(read.item_inputs.values, expected)
    assert not expected[0, :4].any()
    assert not expected[5, 4:].any()
    assert read.item_inputs.widths == read.queries["train"].inputs.widths == (4, 7)
    asked = pq.read_table(folder / "queries.parquet").slice(120, 3).to_pylist()
    joined = np.array([row["title"] + row["body"] for row in asked], np.float32)
    assert np.array_equal(read.queries["test"].head(3).inputs.values, joined)
    assert list(read.titles)[:2] == ["text of item-0", "text of item-1"]  # as the column title is none
    for column in NAMES:
        notes = [note for note in sources.notes if f"'{column}'" in note]
        assert notes == [f"items: 6 of 60 values of column {column!r} are null, read as no vectors"]


@pytest.mark.parametrize("type_of", [pa.list_, pa.large_list, None], ids=["list", "large list", "fixed size"])
@pytest.mark.parametrize("number", [pa.float16(), pa.float64(), pa.int8()], ids=str)
def test_a_corpus_has_the_inputs_of_the_data_set(folder: Path, type_of: Any, number: pa.DataType) -> None:
    """Vectors come as each type of list, and some are null."""
    kind = pa.list_(number, 4) if type_of is None else type_of(number)

    def change(values: list[Any]) -> pa.Array:
        numbers = np.float16 if number == pa.float16() else np.int8 if number == pa.int8() else np.float64
        return pa.array([None if own is None else np.array(own).astype(numbers) + numbers(9) for own in values], kind)

    rewritten(folder, "items", "title", change)
    read = FORM.read(Sources(str(folder))).item_inputs.values
    corpus = KNOWN.corpus(Sources(str(folder)))
    scan = corpus.items.scan(0)
    [block] = corpus.items.blocks([scan.rows], 3, 20)
    assert np.array_equal(item_inputs(block).values, read[3:23])
    assert scan.num_null == {"text": 0, "title": 6, "body": 6}
    assert scan.num_zero == 0
    assert corpus.null_notes(scan.num_null, 60) == [
        f"items: 6 of 60 values of column {name!r} are null, read as no vectors" for name in NAMES
    ]


def with_row(row: int, value: Any) -> Callable[[list[Any]], Any]:
    return lambda values: [*values[:row], value, *values[row + 1 :]]


@pytest.mark.parametrize(
    ("table", "column", "change", "message"),
    [
        ("items", "body", with_row(3, [1.0] * 6), "must hold 7 numbers in every row as in row 0, got 6 in row 3"),
        ("items", "title", with_row(3, [1.0] * 6), "must hold 4 numbers in every row as in row 1, got 6 in row 3"),
        ("items", "body", with_row(3, [1.0] * 6 + [np.nan]), "finite in float32, got nan in row 3"),
        ("items", "body", with_row(3, [1.0] * 6 + [1e39]), r"finite in float32, got 1e\+39 in row 3"),
        ("items", "body", with_row(3, [1.0] * 6 + [None]), "must hold numbers, got null in row 3"),
        ("items", "title", lambda values: pa.nulls(60), "must hold a vector in some row, got none in all: leave it"),
        (
            "items",
            "title",
            lambda values: pa.array([[]] * 60, pa.list_(pa.float32())),
            "must hold a vector in some row, got none in all: leave it",
        ),
        ("items", "title", lambda values: ["x"] * 60, "must be of type list of floats or list of integers, got string"),
        ("queries", "body", with_row(7, None), "must have a value in every row, got null in row 7"),
        ("queries", "body", with_row(7, []), "must hold 7 numbers in every row as in row 0, got 0 in row 7"),
        ("queries", "body", with_row(7, [np.inf] * 7), "finite in float32, got inf in row 7"),
    ],
)
def test_rows_that_are_no_vectors(folder: Path, table: str, column: str, change: Any, message: str) -> None:
    sources = rewritten(folder, table, column, change)
    pattern = rf"column '{column}' of .*/{table}\.parquet .*{message}"
    with pytest.raises(ValueError, match=pattern):
        FORM.read(sources)
    if table == "items":
        with pytest.raises(ValueError, match=pattern):
            FORM.corpus(Sources(str(folder))).items.scan(0)


@pytest.mark.parametrize("table", ["items", "queries"])
def test_a_column_that_is_missing(folder: Path, table: str) -> None:
    path = folder / f"{table}.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["body"]), path)
    with pytest.raises(ValueError, match=rf"/{table}\.parquet must have .*'body'"):
        FORM.read(Sources(str(folder)))


@pytest.mark.parametrize("lacks", [None, [0.0] * 4], ids=["null", "zeros"])
def test_an_item_that_lacks_all_its_vectors(folder: Path, lacks: Any) -> None:
    rewritten(folder, "items", "body", with_row(2, None))
    sources = rewritten(folder, "items", "title", with_row(2, lacks))
    message = r"vectors of items must hold a number other than 0 .* got zeros for 1 of 60, the first of them 'item-2'"
    with pytest.raises(ValueError, match=message):
        FORM.read(sources)
    assert KNOWN.corpus(Sources(str(folder))).items.scan(0).num_zero == 1


def test_items_that_a_trained_model_does_not_read(folder: Path) -> None:
    other = several_vectors((NAMES, NAMES), ((4, 7), (4, 6)))
    message = "column 'body' of .*items.parquet must hold vectors of 6 numbers, as the model reads them, got 7: train a"
    with pytest.raises(ValueError, match=message):
        other.corpus(Sources(str(folder)))


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.null()], ids=str)
def test_items_to_add_may_all_lack_a_vector(folder: Path, kind: pa.DataType) -> None:
    rewritten(folder, "items", "title", lambda rows: pa.nulls(len(rows), kind))
    rows = pq.read_table(folder / "items.parquet").filter(pc.field("body").is_valid())
    pq.write_table(rows, folder / "items.parquet")
    items = KNOWN.corpus(Sources(str(folder))).items
    [block] = items.blocks([items.scan(0).rows], 0, len(rows))
    inputs = item_inputs(block).values
    assert not inputs[:, :4].any()
    assert np.array_equal(inputs[:, 4:], np.array(rows["body"].to_pylist(), np.float32))


def test_a_first_vector_that_comes_late(folder: Path) -> None:
    """After more nulls than a batch of the table holds."""
    many = 70_000
    ids = [f"item-{row}" for row in range(many)]
    titles, bodies = [None] * (many - 1) + [[1.0] * 4], [[1.0] * 7] * many
    pq.write_table(pa.table({"item_id": ids, "title": titles, "body": bodies}), folder / "items.parquet")
    read = FORM.read(Sources(str(folder))).item_inputs
    assert read.widths == (4, 7)
    assert read.values[:, :4].any(axis=1).sum() == 1


@pytest.mark.parametrize("names", [("title", "text"), ("vector", "title")], ids=" and ".join)
def test_vectors_whose_columns_are_named_as_texts(names: tuple[str, str], tmp_path: Path) -> None:
    """They are no titles, for several vectors of one width neither."""
    folder = write_vector_data(tmp_path / "data")
    read = pq.read_table(folder / "items.parquet")
    table = pa.table({"item_id": read["item_id"], **dict.fromkeys(names, read["vector"])})
    pq.write_table(table, folder / "items.parquet")
    forms: list[QueryForm] = [vectors_of_items(names, ()), several_vectors((("vector",), names), ((), ()))]
    for form in forms:
        data = form.read(Sources(str(folder)))
        assert data.titles is None
        assert len(data.item_inputs) == 60
        items = form.corpus(Sources(str(folder))).items.read()
        assert "title" not in items
        assert np.array_equal(item_inputs(items.table).values, data.item_inputs.values)


def test_no_queries_are_needed_to_read_items(folder: Path) -> None:
    for table in ("queries", "relevance"):
        (folder / f"{table}.parquet").unlink()
    read = FORM.read(Sources(str(folder)), ())
    assert [len(read.item_ids), len(read.queries["test"])] == [60, 0]
    with pytest.raises(Exception, match=re.escape("queries.parquet must exist")):
        FORM.read(Sources(str(folder)))
