from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.dataset import DataSet
from rails_ray.data.forms.text import TextForm
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from support.data_folders import real_data, write_text_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_text_data(tmp_path / "data")


def read(folder: Path) -> DataSet:
    return TextForm().read(Sources(str(folder)))


def rewrite(folder: Path, name: str, change) -> None:
    """Replace a table by `change` of it."""
    pq.write_table(change(pq.read_table(folder / f"{name}.parquet")), folder / f"{name}.parquet")


def test_relevance_is_that_of_the_tables(folder: Path) -> None:
    data = read(folder)
    pairs = set()
    for queries in data.queries.values():
        for number, query in enumerate(queries.inputs):
            rows = queries.relevant[number]
            assert len(rows)
            assert (np.diff(rows) > 0).all()
            pairs |= {(query, data.item_ids[row]) for row in rows}
    texts = pq.read_table(folder / "queries.parquet")["text"].to_pylist()
    relevance = pq.read_table(folder / "relevance.parquet").to_pylist()
    assert pairs == {(texts[pair["query_id"]], pair["item_id"]) for pair in relevance}


def test_splits_are_those_of_the_table(folder: Path) -> None:
    data = read(folder)
    for row in pq.read_table(folder / "queries.parquet").to_pylist():
        assert row["text"] in data.queries[row["split"]].inputs


def test_a_query_without_an_answer_is_left_out(folder: Path) -> None:
    rewrite(
        folder,
        "queries",
        lambda table: pa.concat_tables(
            [table, pa.table({"query_id": [999], "text": ["nobody"], "split": ["train"]})], promote_options="default"
        ),
    )
    assert "nobody" not in read(folder).queries["train"].inputs


def test_a_title_is_read_before_the_text(folder: Path) -> None:
    assert read(folder).titles is None
    plain = read(folder).item_inputs
    titles = [f"Title {row}" for row in range(len(plain))]
    for kind in (pa.string(), pa.large_string()):
        rewrite(folder, "items", lambda table, kind=kind: table.append_column("title", pa.array(titles, kind)))
        data = read(folder)
        assert data.titles == titles
        assert data.item_inputs == [f"{title}\n{rest}" for title, rest in zip(titles, plain, strict=True)]
        rewrite(folder, "items", lambda table: table.drop_columns("title"))


def test_every_tenth_training_query_is_held_out_where_none_is(folder: Path) -> None:
    rewrite(
        folder,
        "queries",
        lambda table: set_column("split", pa.array(["test" if row % 3 == 0 else "train" for row in range(len(table))]))(
            table
        ),
    )
    texts = [row["text"] for row in pq.read_table(folder / "queries.parquet").to_pylist() if row["split"] == "train"]
    data = read(folder)
    assert data.queries["valid"].inputs == texts[9::10]
    assert data.queries["train"].inputs == [text for text in texts if text not in texts[9::10]]


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
            lambda t: set_column("split", pa.array(["train", None, *["test"] * (len(t) - 2)]))(t),
            r"column 'split' of .*queries\.parquet must have a value in every row, got null in row 1",
        ),
        (
            "queries",
            lambda t: set_column("split", pa.array(["Devel"] * len(t)))(t),
            r"column 'split' of .*queries\.parquet must be one of train, .*, dev, got 'Devel' in row 0",
        ),
        (
            "queries",
            lambda t: set_column("split", pa.array(["train"] * len(t)))(t),
            r"must hold a query with a relevant item in split 'test', got none",
        ),
        (
            "items",
            lambda t: set_column("item_id", pa.array(["same"] * len(t)))(t),
            r"column 'item_id' of .*items\.parquet must hold distinct ids, got 'same' again in row 1",
        ),
        (
            "queries",
            lambda t: set_column("query_id", pa.array([*range(len(t) - 1), 3]))(t),
            r"column 'query_id' of .*queries\.parquet must hold distinct ids, got 3 again in row 76",
        ),
        (
            "relevance",
            lambda t: set_column("item_id", pa.array(["item-1"] * (len(t) - 20) + ["nowhere"] * 20))(t),
            r"column 'item_id' of .*relevance\.parquet must hold ids of .*items\.parquet, got 'nowhere' in row 160 "
            r"\(20 of 180 rows are wrong\): mend the ids, or leave such rows out with --data\.max-dropped 0\.12",
        ),
        (
            "relevance",
            lambda t: set_column("query_id", pa.array(["00"] * len(t)))(t),
            r"column 'query_id' of .*relevance\.parquet must hold ids of .*queries\.parquet, got '00' in row 0 ",
        ),
    ],
)
def test_a_table_that_breaks_the_contract(folder: Path, table: str, change, message: str) -> None:
    rewrite(folder, table, change)
    with pytest.raises(ValueError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("name", "num_queries", "num_items", "num_pairs"),
    [
        ("wordnet", 117_659, 148_730, 206_978),
        ("tldr", 32_135, 7_424, 32_135),
        ("scifact", 1_109, 5_183, 1_258),  # without a split "valid"
    ],
)
def test_real_texts(name: str, num_queries: int, num_items: int, num_pairs: int) -> None:
    data = TextForm().read(Sources(str(real_data(name))))
    assert len(data.item_ids) == num_items
    assert sum(map(len, data.queries.values())) == num_queries
    assert sum(len(queries.relevant.rows) for queries in data.queries.values()) == num_pairs
    if name == "scifact":
        assert len(data.queries["valid"]) == (len(data.queries["valid"]) + len(data.queries["train"])) // 10
