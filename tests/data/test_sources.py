"""Tables of a data set: where they are, and what is left out and counted."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.forms import FORMS, vectors_of_items
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_corpus, read_data
from rails_ray.storage.filesystem import Storage

ITEMS = {"item_id": [f"i{number}" for number in range(20)], "text": [f"thing {number}" for number in range(20)]}
SPLITS = ["train", "Train", "validation", "TEST"] * 5
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
    message = r"got 99 in row 20 \(3 of 23 rows are wrong\): mend the ids, or leave .* with --data.max-dropped 0.14"
    with pytest.raises(ValueError, match=message):
        FORMS["text"].read(sources)
    FORMS["text"].read(Sources(str(tmp_path), max_dropped=0.14))


def write_in_files(folder: Path, *files: list[str]) -> Sources:
    """ITEMS and QUERIES, and relevance in files part-0, part-1 .., each of which names some items."""
    sources = write(folder, items=ITEMS, queries=QUERIES)
    (folder / "relevance").mkdir()
    for number, items in enumerate(files):
        pairs = {"query_id": [row % 20 for row in range(len(items))], "item_id": items}
        pq.write_table(pa.table(pairs), folder / f"relevance/part-{number}.parquet")
    return sources


def test_one_bad_file_among_good_ones_is_refused(tmp_path: Path) -> None:
    sources = write_in_files(tmp_path, ["i3"] * 1500, ["i4"] * 150 + ["nowhere"] * 50, ["gone"] + ["i5"] * 9)
    message = (
        rf"column 'item_id' of {tmp_path}/relevance/part-1.parquet must hold ids of .*, got 'nowhere' in row 150 "
        r"\(50 of 200 rows of this file are wrong\): mend the ids, or leave such rows out with --data.max-dropped 0.25$"
    )
    with pytest.raises(ValueError, match=message):
        FORMS["text"].read(sources)
    sources = Sources(str(tmp_path), max_dropped=0.25)
    FORMS["text"].read(sources)
    assert sources.notes == [
        f"relevance: 51 of 1,710 rows left out (50 in part-1.parquet, 1 in part-2.parquet), as item_id is not in "
        f"{tmp_path}/items.parquet: 'nowhere' in row 150 of {tmp_path}/relevance/part-1.parquet"
    ]


def test_a_small_file_is_not_refused_by_itself(tmp_path: Path) -> None:
    sources = write_in_files(tmp_path, ["i3"] * 1500, ["nowhere"] * 99)
    FORMS["text"].read(sources)
    assert "99 of 1,599 rows left out, as item_id" in sources.notes[0]


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


INTERACTIONS = {"item_id": ["a", "b", "c"] * 4, "timestamp": list(range(1_700_000_000, 1_700_000_012))}
WHO = [number // 4 for number in range(12)]


@pytest.mark.parametrize("column", ["session_id", "Session_ID"])
def test_sessions_are_read_as_users_are(column: str, tmp_path: Path) -> None:
    shelf = {"item_id": ["a", "b", "c"]}
    expected = FORMS["history"].read(write(tmp_path, items=shelf, interactions={"user_id": WHO, **INTERACTIONS}))
    folder = tmp_path / "sessions"
    folder.mkdir()
    sources = write(folder, items=shelf, interactions={column: WHO, **INTERACTIONS}, users={column: [2, 1, 0]})
    read = FORMS["history"].read(sources)
    assert list(read.user_ids) == [2, 1, 0]
    (folder / "users.parquet").unlink()
    assert FORMS["history"].read(Sources(str(folder))).digest() == expected.digest()
    assert sources.notes == [
        f"{name}: column {column!r} is read as user_id, so that a user is a session"
        for name in ("interactions", "users")
    ]


def test_of_users_and_sessions_the_users_are_read_unless_the_others_are_chosen(tmp_path: Path) -> None:
    both = {"user_id": [7] * 12, "session_id": WHO, **INTERACTIONS}
    sources = write(tmp_path, items={"item_id": ["a", "b", "c"]}, interactions=both)
    assert len(FORMS["history"].read(sources).user_ids) == 1
    assert sources.notes == [
        "interactions: user_id is read, not session_id: --data.columns user_id=session_id reads sessions"
    ]
    for column, num_users in (("user_id", 1), ("session_id", 3)):
        chosen = Sources(str(tmp_path), columns={"interactions.user_id": column})
        assert len(FORMS["history"].read(chosen).user_ids) == num_users
        chosen.note_unused()
        [other] = {"user_id", "session_id"} - {column}
        assert chosen.notes == [f"interactions: {other} is not stored"]


def test_columns_that_are_not_used_are_named_once_for_each_table(tmp_path: Path) -> None:
    sources = write(
        tmp_path,
        items={**ITEMS, "brand": ["b"] * 20, "price": [0.5] * 20},
        queries={**QUERIES, "lang": ["de"] * 20},
        relevance=RELEVANCE,
    )
    for read in (FORMS["text"].read, FORMS["text"].corpus):
        read(sources)
        sources.note_unused()
    assert sources.notes == [
        "items: brand (string), price (float) are not stored: --data.attributes brand,price stores them",
        "queries: lang is not stored",
    ]
    config = RunConfig(name="words", data=DataConfig(folder=str(tmp_path)), family=Bm25Config())
    assert read_data(config, Storage(str(tmp_path / "storage"))).notes == tuple(sources.notes)
    assert read_corpus(config, Storage(str(tmp_path / "storage"))).notes == tuple(sources.notes[:1])
    many = {**ITEMS, **{f"column-{number}": [0] * 20 for number in range(12)}}
    wide = write(tmp_path, items=many)
    FORMS["text"].corpus(wide)
    wide.note_unused()
    names = ",".join(f"column-{number}" for number in range(10))
    assert wide.notes[0].endswith(f"column-9 (int) and 2 more are not stored: --data.attributes {names} stores them")


def test_vectors_that_are_read_are_used(tmp_path: Path) -> None:
    items = {"ITEM_ID": ["a", "b", "c"], "front": [[0.5, 1.0]] * 3, "back": [[1.0, 0.5]] * 3}
    queries = {"query_id": [1, 2, 3], "vector": [[1.0, 1.0]] * 3, "split": ["train", "valid", "test"]}
    sources = write(tmp_path, items=items, queries=queries, relevance={"query_id": [1, 2, 3], "item_id": ["a"] * 3})
    form = vectors_of_items(("front",), ())
    form.read(sources)
    sources.note_unused()
    assert sources.notes == ["items: back is not stored"]
    (tmp_path / "queries.parquet").unlink()
    alone = Sources(str(tmp_path))
    form.read(alone, ())
    alone.note_unused()
    assert alone.notes == ["items: back is not stored"]


@pytest.mark.parametrize("pair", ["item_id", "id=KEY", "shelf.text=body", "text="])
def test_names_of_columns_that_cannot_be_read(pair: str) -> None:
    with pytest.raises(ValueError, match=f"--data.columns must be NAME=COLUMN or .* of item_id, .*, got '{pair}'"):
        DataConfig(columns=(pair,))
