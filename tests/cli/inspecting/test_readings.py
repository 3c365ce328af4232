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
from support.examples import (
    write_sequence_data,
    write_text_data,
    write_vector_data,
)
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
            "column 'item_id' of {}/relevance/1.parquet must be in {}/items.parquet, got 'nobody' in row 0, and so in",
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
            "column 'item_id' of {}/interactions/1.parquet must be in {}/items.parquet, got 'nobody' in row 0, and",
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
        f"{folder}/items/1.parquet must have a column 'text', got item_id",
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
        f"{folder}/relevance.parquet must exist, got no such file, none of relevance in CSV, TSV or "
        "JSON lines, and no folder relevance of such files"
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


def bytes_of(*texts: bytes) -> pa.Array:
    return pa.array(texts, pa.binary())


def write_ten_faults(folder: Path) -> None:
    """A data set of texts, vectors and histories, each of whose tables is spoilt in several ways at once."""
    write_vector_data(folder)
    items = pq.read_table(folder / "items.parquet")
    items = items.append_column("text", bytes_of(b"caf\xe9", *[b"cafe"] * (len(items) - 1)))
    pq.write_table(items.append_column("title", pa.array(range(len(items)))), folder / "items.parquet")
    change(folder, "items", setting("item_id", 4, None))
    change(folder, "items", setting("item_id", 7, "item-6"))
    change(folder, "items", setting("vector", 9, [1.0]))
    change(folder, "items", setting("vector", 11, [float("nan")] * 7))
    change(folder, "queries", setting("split", 3, "holdout"))
    change(folder, "relevance", strangers("item_id"))
    interactions = {
        "user_id": [0, 0, 0, 0],
        "item_id": ["item-0", "item-1", "item-2", "item-3"],
        "timestamp": ["2026-01-31", "2026-02-01", "yesterday", "2026-02-03"],
    }
    pq.write_table(pa.table(interactions), folder / "interactions.parquet")
    (folder / "users.parquet").write_bytes(b"PAR1 and then nothing")


TEN_FAULTS = (
    "column 'item_id' of {}/items.parquet must have a value in every row, got null in row 4: give it one, or leave the",
    "column 'item_id' of {}/items.parquet must hold distinct ids, got 'item-6' again in row 7: leave out one of them",
    "column 'text' of {}/items.parquet must hold text in UTF-8, got b'caf\\xe9' in row 0",
    "column 'title' of {}/items.parquet must be of type string, got int64",
    "column 'vector' of {}/items.parquet must hold 7 numbers in every row as in row 0, got 1 in row 9: mend the row",
    "column 'vector' of {}/items.parquet must hold numbers that are finite in float32, got nan in row 11: mend",
    "column 'split' of {}/queries.parquet must be one of train, valid, test, validation, val, dev, got 'holdout' in",
    "column 'item_id' of {}/relevance.parquet must be in {}/items.parquet, got 'nobody' in row 0, and so in 6",
    "column 'timestamp' of {}/interactions.parquet must hold times in ISO 8601, such as 2026-01-31T23:59:00Z, got 'yes",
    "{}/users.parquet must be a Parquet file, got: ",
)


def test_ten_faults_are_ten_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ten_faults(tmp_path)
    assert main(["inspect", str(tmp_path), "--no-timing"]) == 1
    out, errors = capsys.readouterr()
    lines = [line.removeprefix("problem: ") for line in out.splitlines() if line.startswith("problem: ")]
    for fault in TEN_FAULTS:
        assert [line for line in lines if line.startswith(fault.replace("{}", str(tmp_path)))], fault
    assert len(lines) == 10, lines
    assert errors == f"rails-ray: {tmp_path} must be data that training takes, got 10 problems\n"


