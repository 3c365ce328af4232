"""Tables of a data set: where they are, and what is left out and counted."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from rails_ray.families.config import DataConfig

ITEMS = {"item_id": [f"i{number}" for number in range(20)], "text": [f"thing {number}" for number in range(20)]}
SPLITS = ["train", "train", "validation", "test"] * 5
QUERIES = {"query_id": list(range(20)), "text": [f"what {number}" for number in range(20)], "split": SPLITS}
RELEVANCE = {"query_id": list(range(20)), "item_id": ITEMS["item_id"]}


def write(folder: Path, **tables: dict[str, Any]) -> Sources:
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return Sources(str(folder))


def test_splits_may_be_called_as_elsewhere(tmp_path: Path) -> None:
    read = FORMS["text"].read(write(tmp_path, items=ITEMS, queries=QUERIES, relevance=RELEVANCE))
    assert [len(read.queries[split]) for split in ("train", "valid", "test")] == [10, 5, 5]


def test_dangling_references_are_left_out_and_counted(tmp_path: Path) -> None:
    relevance = {"query_id": [*range(20), 99, 3], "item_id": [*ITEMS["item_id"], "i3", "nowhere"]}
    sources = write(tmp_path, items=ITEMS, queries=QUERIES, relevance=relevance)
    read = FORMS["text"].read(sources)
    assert sum(len(queries.relevant.rows) for queries in read.queries.values()) == 20
    assert sources.notes == [
        f"relevance: 1 of 22 rows left out, as query_id is not in {tmp_path}/queries.parquet: 99 in row 20 of "
        f"{tmp_path}/relevance.parquet",
        f"relevance: 1 of 22 rows left out, as item_id is not in {tmp_path}/items.parquet: 'nowhere' in row 21 of "
        f"{tmp_path}/relevance.parquet",
    ]


def test_many_dangling_references_are_refused_with_the_share_that_would_take_them(tmp_path: Path) -> None:
    relevance = {"query_id": [*range(20), 99, 98, 97], "item_id": [*ITEMS["item_id"], "i3", "i4", "i5"]}
    sources = write(tmp_path, items=ITEMS, queries=QUERIES, relevance=relevance)
    message = (
        r"got 99 in row 20, and so in 3 of 23 rows: mend the ids, or leave such rows out with --data.max-dropped 0.14"
    )
    with pytest.raises(ValueError, match=message):
        FORMS["text"].read(sources)
    FORMS["text"].read(Sources(str(tmp_path), max_dropped=0.14))


def test_null_texts_titles_and_markers_are_noted_once(tmp_path: Path) -> None:
    items = {**ITEMS, "title": [None] * 20, "text": [None, *ITEMS["text"][1:]]}
    sources = write(tmp_path, queries=QUERIES, relevance=RELEVANCE)
    (tmp_path / "items/dt=1/_temporary").mkdir(parents=True)
    pq.write_table(pa.table(items), tmp_path / "items/dt=1/part-0.parquet")
    pq.write_table(pa.table(items).slice(0, 0), tmp_path / "items/dt=1/part-1.parquet")
    (tmp_path / "items/_SUCCESS").touch()
    read = FORMS["text"].read(sources)
    FORMS["text"].corpus(sources)
    assert list(read.item_inputs)[:2] == ["", "thing 1"]
    assert sources.notes == [
        "items: 1 other file left out (_SUCCESS)",
        "items: 1 of 2 files hold no row (part-1.parquet)",
        "items: 1 of 20 values of column 'text' are null, read as empty texts",
    ]


def test_a_file_and_a_folder_of_one_name(tmp_path: Path) -> None:
    sources = write(tmp_path, items=ITEMS)
    (tmp_path / "items").mkdir()
    pq.write_table(pa.table(ITEMS), tmp_path / "items/0.parquet")
    with pytest.raises(ValueError, match=r"must have one table items, got items\.parquet and a folder items: name one"):
        FORMS["text"].corpus(sources)
    assert Sources(str(tmp_path), {"items": str(tmp_path / "items")}).has("items")
    with pytest.raises(NotFoundError, match=r"queries\.parquet must exist"):
        sources.table("queries")


def test_columns_of_other_names(tmp_path: Path) -> None:
    items = {"Item_ID": ITEMS["item_id"], "body": ITEMS["text"]}
    write(tmp_path, items=items, queries=QUERIES, relevance=RELEVANCE)
    data = DataConfig(folder=str(tmp_path), columns=("items.text=body,query_id=query_id",))
    sources = Sources(str(tmp_path), columns=data.renamed)
    assert list(FORMS["text"].read(sources).item_inputs) == ITEMS["text"]
    sources.check_columns()
    wrong = Sources(str(tmp_path), columns={"title": "heading"})
    FORMS["text"].corpus(Sources(str(tmp_path), columns={"items.text": "body"}))
    wrong.table("items")
    with pytest.raises(
        ValueError, match=r"--data\.columns title=heading must name a column of the data, got Item_ID, b"
    ):
        wrong.check_columns()


@pytest.mark.parametrize("pair", ["item_id", "id=KEY", "shelf.text=body", "text="])
def test_names_of_columns_that_cannot_be_read(pair: str) -> None:
    with pytest.raises(ValueError, match=f"--data.columns must be NAME=COLUMN or .* of item_id, .*, got '{pair}'"):
        DataConfig(columns=(pair,))
