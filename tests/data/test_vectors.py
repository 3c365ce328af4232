"""Vectors of users' tables: every form that they come in, and what is told of what is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.corpus import item_inputs
from rails_ray.data.forms import vectors_of_items
from rails_ray.data.queries import DenseRows
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import as_column
from support.data_folders import write_vector_data

WIDTH = 7
ONE, THREE = vectors_of_items(("vector",), ()), vectors_of_items(("a", "b", "c"), ())


def doubles(depth: int) -> pa.DataType:
    inner = pa.list_(pa.float64(), WIDTH)
    return inner if depth == 2 else pa.list_(inner, 3)


def rewritten(folder: Path, change: Callable[[pa.Table], pa.Table]) -> Sources:
    """The same data with other items."""
    pq.write_table(change(pq.read_table(folder / "items.parquet")), folder / "items.parquet")
    return Sources(str(folder))


def with_vectors(values: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(1, "vector", values)


@pytest.mark.parametrize("num_vectors", [1, 3])
@pytest.mark.parametrize(
    "stored",
    [
        lambda rows: pa.array(rows.tolist()),
        as_column,
        lambda rows: pa.array(rows.tolist(), pa.large_list(pa.float16()) if rows.ndim == 2 else None),
        lambda rows: as_column(rows).cast(doubles(rows.ndim)),
    ],
    ids=["lists", "float32", "other lists", "float64"],
)
def test_vectors_of_every_type(num_vectors: int, stored: Any, tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data", num_vectors)
    rows = np.random.default_rng(1).integers(-8, 9, (60, num_vectors, WIDTH)).astype(np.float32)
    rows = rows[:, 0] if num_vectors == 1 else rows
    sources = rewritten(folder, with_vectors(stored(rows)))
    read = ONE.read(sources).item_inputs
    assert isinstance(read, DenseRows)
    assert np.array_equal(read.values, rows)
    corpus = ONE.corpus(sources).items
    [block] = corpus.blocks([corpus.scan(0).rows], 4, 20)
    assert np.array_equal(item_inputs(block).values, rows[4:24])


def test_several_columns_are_the_vectors_of_an_item(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    columns = {name: np.full((60, WIDTH), number, np.float32) for number, name in enumerate("abc", start=1)}
    sources = rewritten(
        folder, lambda table: pa.table({"item_id": table["item_id"], **{n: as_column(v) for n, v in columns.items()}})
    )
    assert np.array_equal(THREE.read(sources).item_inputs.values, np.stack(list(columns.values()), axis=1))


def row_of(values: list[Any], row: int) -> pa.Array:
    lists = np.zeros((60, WIDTH)).tolist()
    lists[row] = values
    return pa.array(lists, pa.list_(pa.float64()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (row_of([0.0] * 6, 17), "must hold 7 numbers in every row as in row 0, got 6 in row 17"),
        (row_of([], 0), "must hold at least 1 number, got none in row 0"),
        (row_of([0.0, None, *[0.0] * 5], 9), "must hold numbers, got null in row 9"),
        (row_of([0.0, np.nan, *[0.0] * 5], 8), "must hold numbers that are finite in float32, got nan in row 8"),
        (row_of([1e39, *[0.0] * 6], 59), r"must hold numbers that are finite in float32, got 1e\+39 in row 59"),
        (pa.array([None, *[[0.0]] * 59]), "must have a value in every row, got null in row 0"),
        (pa.array(["x"] * 60), "must be of type list of floats or list of integers or list of lists of floats, got"),
    ],
)
def test_rows_that_are_no_vectors(values: pa.Array, message: str, tmp_path: Path) -> None:
    sources = rewritten(write_vector_data(tmp_path / "data"), with_vectors(values))
    with pytest.raises(ValueError, match=rf"column 'vector' of .*/items\.parquet {message}"):
        ONE.read(sources)
    with pytest.raises(ValueError, match=rf"column 'vector' of .*/items\.parquet {message}"):
        ONE.corpus(sources).items.scan(0)


def test_a_vector_of_another_length_in_one_of_many_files(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    (folder / "items.parquet").unlink()
    (folder / "items").mkdir()
    for number in range(4):
        rows = np.zeros((20, WIDTH)).tolist()
        if number == 3:
            rows[17] = [0.0] * 5
        ids = [f"item-{number * 20 + row}" for row in range(20)]
        pq.write_table(pa.table({"item_id": ids, "vector": rows}), folder / "items" / f"{number}.parquet")
    message = (
        r"column 'vector' of .*/items/3\.parquet must hold 7 numbers in every row as in row 0 of "
        r".*/items/0\.parquet, got 5 in row 17"
    )
    with pytest.raises(ValueError, match=message):
        ONE.read(Sources(str(folder)))
    with pytest.raises(ValueError, match=message):
        ONE.corpus(Sources(str(folder))).items.scan(3)


def test_columns_of_two_widths(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    sources = rewritten(
        folder,
        lambda table: pa.table(
            {"item_id": table["item_id"], "a": [[1.0]] * 60, "b": [[1.0, 2.0]] * 60, "c": [[1.0]] * 60}
        ),
    )
    with pytest.raises(ValueError, match=r"column 'b' of .* must hold one vector of 1 numbers .* column 'a', got 2"):
        THREE.read(sources)


def test_items_that_a_trained_model_does_not_read(tmp_path: Path) -> None:
    sources = Sources(str(write_vector_data(tmp_path / "data")))
    vectors_of_items(("vector",), (1, WIDTH)).corpus(sources)
    with pytest.raises(ValueError, match="must have vectors as the model reads them, 1 x 9 numbers an item, got 1 x 7"):
        vectors_of_items(("vector",), (1, 9)).corpus(sources)
