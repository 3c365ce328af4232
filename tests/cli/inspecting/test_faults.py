"""Faults of a folder: each has a line of its own, and none hides another."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.cli.main import main
from support.data_folders import write_text_data, write_vector_data
from support.inspected import change, into_two_files, looked, setting, strangers, write


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
    "column 'item_id' of {}/relevance.parquet must hold ids of {}/items.parquet, got 'nobody' in row 0 (6",
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
        "must hold 7 numbers in every row as in row 1, got 6 in row 3: mend the row, or leave it out",
        "must hold numbers, got null in row 8: mend the row, or leave it out",
        "must hold numbers that are finite in float32, got inf in row 20: mend the row, or leave it out",
    ]


def test_a_width_is_that_of_the_first_vector_wherever_it_is(tmp_path: Path) -> None:
    """The first 80 of 100 items have no vector."""
    folder = write_vector_data(tmp_path / "data", num_items=100)
    for row in range(80):
        change(folder, "items", setting("vector", row, None))
    change(folder, "items", setting("vector", 90, [1.0] * 6))
    found = [own.partition("items.parquet ")[2] for own in looked(folder)["problems"]]
    assert found == [
        "must have a value in every row, got null in row 0: give it one, or leave the row out",
        "must hold 7 numbers in every row as in row 80, got 6 in row 90: mend the row, or leave it out",
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
