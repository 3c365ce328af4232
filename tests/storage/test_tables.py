"""Users' tables, in one file or in many: what is read, and what is told of what is wrong."""

import io
import os
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import NotFoundError, StorageError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.local import LocalFiles
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.table_places import find
from rails_ray.storage.tables import Table
from rails_ray.storage.values import FILLED_TEXT, ID, INTEGER, TEXT, Kind

COLUMNS = {"item_id": ID, "text": TEXT}


def write(storage: Storage, path: str, table: pa.Table, row_group: int = 4) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=row_group)
    storage.write(path, sink.getvalue().to_pybytes())


def items(first: int, num: int) -> pa.Table:
    rows = range(first, first + num)
    texts = pa.array([f"text {row}" for row in rows], pa.large_string())
    return pa.table({"item_id": pa.array(rows, pa.int64()), "text": texts})


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage(str(tmp_path))
    return Storage(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


@pytest.fixture
def many(storage: Storage) -> Storage:
    """Three files of 10, 1 and 7 rows in row groups of 4."""
    for number, (first, num) in enumerate(((0, 10), (10, 1), (11, 7))):
        write(storage, f"items/p{number}.parquet", items(first, num))
    storage.write("items/_SUCCESS", b"")
    return storage


@pytest.mark.parametrize("place", ["items", "items/", "items/p*.parquet", "i*/*.parquet"])
def test_a_folder_and_a_pattern_name_files_in_order(many: Storage, place: str) -> None:
    table = find(f"{many}/{place}")
    names = [f"{table.root}/{path}".rpartition("/")[2] for path in table.paths]
    assert names == ["p0.parquet", "p1.parquet", "p2.parquet"]
    assert table.read(COLUMNS).table.equals(items(0, 18))


@pytest.mark.parametrize("name", ["a@b+c d", "100%", "a%20b", "#1", "[x]", "a[0-9]"])
def test_places_of_any_characters(storage: Storage, name: str) -> None:
    write(storage, f"{name}/{name}-1.parquet", items(0, 3))
    write(storage, f"{name}/{name}-2.parquet", items(3, 2))
    for place in (f"{name}", f"{name}/{name}-*.parquet", f"{name}/{name}-?.parquet"):
        table = find(f"{storage}/{place}")
        assert len(table.paths) == 2
        assert table.read(COLUMNS).table.equals(items(0, 5))
    if "://" not in str(storage):
        assert find(Path(f"{storage}/{name}/{name}-1.parquet").as_uri()).read(COLUMNS).table.equals(items(0, 3))


def test_a_table_at_the_root_is_not_one_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"item_id": [1]}), tmp_path / "rails-ray-items.parquet")
    monkeypatch.chdir(tmp_path)
    for place in ("/rails-ray-items.parquet", "/rails-ray-*.parquet"):
        with pytest.raises(NotFoundError, match=f"^{re.escape(place)} must"):
            find(place)
    with pytest.raises(NotFoundError, match=r"s3://bucket must name a file, a folder or a pattern in the bucket"):
        find("s3://bucket")


def test_a_file_is_a_table(storage: Storage) -> None:
    write(storage, "mine.parquet", items(0, 5))
    assert find(f"{storage}/mine.parquet").read(COLUMNS).table.equals(items(0, 5))


@pytest.mark.parametrize("place", ["nowhere", "nowhere.parquet", "no*/x.parquet"])
def test_no_such_table(many: Storage, place: str) -> None:
    with pytest.raises(NotFoundError, match=r"/no.* must (exist|fit a file), got no"):
        find(f"{many}/{place}")


