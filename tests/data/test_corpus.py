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


@pytest.mark.parametrize(("large", "kind"), [(2**40, pa.int64()), (2**63 + 1, pa.uint64())])
def test_the_first_file_does_not_decide_the_type(tmp_path: Path, large: int, kind: pa.DataType) -> None:
    unsigned = pa.uint64() if kind == pa.uint64() else pa.int64()
    items = items_of(tmp_path, table_of([3], pa.int32(), pa.string()), table_of([large], unsigned, pa.string()))
    files = [items.scan(number).rows for number in range(2)]
    assert pa.concat_tables(items.blocks(files, 0, 2))["item_id"].to_pylist() == [3, large]
    assert items.read().table["item_id"].type == kind


def test_empty_files_and_null_texts_are_counted(tmp_path: Path) -> None:
    full = pa.table({"item_id": [3, 4], "text": pa.array([None, "b"]), "title": pa.array(["x", None])})
    items = items_of(tmp_path, table_of([], pa.int64(), pa.string()), full, pa.table({"item_id": [5], "text": ["c"]}))
    scans = [items.scan(number) for number in range(3)]
    assert [scan.rows.num_rows for scan in scans] == [0, 2, 1]
    assert [scan.num_null.get("text", 0) for scan in scans] == [0, 1, 0]
    joined = pa.concat_tables(items.blocks([scan.rows for scan in scans], 0, 3))
    assert joined["input"].to_pylist() == ["x\n", "b", "c"]
    assert joined["title"].to_pylist() == ["x", "", ""]
