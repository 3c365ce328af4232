"""Attributes of items in a data set: the columns that are named, of any type, in one file or in several."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.corpus import ItemFiles, digest_of
from rails_ray.data.forms import FORMS, vectors_of_items
from rails_ray.data.sources import Sources
from rails_ray.storage.attributes import TYPES, kinds_for
from support.data_folders import write_sequence_data, write_vector_data
from support.tried import tried


def write(folder: Path, *files: Mapping[str, Any]) -> Path:
    """Items of texts, each file with columns of its own beside ids and texts."""
    (folder / "items").mkdir(parents=True)
    first = 0
    for number, columns in enumerate(files):
        size = max(len(own) for own in columns.values())
        ids = range(first, first + size)
        table = pa.table({"item_id": ids, "text": [f"thing {own}" for own in ids], **columns})
        pq.write_table(table, folder / "items" / f"{number}.parquet", row_group_size=2)
        first += size
    return folder


def items_of(folder: Path, *names: str, **more: Any) -> ItemFiles:
    """The items with attributes, each NAME or NAME=COLUMN."""
    pairs = (name.partition("=") for name in names)
    sources = Sources(str(folder), attributes={name: column or name for name, _, column in pairs}, **more)
    found = FORMS["text"].corpus(sources).items
    assert isinstance(found, ItemFiles)
    return found


def read(items: ItemFiles) -> pa.Table:
    files = [items.scan(number).rows for number in range(items.num_files)]
    return pa.concat_tables(items.blocks(files, 0, sum(file.num_rows for file in files)))


MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(lambda own: own.replace(microsecond=0))
COLUMNS: dict[str, tuple[Any, Sequence[pa.DataType]]] = {  # values of a kind, and types that hold them all
    "bool": (st.booleans(), [pa.bool_(), pa.dictionary(pa.int8(), pa.bool_())]),
    "int": (
        st.integers(0, 100),
        [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int32())],
    ),
    "float": (st.sampled_from([0.5, -2.0, 3.0]), [pa.float16(), pa.float32(), pa.float64()]),
    "string": (st.text(max_size=3), [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
    "timestamp": (MOMENTS, [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("ns")]),
    "strings": (st.lists(st.text(max_size=2), max_size=2), [pa.list_(pa.string()), pa.large_list(pa.large_string())]),
}


@tried(50)
@given(kind=st.sampled_from(sorted(COLUMNS)), data=st.data())
def test_files_may_differ_in_types_and_lack_a_column(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Values are those of the files, whichever rows a task reads. A file may lack the column, or have only nulls."""
    values, types = COLUMNS[kind]
    files, expected = list[dict[str, pa.Array]](), list[Any]()
    for number in range(3):
        own = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
        form = "typed" if number == 0 else data.draw(st.sampled_from(["typed", "typed", "null", "absent"]))
        if form != "typed":
            own = [None] * len(own)
        array = pa.array(own, data.draw(st.sampled_from(types)) if form == "typed" else pa.null())
        files.append({"other": pa.nulls(len(own))} if form == "absent" else {"own": array})
        expected += own
    if kind == "timestamp":
        expected = [None if own is None else own.replace(tzinfo=UTC) for own in expected]
    folder = write(tmp_path_factory.mktemp("data"), *files)
    items = items_of(folder, "own")
    assert items.attribute_kinds == {"own": kind}
    found = read(items)
    assert found.schema.field("own").type == TYPES[kind]
    assert found["own"].to_pylist() == expected
    first = data.draw(st.integers(0, len(expected) - 1))
    scans = [items.scan(number) for number in range(3)]
    num = data.draw(st.integers(1, len(expected) - first))
    some = pa.concat_tables(items.blocks([scan.rows for scan in scans], first, num))
    assert some["own"].to_pylist() == expected[first : first + num]
    again = items_of(folder, "own")
    assert digest_of([again.scan(number) for number in range(3)]) == digest_of(scans)
    assert digest_of([items_of(folder).scan(number) for number in range(3)]) != digest_of(scans)


def test_integers_of_one_file_and_floats_of_another_are_floats(tmp_path: Path) -> None:
    folder = write(tmp_path, {"price": [1, 2]}, {"price": [0.5, float("nan")]}, {"price": pa.array([Decimal("9.25")])})
    items = items_of(folder, "price")
    assert items.attribute_kinds == {"price": "float"}
    assert read(items)["price"].to_pylist() == [1.0, 2.0, 0.5, None, 9.25]


def test_an_attribute_may_have_another_name_than_its_column(tmp_path: Path) -> None:
    folder = write(tmp_path, {"weights": [1, 2], "Year": [3, 4]})
    found = read(items_of(folder, "heft=weights", "year"))
    assert found.column_names == ["item_id", "input", "heft", "year"]
    assert (found["heft"].to_pylist(), found["year"].to_pylist()) == ([1, 2], [3, 4])