@given(first=st.integers(0, 17), data=st.data())
def test_any_rows_can_be_read_alone(first: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("some")
    for number, (start, num) in enumerate(((0, 10), (10, 1), (11, 7))):
        write(Storage(str(root)), f"p{number}.parquet", items(start, num))
    table = find(str(root))
    num = data.draw(st.integers(1, 18 - first))
    found = list(table.part([table.rows(number) for number in range(3)], first, num, COLUMNS))
    assert pa.concat_tables(batch.table for batch in found).equals(items(first, num).select(COLUMNS))
    for batch in found:
        starts = {"p0.parquet": 0, "p1.parquet": 10, "p2.parquet": 11}
        assert batch["item_id"][0].as_py() == starts[Path(batch.file).name] + batch.first_row


def test_rows_after_those_that_are_wanted_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Storage(str(tmp_path)), "p.parquet", items(0, 1000), row_group=1000)
    table, decoded, iter_batches = find(str(tmp_path)), list[int](), pq.ParquetFile.iter_batches

    def counted(*given: Any, **named: Any) -> Any:
        for batch in iter_batches(*given, **named):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    [found] = table.part([table.rows(0)], 40, 20, COLUMNS)
    assert found["item_id"].to_pylist() == list(range(40, 60))
    assert sum(decoded) == 60


def test_a_file_that_changes_is_told(many: Storage) -> None:
    table = find(f"{many}/items")
    files = [table.rows(number) for number in range(3)]
    write(many, "items/p1.parquet", items(90, 3))
    list(table.part(files, 0, 10, COLUMNS))
    with pytest.raises(StorageError, match=r"p1\.parquet must stay as it is while it is read, got a change"):
        list(table.part(files, 9, 2, COLUMNS))


def test_a_file_that_changes_while_it_is_read_is_told(many: Storage) -> None:
    table = find(f"{many}/items")
    reading = table.part([table.rows(number) for number in range(3)], 11, 7, COLUMNS)
    next(reading)
    write(many, "items/p2.parquet", items(0, 9))
    with pytest.raises(StorageError, match=r"p2\.parquet must stay as it is while it is read, got a change"):
        list(reading)


@pytest.mark.parametrize(("num_rows", "got"), [(3, "3"), (0, "0"), (12, "12")])
def test_a_file_without_the_rows_of_its_footer(many: Storage, num_rows: int, got: str) -> None:
    table = find(f"{many}/items")
    assert len(table.footers) == 3
    write(many, "items/p0.parquet", items(0, num_rows))
    with pytest.raises(
        ValueError, match=rf"p0\.parquet must hold the 10 rows of its footer, got {got}: write it again"
    ):
        list(table.batches(COLUMNS))


