"""In which ways data can be read, and what is wrong with them by file, column and row."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.cli.inspecting.readings import COLUMNS, OPTIONAL, readings
from rails_ray.cli.inspecting.tables import survey
from rails_ray.cli.main import main
from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources
from rails_ray.families.recipes import names
from support.data_folders import write_sequence_data, write_text_data, write_vector_data
from support.inspected import change, into_two_files, looked, setting, strangers, write

# readings


@pytest.mark.parametrize(
    ("form", "table", "column"),
    [
        (form, table, column)
        for form, tables in COLUMNS.items()
        for table, columns in tables.items()
        for column in columns
    ],
)
def test_the_columns_are_those_that_a_form_needs(form: str, table: str, column: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", form)
    [own] = [reading for reading in readings() if reading.name == form]

    def lacks() -> list[str]:
        return own.lacks(survey(Sources(str(folder))))

    assert lacks() == []
    FORMS[form].read(Sources(str(folder)))
    change(folder, table, lambda found: found.drop_columns([column]))
    assert lacks() == [f"{table}.{column}"]
    with pytest.raises(ValueError, match=f"{column}|{table}.parquet must hold at least 1 row"):  # its only column
        FORMS[form].read(Sources(str(folder)))
    (folder / f"{table}.parquet").unlink()
    assert lacks() == [table]


@pytest.mark.parametrize("form", COLUMNS)
def test_an_optional_column_of_another_type_is_refused(form: str, tmp_path: Path) -> None:
    for column in OPTIONAL[form]["items"]:
        folder = write(tmp_path / column, form)
        change(
            folder,
            "items",
            lambda found, column=column: (
                found.drop_columns([column] if column in found.column_names else [])
            ).append_column(column, pa.array(range(len(found)))),
        )
        [sentence] = looked(folder)["problems"]
        assert f"column '{column}' of {folder}/items.parquet must be of type string" in sentence


def test_every_recipe_has_a_reading_and_a_verdict(tmp_path: Path) -> None:
    assert sorted(recipe for reading in readings() for recipe in reading.recipes) == sorted(names())
    found = looked(write_text_data(tmp_path / "data"))
    assert sorted(found["recipes"]) == sorted(names())
    assert found["recipes"]["vector-dot"] == {"fits": False, "why": "the data lack items.vector, queries.vector"}
    assert found["readings"]["text"] == {"fits": True, "lacks": []}
    assert found["problems"] == []


def test_data_may_be_read_in_several_ways(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    for table in ("items", "queries"):
        change(folder, table, lambda found: found.append_column("text", pa.array([f"x{i}" for i in range(len(found))])))
    write_sequence_data(tmp_path / "histories")
    shutil.copy(tmp_path / "histories" / "interactions.parquet", folder)
    change(folder, "interactions", setting("item_id", 0, "item-0"))
    found = looked(folder)
    assert [name for name, own in found["readings"].items() if own["fits"]] == ["vectors", "text", "history", "vector"]
    assert list(found["facts"]) == ["vectors", "text", "history"]  # vector is part of vectors
    assert [own["name"] for own in found["baselines"]] == ["vector-cosine", "baseline-bm25", "popularity"]
    assert found["recipes"]["vector-dot"]["fits"]
    assert found["recipes"]["ml1m-sasrec"]["fits"]


# problems


@pytest.mark.parametrize(
    ("form", "table", "file", "changed", "sentence"),
    [
        ("text", "items", 1, lambda t: t.drop_columns(["text"]), "items/1.parquet must have a column 'text', got item"),
        (
            "text",
            "items",
            1,
            setting("item_id", 0, "item-0"),
            "column 'item_id' of {}/items/1.parquet must hold distinct ids, got 'item-0' again in row 0",
        ),
        (
            "text",
            "queries",
            1,
            setting("split", 3, None),
            "column 'split' of {}/queries/1.parquet must have a value in every row, got null in row 3",
        ),
        (
            "text",
            "queries",
            1,
            setting("split", 2, "holdout"),
            "column 'split' of {}/queries/1.parquet must be one of train, valid, test, validation, val, dev, got 'hol",
        ),
        (
            "text",
            "relevance",
            1,
            strangers("item_id"),
            "column 'item_id' of {}/relevance/1.parquet must hold ids of {}/items.parquet, got 'nobody' in row 0 (",
        ),
        (
            "text",
            "queries",
            1,
            lambda t: t.set_column(0, "query_id", t["query_id"].cast(pa.string())),
            "column 'query_id' of {}/queries/1.parquet must be of type int64 as in {}/queries/0.parquet, got large_s",
        ),
        (
            "vector",
            "queries",
            1,
            setting("vector", 2, [float("nan")] * 24),
            "column 'vector' of {}/queries/1.parquet must hold numbers that are finite in float32, got nan in row 2",
        ),
        (
            "vector",
            "queries",
            1,
            setting("vector", 1, [1.0]),
            "column 'vector' of {}/queries/1.parquet must hold 24 numbers in every row as in row 0 of {}/queries/0.",
        ),
        (
            "features",
            "queries",
            1,
            setting("feature_indices", 1, [-1, 2]),
            "column 'feature_indices' of {}/queries/1.parquet must hold integers of at least 0, got -1 in row 1",
        ),
        (
            "history",
            "interactions",
            1,
            strangers("item_id"),
            "column 'item_id' of {}/interactions/1.parquet must hold ids of {}/items.parquet, got 'nobody' in row 0 (",
        ),
    ],
)
def test_a_problem_in_one_of_many_files(
    form: str, table: str, file: int, changed: Any, sentence: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "data", form)
    into_two_files(folder, table)
    change(folder / table, str(file), changed)
    with pytest.raises(ValueError, match=r".") as refused:
        FORMS[form].read(Sources(str(folder)))
    found = looked(folder)["problems"]
    assert found[0] == str(refused.value)
    assert any(sentence.replace("{}", str(folder)) in own for own in found)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    into_two_files(folder, "items")
    change(folder / "items", "0", setting("item_id", 4, None))
    change(folder / "items", "1", lambda table: table.drop_columns(["text"]))
    change(folder, "queries", setting("split", 1, "holdout"))
    change(folder, "relevance", setting("query_id", 7, 10**6))
    (folder / "items/_SUCCESS").touch()
    found = looked(folder)
    assert found["problems"] == [
        f"{folder}/items/1.parquet must have a column 'text', got item_id: rename one of them, or train with "
        "--data.columns text=COLUMN",
        f"column 'item_id' of {folder}/items/0.parquet must have a value in every row, got null in row 4: give it "
        "one, or leave the row out",
        f"column 'split' of {folder}/queries.parquet must be one of train, valid, test, validation, val, dev, got "
        "'holdout' in row 1",
    ]
    assert found["notes"][0] == "items: 1 other file left out (_SUCCESS)"
    assert found["notes"][1].startswith("relevance: 1 of 180 rows left out, as query_id is not in ")


def test_each_files_wrong_vectors_are_told(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    into_two_files(folder, "items")
    for number in (0, 1):
        change(folder / "items", str(number), setting("vector", 3 + number, [float("inf")] * 7))
    found = looked(folder)
    for number in (0, 1):
        assert any(
            f"items/{number}.parquet must hold numbers that are finite in float32, got inf in row {3 + number}" in own
            for own in found["problems"]
        )
    assert not found["recipes"]["vector-dot"]["fits"]
    assert found["recipes"]["vector-dot"]["why"] == "training refuses the data: see the problems"
    assert found["readings"]["vector"]["fits"]  # whose items are not vectors


def test_data_that_no_recipe_reads(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    (folder / "relevance.parquet").rename(folder / "relevant.parquet")
    found = looked(folder)
    assert found["readings"]["text"] == {"fits": False, "lacks": ["relevance"]}
    assert found["ignored"] == ["relevant.parquet"]
    assert found["problems"] == [
        f"{folder}/relevance.parquet must exist, got no such file, no relevance in CSV, TSV or JSON "
        "lines, and no folder relevance of such files: add the table, or name the folder that has it"
    ]


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    (folder / "queries.parquet").write_bytes(b"no Parquet")
    found = looked(folder)["problems"]
    assert len(found) == 1
    assert f"{folder}/queries.parquet must be a Parquet file, got:" in found[0]


def test_queries_that_nothing_answers_and_splits_that_are_not_there(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    change(folder, "relevance", lambda found: found.filter(pa.compute.not_equal(found["query_id"], 0)))
    assert sum(looked(folder)["splits"].values()) == len(pq.read_table(folder / "queries.parquet"))
    change(folder, "queries", lambda found: found.filter(pa.compute.not_equal(found["split"], "test")))
    kept = pq.read_table(folder / "queries.parquet")["query_id"]
    change(folder, "relevance", lambda found: found.filter(pa.compute.is_in(found["query_id"], kept.combine_chunks())))
    assert looked(folder)["problems"] == [f"{folder} must hold a query with a relevant item in split 'test', got none"]


@pytest.mark.parametrize(("form", "recipe"), [("vectors", "vector-cosine"), ("text", "baseline-bm25")])
def test_items_alone_are_enough_for_recipes_that_train_nothing(form: str, recipe: str, tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data") if form == "vectors" else write_text_data(tmp_path / "data")
    for table in ("queries", "relevance"):
        (folder / f"{table}.parquet").unlink()
    found = looked(folder)
    assert not found["problems"]
    assert [name for name, own in found["recipes"].items() if own["fits"]] == [recipe]
    assert found["recipes"]["vector-mol"]["why"].startswith("the data lack ")
    assert set(found["facts"]) == {form}
    assert set(found["facts"][form]) == {"items"}
    assert found["facts"][form]["items"]["num"] == 60
    assert found["baselines"] == []
    assert main(["inspect", str(folder)]) == 0


def test_vectors_alone_are_checked_in_every_row(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    for table in ("queries", "relevance"):
        (folder / f"{table}.parquet").unlink()
    change(folder, "items", setting("vector", 41, [0.0] * 3))
    change(folder, "items", setting("item_id", 5, "item-0"))
    first, second = sorted(looked(folder)["problems"])
    assert "items.parquet must hold distinct ids, got 'item-0' again in row 5" in first
    assert "items.parquet must hold 7 numbers in every row as in row 0, got 3 in row 41" in second
    found = looked(folder)
    assert not any(own["fits"] for own in found["recipes"].values())