def test_a_folder_may_give_an_attribute(tmp_path: Path) -> None:
    for year in (2025, 2026):
        write(tmp_path / "items" / f"year={year}", {"price": [1.0]})
    table = pa.table({"item_id": [7], "text": ["x"]})
    for number, year in enumerate((2025, 2026)):
        path = tmp_path / "items" / f"year={year}" / "items" / "0.parquet"
        pq.write_table(table.set_column(0, "item_id", pa.array([number])), path)
    items = items_of(tmp_path, "year")
    assert items.attribute_kinds == {"year": "int"}
    assert read(items)["year"].to_pylist() == [2025, 2026]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            [{"price": [1.0]}],
            r"attributes must name columns of .*0\.parquet, got 'cost': there are item_id, text, price",
        ),
        ([{"cost": [{"a": 1}]}], r"column 'cost' of .*0\.parquet must be of type boolean, .*, got struct<a: int64>"),
        ([{"cost": [[1, 2]]}], r"column 'cost' of .*0\.parquet must be of type boolean, .*, got list<.*int64>"),
        (
            [{"cost": ["a"]}, {"cost": [1]}],
            r"'cost' of .*1\.parquet must be of type string as in .*0\.parquet, got int64",
        ),
        (
            [{"cost": pa.nulls(2)}],
            r"column 'cost' of .*0\.parquet must have a value in some row to be an attribute, got",
        ),
        ([{"Cost": [1], "COST": [2]}], r"must have one column 'cost', got Cost, COST: name it by"),
    ],
)
def test_columns_that_are_no_attribute(files: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    write(tmp_path, *files)
    with pytest.raises(ValueError, match=message):
        items_of(tmp_path, "cost")


def test_a_value_that_is_refused_is_named_by_its_row(tmp_path: Path) -> None:
    folder = write(tmp_path, {"size": pa.array([1, 2, 3, 2**63], pa.uint64())})
    with pytest.raises(ValueError, match=rf"column 'size' of .*0\.parquet must hold .* int64, got {2**63} in row 3"):
        items_of(folder, "size").scan(0)


def test_items_that_are_added_may_lack_what_a_version_has(tmp_path: Path) -> None:
    """They are read as the version's kinds: whole floats of pandas are integers."""
    folder = write(tmp_path, {"year": pa.array([2025.0, None]), "price": pa.nulls(2)})
    kinds = kinds_for("v1", {"year": "int", "price": "float", "tags": "strings"})
    sources = Sources(str(folder), attributes={name: name for name in kinds}, version_kinds=kinds)
    items = FORMS["text"].corpus(sources).items
    assert isinstance(items, ItemFiles)
    assert items.attribute_kinds == {"year": "int", "price": "float"}
    assert read(items)["year"].to_pylist() == [2025, None]
    assert read(items)["price"].to_pylist() == [None, None]
    assert sources.notes == [
        f"items: {folder}/items/0.parquet has no column 'tags', so the attribute tags is null in each"
    ]
    with pytest.raises(
        ValueError, match=r"'year' of .* must be of type list of strings, as version v1 has it, got dou"
    ):
        items_of(folder, "year", version_kinds=kinds_for("v1", {"year": "strings"}))


def test_attributes_of_a_corpus_of_histories(tmp_path: Path) -> None:
    """Items without an interaction are no part of it."""
    folder = write_sequence_data(tmp_path)
    items = pq.read_table(folder / "items.parquet")
    extended = pa.concat_tables([pa.table({"item_id": ["unseen"]}), items], promote_options="default")
    numbers = pa.array([None, *range(len(items))])
    pq.write_table(extended.append_column("number", numbers), folder / "items.parquet")
    corpus = FORMS["history"].corpus(Sources(str(folder), attributes={"number": "number"}))
    assert corpus.items.attribute_kinds == {"number": "int"}
    [block] = corpus.items.blocks([corpus.items.scan(0).rows], 1, 4)
    expected = dict(zip(extended["item_id"].to_pylist(), numbers.to_pylist(), strict=True))
    assert block["number"].to_pylist() == [expected[own] for own in block["item_id"].to_pylist()]
    assert FORMS["history"].corpus(Sources(str(folder))).items.attribute_kinds == {}


def test_attributes_beside_vectors(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path)
    items = pq.read_table(folder / "items.parquet")
    pq.write_table(items.append_column("rank", pa.array(range(len(items)))), folder / "items.parquet")
    form = vectors_of_items(("vector",), ())
    found = form.corpus(Sources(str(folder), attributes={"rank": "rank"})).items
    [block] = found.blocks([found.scan(0).rows], 3, 2)
    assert block["rank"].to_pylist() == [3, 4]
    with pytest.raises(ValueError, match=r"column 'vector' of .* must be of type boolean, .*, got list<"):
        form.corpus(Sources(str(folder), attributes={"vector": "vector"}))
    assert "rank" not in found.read()  # training reads none


def test_columns_that_could_be_attributes_are_offered(tmp_path: Path) -> None:
    columns = {
        "brand": ["b"], "price": [0.5], "tags": [["a"]], "blob": [{"a": 1}], "weights": [1.0], "gone": pa.nulls(1),
        "a,b": [1], "my size": [1],
    }  # fmt: skip
    sources = Sources(str(write(tmp_path, columns)), attributes={"cost": "price"})
    FORMS["text"].corpus(sources)
    sources.note_unused()
    assert sources.notes == [
        "items: blob, weights, gone, a,b are not stored",
        "items: brand (string), tags (strings), my size (int) are not stored: --data.attributes "
        "'cost=price,brand,tags,my size' stores them",
    ]
    of_version = Sources(str(tmp_path), attributes={"price": "price"}, version_kinds=kinds_for("v", {"price": "float"}))
    FORMS["text"].corpus(of_version)
    of_version.note_unused()
    assert of_version.notes == ["items: brand, tags, blob, weights, gone, a,b, my size are not stored"]