WRONG: list[tuple[pa.Table, str]] = [
    (items(0, 3).drop_columns("text"), r"p1\.parquet must have a column 'text', got item_id"),
    (
        pa.table({"item_id": ["a"], "text": ["b"]}),
        r"column 'item_id' of .*p1\.parquet must be of type int64 as in .*p0\.parquet, got large_string",
    ),
    (pa.table({"item_id": [1], "text": [2.5]}), r"column 'text' of .*p1\.parquet must be of type string, got double"),
    (
        pa.table({"item_id": range(9), "text": ["a"] * 5 + [None] + ["b"] * 3}),
        r"column 'text' of .*p1\.parquet must have a value in every row, got null in row 5",
    ),
    (
        pa.table({"item_id": [1], "Text": ["a"], "TEXT": ["b"]}),
        r"p1\.parquet must have one column 'text', got Text, TEXT: name it by --data\.columns text=Text",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("table", "message"), WRONG)
def test_one_file_among_many_is_wrong(many: Storage, table: pa.Table, message: str) -> None:
    write(many, "items/p1.parquet", table)
    with pytest.raises(ValueError, match=message):
        find(f"{many}/items").read(COLUMNS, {"title": FILLED_TEXT})


def test_one_file_among_many_is_no_parquet(many: Storage) -> None:
    many.write("items/p1.parquet", b"item_id,text\n")
    with pytest.raises(ValueError, match=r"p1\.parquet must be a Parquet file, got: "):
        find(f"{many}/items").read(COLUMNS)


def test_a_file_of_narrower_numbers_fits(many: Storage) -> None:
    narrow = items(10, 1).set_column(0, "item_id", pa.array([10], pa.int16()))
    write(many, "items/p1.parquet", narrow)
    assert find(f"{many}/items").read(COLUMNS).table.equals(items(0, 18))


def test_a_row_is_named_by_its_file(many: Storage) -> None:
    rows = find(f"{many}/items").read(COLUMNS)
    assert [Path(rows.where(row)[0]).name for row in (0, 9, 10, 11, 17)] == [
        f"p{number}.parquet" for number in (0, 0, 1, 2, 2)
    ]
    assert [rows.where(row)[1] for row in (0, 9, 10, 11, 17)] == [0, 9, 0, 0, 6]


def test_an_id_of_two_files_is_told(many: Storage) -> None:
    write(many, "items/p2.parquet", items(8, 5))
    with pytest.raises(ValueError, match=r"p2\.parquet must hold distinct ids, got (8|9|10) again in row [012]"):
        check_distinct(find(f"{many}/items").read(COLUMNS), "item_id")


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = items(0, 1000).append_column("rest", pa.array([os.urandom(1000) for _ in range(1000)]))
    write(Storage(str(tmp_path)), "wide.parquet", wide, row_group=1000)
    read = list[int]()

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            read.append(len(data))
            return data

    monkeypatch.setattr(LocalFiles, "open", lambda files, path: (Counted(tmp_path / path), "tag"))
    assert find(f"{tmp_path}/wide.parquet").read({"item_id": ID}).table.column_names == ["item_id"]
    assert 0 < sum(read) < 200_000 < (tmp_path / "wide.parquet").stat().st_size


def test_optional_columns_are_read_and_checked_where_they_are(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    write(storage, "plain", pa.table({"a": [1]}))
    write(storage, "both", pa.table({"b": ["x"], "z": [0], "a": [1]}))
    write(storage, "wrong", pa.table({"a": [1], "b": [2]}))
    columns, optional = {"a": INTEGER}, {"b": TEXT}

    def read(name: str) -> pa.Table:
        return Table(str(tmp_path), (name,)).read(columns, optional).table

    assert read("plain").column_names == ["a"]
    assert read("both").to_pydict() == {"a": [1], "b": ["x"]}
    with pytest.raises(ValueError, match=r"column 'b' of .*/wrong must be of type string, got int64"):
        read("wrong")


def read_all(storage: Storage, place: str, columns: dict[str, Kind], **how: Any) -> pa.Table:
    return replace(find(f"{storage}/{place}"), **how).read(columns).table


def test_folders_give_columns_and_every_level_is_read(storage: Storage) -> None:
    for path, first in (
        ("t/split=train/n=7/a.parquet", 0),
        ("t/split=test/n=10/b.parquet", 2),
        ("t/split=a%20b/n=0/c.parquet/d.parquet", 4),
        ("t/split=test/n=10/_temporary/e.parquet", 6),
        ("t/.hidden/f.parquet", 6),
    ):
        write(storage, path, items(first, 2))
    storage.write("t/_SUCCESS", b"")
    storage.write("t/README.md", b"text")
    table = find(f"{storage}/t")
    assert table.left_out == ("t/README.md", "t/_SUCCESS", "t/split=test/n=10/_temporary/e.parquet")
    read = table.read({"item_id": ID, "split": TEXT, "n": INTEGER}).table
    assert read.to_pydict() == {
        "item_id": [4, 5, 2, 3, 0, 1],
        "split": ["a b", "a b", "test", "test", "train", "train"],
        "n": [0, 0, 10, 10, 7, 7],
    }
    assert find(f"{storage}/t/split=*").read({"item_id": ID}).table.num_rows == 6


def test_a_column_in_a_file_and_a_column_of_a_folder(storage: Storage) -> None:
    """A file above the folders has none of their columns; an id of a folder may be text."""
    write(storage, "t/group=x/a.parquet", items(0, 1))
    write(storage, "t/group=__HIVE_DEFAULT_PARTITION__/b.parquet", items(1, 1))
    write(storage, "t/z.parquet", items(2, 1))
    read = find(f"{storage}/t").read({"item_id": ID}, {"group": FILLED_TEXT})
    assert read.table.to_pydict() == {"item_id": [1, 0, 2], "group": ["", "x", ""]}
    assert read.num_null == {"group": 2}


@pytest.mark.parametrize(
    ("marker", "name"), [("_delta_log/0.json", "Delta Lake"), ("metadata/v1.metadata.json", "Iceberg")]
)
def test_tables_whose_log_says_which_files_count_are_refused(many: Storage, marker: str, name: str) -> None:
    many.write(f"items/{marker}", b"{}")
    with pytest.raises(ValueError, match=f"must be Parquet files that all count, got a table of {name}, whose log"):
        find(f"{many}/items")


def test_files_without_rows_or_bytes_are_no_part(many: Storage) -> None:
    write(many, "items/a.parquet", pa.table({"other": pa.array([], pa.null())}))
    many.write("items/b.parquet", b"")
    table = find(f"{many}/items")
    assert table.read(COLUMNS).table.equals(items(0, 18))
    assert [footer.num_rows for footer in table.footers] == [0, 0, 10, 1, 7]
    assert table.column_names == ["item_id", "text"]
    files = [table.rows(number) for number in range(5)]
    assert [batch["item_id"].to_pylist() for batch in table.part(files, 9, 2, COLUMNS)] == [[9], [10]]
    for name in ("p0", "p1", "p2"):
        many.delete(f"items/{name}.parquet")
    with pytest.raises(ValueError, match=r"items/a\.parquet must hold at least 1 row, got an empty table"):
        find(f"{many}/items").read(COLUMNS)


@pytest.mark.parametrize("names", [("ITEM_ID", "Text"), ("Item_Id", "TEXT"), ("item_id", "text")])
def test_columns_whose_names_differ_in_case(many: Storage, names: tuple[str, str]) -> None:
    write(many, "items/p1.parquet", items(10, 1).rename_columns(names))
    assert read_all(many, "items", COLUMNS).equals(items(0, 18))


def test_a_column_is_read_in_place_of_another(many: Storage) -> None:
    write(many, "items/p1.parquet", items(10, 1).rename_columns(["KEY", "text"]))
    assert read_all(many, "items", COLUMNS, renamed={"item_id": "KEY"}).equals(items(0, 18))
    with pytest.raises(ValueError, match=r"p0\.parquet must have a column 'KEY' to read as 'words', got item_id, text"):
        read_all(many, "items", {"words": TEXT}, renamed={"words": "KEY"})


ID_TYPES = [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(20, 0)]


PARTS = st.lists(st.tuples(st.sampled_from(ID_TYPES), st.lists(st.integers(0, 99), max_size=5)), min_size=1, max_size=4)


@given(parts=PARTS, data=st.data())
def test_files_of_different_types_are_one_table(
    parts: list[tuple[pa.DataType, list[int]]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage, whole = Storage(str(tmp_path_factory.mktemp("t"))), [value for _, values in parts for value in values]
    for number, (kind, values) in enumerate(parts):
        array = pa.array([Decimal(value) for value in values] if pa.types.is_decimal(kind) else values, kind)
        write(storage, f"t/{number}.parquet", pa.table({"item_id": array}), row_group=data.draw(st.integers(1, 4)))
    if not whole:
        with pytest.raises(ValueError, match="must hold at least 1 row"):
            find(f"{storage}/t").read({"item_id": ID})
        return
    table = find(f"{storage}/t")
    assert table.read({"item_id": ID}).table["item_id"].to_pylist() == whole
    first = data.draw(st.integers(0, len(whole) - 1))
    files = [table.rows(number) for number in range(len(parts))]
    some = [batch["item_id"] for batch in table.part(files, first, len(whole), {"item_id": ID})]
    assert [value for column in some for value in column.to_pylist()] == whole[first:]
    assert len({column.type for column in some}) == 1


def test_signed_and_unsigned_ids(storage: Storage) -> None:
    write(storage, "t/a.parquet", pa.table({"item_id": pa.array([3], pa.uint64())}))
    write(storage, "t/b.parquet", pa.table({"item_id": pa.array([-3], pa.int64())}))
    assert read_all(storage, "t", {"item_id": ID})["item_id"].to_pylist() == [3, -3]
    write(storage, "t/a.parquet", pa.table({"item_id": pa.array([2**63 + 1], pa.uint64())}))
    with pytest.raises(ValueError, match=r"'item_id' of .*b\.parquet must hold uint64 as other files of its table do"):
        read_all(storage, "t", {"item_id": ID})
    write(storage, "t/b.parquet", pa.table({"item_id": pa.array([4], pa.int64())}))
    assert read_all(storage, "t", {"item_id": ID})["item_id"].to_pylist() == [2**63 + 1, 4]
