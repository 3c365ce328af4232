"""Data sets for the look before training, and what spoils a table of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from rails_ray.cli.inspecting.report import inspect
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.data.sources import Sources
from rails_ray.storage.ids import ItemIds
from support.data_folders import write_number_data, write_sequence_data, write_text_data

SPLITS = ("train", "valid", "test")
lists_of_items = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), min_size=1, max_size=6)


def looked(folder: Path | str, *, num_sampled: int = 1000, has_timing: bool = False) -> dict[str, Any]:
    return inspect(Sources(str(folder)), num_sampled=num_sampled, has_timing=has_timing)


def data_of(train: list[list[int]], test: list[list[int]], num_items: int = 8, texts: Any = None) -> DataSet:
    """Queries by the items that answer them, numbered as inputs."""
    own = {"train": train, "valid": test, "test": test}
    queries = {split: Queries(Texts(["q"] * len(lists)), ItemLists.of(lists)) for split, lists in own.items()}
    return DataSet(ItemIds(range(num_items)), texts or Texts([f"item {row}" for row in range(num_items)]), queries)


def change(folder: Path, table: str, changed: Callable[[pa.Table], pa.Table]) -> None:
    path = folder / f"{table}.parquet"
    pq.write_table(changed(pq.read_table(path)), path)


def into_two_files(folder: Path, table: str) -> None:
    """The same table in two files of a folder."""
    whole = pq.read_table(folder / f"{table}.parquet")
    (folder / f"{table}.parquet").unlink()
    (folder / table).mkdir()
    half = len(whole) // 2
    for number, rows in enumerate((whole.slice(0, half), whole.slice(half))):
        pq.write_table(rows, folder / table / f"{number}.parquet")


def strangers(column: str) -> Callable[[pa.Table], pa.Table]:
    """A table of which every third row names what is not there."""

    def changed(table: pa.Table) -> pa.Table:
        values = ["nobody" if row % 3 == 0 else value for row, value in enumerate(table[column].to_pylist())]
        return table.set_column(table.column_names.index(column), column, pa.array(values))

    return changed


def setting(column: str, row: int, value: Any, kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    """A table with another value in one row."""

    def changed(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        new = pa.array(values, kind or table.schema.field(column).type)
        return table.set_column(table.column_names.index(column), column, new)

    return changed


def write(folder: Path, form: str) -> Path:
    if form == "text":
        return write_text_data(folder)
    return write_sequence_data(folder) if form == "history" else write_number_data(folder, form)