@pytest.mark.parametrize(
    ("column", "values", "sentences"),
    [
        (
            "feature_indices",
            {2: [-1, 2], 5: [2**30], 6: [3, 3], 8: None},
            [
                "must have a value in every row, got null in row 8",
                "must hold integers of at least 0, got -1 in row 2",
                "must hold integers below 16777216, got 1073741824 in row 5: number the features from 0",
                "must hold distinct integers in every row, got 3 twice in row 6",
            ],
        ),
        (
            "feature_values",
            {1: [float("inf"), 1.0], 4: [None, 1.0], 7: None},
            [
                "must have a value in every row, got null in row 7",
                "must hold numbers that are finite in float32, got inf in row 1",
                "must hold numbers, got null in row 4",
            ],
        ),
        ("split", {0: None, 3: "later"}, ["must have a value in every row, got null in row 0", "must be one of train"]),
    ],
)
def test_a_column_has_a_sentence_for_each_kind_of_fault(
    column: str, values: dict[int, Any], sentences: list[str], tmp_path: Path
) -> None:
    folder = write(tmp_path / "data", "features")
    two = pa.array([[0, 1]] * len(pq.read_table(folder / "queries.parquet")))
    for name in ("feature_indices", "feature_values"):
        kind = pa.list_(pa.int64() if name == "feature_indices" else pa.float64())
        change(
            folder,
            "queries",
            lambda found, name=name, kind=kind: found.drop_columns([name]).append_column(name, two.cast(kind)),
        )
    for row, value in values.items():
        if column == "feature_indices" and value is not None:
            change(folder, "queries", setting("feature_values", row, [1.0] * len(value)))
        change(folder, "queries", setting(column, row, value))
    found = looked(folder)["problems"]
    for sentence in sentences:
        start = f"column {column!r} of {folder}/queries.parquet {sentence}"
        assert [own for own in found if own.startswith(start)], (start, found)
    assert len([own for own in found if own.startswith(f"column {column!r}")]) == len(sentences), found


def test_no_vector_hides_another(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    for row, value in {0: None, 3: [1.0] * 6, 4: [1.0] * 5, 8: [*[1.0] * 6, None], 20: [float("inf")] * 7}.items():
        change(folder, "items", setting("vector", row, value))
    found = [own.partition("items.parquet ")[2] for own in looked(folder)["problems"]]
    assert found == [
        "must have a value in every row, got null in row 0: give it one, or leave the row out",
        "must hold 7 numbers in every row as in row 0, got 6 in row 3: mend the row, or leave it out",
        "must hold numbers, got null in row 8: mend the row, or leave it out",
        "must hold numbers that are finite in float32, got inf in row 20: mend the row, or leave it out",
    ]


def test_a_missing_table_or_column_hides_nothing_else(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    (folder / "relevance.parquet").unlink()
    change(folder, "queries", lambda found: found.drop_columns(["split"]))
    change(folder, "items", setting("item_id", 5, "item-4"))
    found = looked(folder)["problems"]
    for sentence in (
        f"{folder}/relevance.parquet must exist, got no such file",
        f"{folder}/queries.parquet must have a column 'split', got query_id, text",
        f"column 'item_id' of {folder}/items.parquet must hold distinct ids, got 'item-4' again in row 5",
    ):
        assert [own for own in found if own.startswith(sentence)], found
    assert len(found) == 3


def test_a_table_that_cannot_be_put_together_hides_no_other(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    (folder / "items.parquet").unlink()
    (folder / "items.csv").write_bytes(b"item_id,text\n1,\xff\n")
    change(folder, "queries", setting("split", 1, "holdout"))
    first, second = looked(folder)["problems"]
    assert first.startswith(f"{folder}/items.csv must be rows of one number of fields in UTF-8, got: ")
    assert second.startswith(f"column 'split' of {folder}/queries.parquet must be one of train")


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    into_two_files(folder, "items")
    (folder / "items/2.parquet").write_bytes(b"no Parquet")
    change(folder / "items", "1", setting("item_id", 5, "item-4"))
    found = looked(folder)["problems"]
    assert len(found) == 2, found  # ids of the broken file may be those that relevance names
    assert found[0].startswith(f"{folder}/items/2.parquet must be a Parquet file")
    assert found[1].startswith(f"column 'item_id' of {folder}/items/1.parquet must hold distinct ids, got 'item-4'")


def test_a_row_is_named_by_the_file_of_a_folder_of_text_files(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    queries = pq.read_table(folder / "queries.parquet").to_pandas()
    (folder / "queries.parquet").unlink()
    (folder / "queries").mkdir()
    queries[:40].to_csv(folder / "queries/a.csv", index=False)
    queries[40:].assign(split="later").to_csv(folder / "queries/b.csv", index=False)
    [sentence] = looked(folder)["problems"]
    assert sentence.startswith(f"column 'split' of {folder}/queries/b.csv must be one of")
    assert sentence.endswith("got 'later' in row 0")
