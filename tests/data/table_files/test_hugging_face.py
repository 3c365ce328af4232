"""Data sets of Hugging Face and of Ray Data: as `write_tables` takes them, and as they write files themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import FORMS, vectors_of_items
from rails_ray.data.sources import Sources
from rails_ray.data.table_files import objects
from rails_ray.data.table_files.objects import write_tables

datasets = pytest.importorskip("datasets")

ROWS: dict[str, dict[str, list[Any]]] = {
    "items": {
        "item_id": [3, 1, 4, 15, 9],
        "title": ["1984", 'a "quoted", comma', "two\nlines", None, "007"],
        "text": ["one", "two", "trois", "vier", "5"],
    },
    "queries": {
        "query_id": ["a", "b", "c", "d", "007"],
        "text": ["x y", "1", "z", "q", "w"],
        "split": ["train", "train", "dev", "test", "test"],
    },
    "relevance": {"query_id": ["a", "b", "c", "d", "007"], "item_id": [3, 1, 4, 15, 9]},
}


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return {name: datasets.Dataset.from_dict(columns) for name, columns in ROWS.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return as_text(write_tables(str(tmp_path_factory.mktemp("plain")), **ROWS))


def as_text(folder: Path | str) -> DataSet:
    return FORMS["text"].read(Sources(str(folder)))


def is_same(found: DataSet, expected: DataSet) -> bool:
    return found.digest() == expected.digest() and found.titles == expected.titles


def test_data_sets_are_written(
    tables: dict[str, Any], plain: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "BATCH_ROWS", 2)
    assert is_same(as_text(write_tables(str(tmp_path), **tables)), plain)
    assert len(list((tmp_path / "items").glob("*.parquet"))) == 3


def test_rows_that_were_chosen_and_ordered_are_written(tables: dict[str, Any], plain: DataSet, tmp_path: Path) -> None:
    turned = {name: table.select([4, 3, 2, 1, 0]).select([4, 3, 2, 1, 0]) for name, table in tables.items()}
    assert is_same(as_text(write_tables(str(tmp_path / "turned"), **turned)), plain)
    kept = tables["items"].filter(lambda row: row["item_id"] != 15)
    found = FORMS["text"].corpus(Sources(write_tables(str(tmp_path / "kept"), items=kept))).items.read()
    assert found["item_id"].to_pylist() == [3, 1, 4, 9]


def test_data_sets_that_stream_are_written(tables: dict[str, Any], plain: DataSet, tmp_path: Path) -> None:
    streams = {name: table.to_iterable_dataset() for name, table in tables.items()}
    assert is_same(as_text(write_tables(str(tmp_path / "streams"), **streams)), plain)

    def items() -> Iterator[dict[str, Any]]:
        yield from tables["items"]

    made = {**tables, "items": datasets.IterableDataset.from_generator(items)}
    assert is_same(as_text(write_tables(str(tmp_path / "made"), **made)), plain)


def test_classes_and_vectors_of_features_are_read(tmp_path: Path) -> None:
    features = datasets.Features(
        {"item_id": datasets.Value("string"), "vector": datasets.Sequence(datasets.Value("float32"), length=2)}
    )
    rows = {"item_id": ["a", "b"], "vector": [[0.5, 1.0], [2.0, -1.0]]}
    folder = write_tables(str(tmp_path / "sequence"), items=datasets.Dataset.from_dict(rows, features=features))
    found = vectors_of_items(("vector",), ()).corpus(Sources(folder)).items.read()
    assert found["input"].to_pylist() == rows["vector"]
    matrix = datasets.Features({"item_id": datasets.Value("string"), "vector": datasets.Array2D((2, 2), "float32")})
    two = {"item_id": ["a"], "vector": [[[0.5, 1.0], [2.0, 3.0]]]}
    folder = write_tables(str(tmp_path / "matrix"), items=datasets.Dataset.from_dict(two, features=matrix))
    found = vectors_of_items(("vector",), ()).corpus(Sources(folder)).items.read()
    assert found["input"].to_pylist() == two["vector"]


def test_a_data_set_of_several_splits_is_refused(tables: dict[str, Any], tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": tables["items"], "test": tables["items"]})
    message = "table items must be one data set, got the splits train, test: take one of them"
    with pytest.raises(ValueError, match=message):
        write_tables(str(tmp_path), items=both)
    streams = datasets.IterableDatasetDict({"train": tables["items"].to_iterable_dataset()})
    with pytest.raises(ValueError, match="table items must be one data set, got the splits train: take one of them"):
        write_tables(str(tmp_path), items=streams)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_files_that_a_data_set_writes_are_read(
    ending: str, tables: dict[str, Any], plain: DataSet, tmp_path: Path
) -> None:
    for name, table in tables.items():
        path = str(tmp_path / f"{name}.{ending}")
        {"parquet": table.to_parquet, "csv": table.to_csv, "jsonl": table.to_json}[ending](path)
    assert is_same(as_text(tmp_path), plain)


@pytest.mark.cluster
def test_ray_data_is_written(plain: DataSet, ray_cluster: None, tmp_path: Path) -> None:
    ray_data = pytest.importorskip("ray.data")
    made = {
        name: ray_data.from_items([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
        for name, columns in ROWS.items()
    }
    assert is_same(as_text(write_tables(str(tmp_path), **made)), plain)
