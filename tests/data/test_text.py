from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples import write_text_data
from rails_ray.data import text
from rails_ray.errors import NotFoundError
from rails_ray.storage.filesystem import Storage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_text_data(tmp_path / "data")


def read(folder: Path) -> text.TextData:
    return text.read(Storage(str(folder)), ".")


def rewrite(folder: Path, name: str, change) -> None:
    """Replace a table by `change` of it."""
    pq.write_table(change(pq.read_table(folder / f"{name}.parquet")), folder / f"{name}.parquet")


def test_relevance_is_that_of_the_tables(folder: Path) -> None:
    data = read(folder)
    pairs = set()
    for queries in data.queries.values():
        for number, query in enumerate(queries.texts):
            rows = queries.relevant(number)
            assert len(rows)
            assert (np.diff(rows) > 0).all()
            pairs |= {(query, data.item_ids[row]) for row in rows}
    texts = pq.read_table(folder / "queries.parquet")["text"].to_pylist()
    relevance = pq.read_table(folder / "relevance.parquet").to_pylist()
    assert pairs == {(texts[pair["query_id"]], pair["item_id"]) for pair in relevance}


def test_splits_are_those_of_the_table(folder: Path) -> None:
    data = read(folder)
    for row in pq.read_table(folder / "queries.parquet").to_pylist():
        assert row["text"] in data.queries[row["split"]].texts


def test_a_query_without_an_answer_is_left_out(folder: Path) -> None:
    rewrite(
        folder,
        "queries",
        lambda table: pa.concat_tables(
            [table, pa.table({"query_id": [999], "text": ["nobody"], "split": ["train"]})], promote_options="default"
        ),
    )
    assert "nobody" not in read(folder).queries["train"].texts


def test_head_keeps_the_first_queries(folder: Path) -> None:
    train = read(folder).queries["train"]
    head = train.head(3)
    assert head.texts == train.texts[:3]
    assert head.relevant(2).tolist() == train.relevant(2).tolist()
    assert len(head.relevant_rows) == head.starts[-1]


def test_a_table_is_missing(folder: Path) -> None:
    (folder / "queries.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"queries\.parquet must exist, got no such file"):
        read(folder)


def test_a_file_is_no_parquet(folder: Path) -> None:
    (folder / "items.parquet").write_text("item_id,text\n")
    with pytest.raises(ValueError, match=r"items\.parquet must be a Parquet file, got: "):
        read(folder)


def set_column(name: str, values: pa.Array):
    return lambda table: table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("items", lambda t: t.drop_columns("text"), r"items\.parquet must have a column 'text', got item_id"),
        ("items", lambda t: t.slice(0, 0), r"items\.parquet must hold at least 1 row, got an empty table"),
        (
            "items",
            lambda t: set_column("text", pa.array([1.5] * len(t)))(t),
            r"column 'text' of .*items\.parquet must be of type string, got double",
        ),
        (
            "queries",
            lambda t: set_column("text", pa.array(["a", None, *["b"] * (len(t) - 2)]))(t),
            r"column 'text' of .*queries\.parquet must have a value in every row, got null in row 1",
        ),
        (
            "queries",
            lambda t: set_column("split", pa.array(["dev"] * len(t)))(t),
            r"split in .*queries\.parquet must be one of train, valid, test, got 'dev'",
        ),
        (
            "queries",
            lambda t: set_column("split", pa.array(["train"] * len(t)))(t),
            r"must hold a query with a relevant item in split 'valid', got none",
        ),
        (
            "items",
            lambda t: set_column("item_id", pa.array(["same"] * len(t)))(t),
            r"ids in .*items\.parquet must be distinct, got 'same' more than once",
        ),
        (
            "relevance",
            lambda t: set_column("item_id", pa.array(["nowhere"] * len(t)))(t),
            r"item_id in .*relevance\.parquet must be in items\.parquet, got 'nowhere'",
        ),
        (
            "relevance",
            lambda t: set_column("query_id", pa.array(["0"] * len(t)))(t),
            r"query_id in .* must be of type int64 as in queries\.parquet, got string",
        ),
    ],
)
def test_a_table_that_breaks_the_contract(folder: Path, table: str, change, message: str) -> None:
    rewrite(folder, table, change)
    with pytest.raises(ValueError, match=message):
        read(folder)
