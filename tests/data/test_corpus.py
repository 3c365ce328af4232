"""Items of several files, as encoding reads them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.corpus import ItemFiles
from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources


def items_of(folder: Path, *tables: pa.Table) -> ItemFiles:
    (folder / "items").mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / "items" / f"{number}.parquet")
    found = FORMS["text"].corpus(Sources(str(folder))).items
    assert isinstance(found, ItemFiles)
    return found


def table_of(ids: list[int], kind: pa.DataType, text: pa.DataType) -> pa.Table:
    texts = [f"thing {number}" for number in ids]
    return pa.table({"item_id": pa.array(ids, kind), "text": pa.array(texts, text)})


def test_files_may_differ_in_the_width_of_ids_and_texts(tmp_path: Path) -> None:
    items = items_of(
        tmp_path,
        table_of([3, 1], pa.int32(), pa.string()),
        table_of([7], pa.int64(), pa.large_string()),
    )
    files = [items.scan(number).rows for number in range(2)]
    joined = pa.concat_tables(items.blocks(files, 1, 2))
    assert joined.to_pylist() == [{"item_id": 1, "input": "thing 1"}, {"item_id": 7, "input": "thing 7"}]
    assert joined.schema == items.read().table.schema


def test_an_id_that_the_first_file_cannot_hold_is_told_by_the_scan(tmp_path: Path) -> None:
    items = items_of(tmp_path, table_of([3], pa.int32(), pa.string()), table_of([2**40], pa.int64(), pa.string()))
    items.scan(0)
    with pytest.raises(ValueError, match="all files of a table must have columns of one type, got: "):
        items.scan(1)
