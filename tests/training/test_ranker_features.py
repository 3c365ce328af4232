"""Features for boosted trees: what is read, and what tables must hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.cli.main import main
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from rails_ray.training import ranker_features

TABLES: dict[str, dict[str, list[Any]]] = {
    "items": {"item_id": [7, 8, 9], "text": ["a", "b", "c"]},
    "queries": {"query_id": ["p", "q", "r"], "text": ["x", "y", "x"], "split": ["train", "train", "test"]},
    "relevance": {"query_id": ["q", "p", "p", "r"], "item_id": [9, 7, 8, 9]},
    "query_features": {
        "query_id": ["q", "r", "p"], "age": [30, 20, 20], "likes": [0.5, 1.5, 1.5], "old": [True, False, False],
    },
    "item_features": {"year": [1.0, 2.0, 3.0, 4.0], "likes": [5, 6, 7, 8], "item_id": [10, 9, 8, 7]},
}  # fmt: skip


def write(folder: Path, **changed: dict[str, list[Any]] | None) -> Path:
    """A data set with features.

    Args:
        changed: columns of a table in place of its own; None for no such table.
    """
    for name, columns in TABLES.items():
        own = changed.get(name, {})
        if own is not None:
            pq.write_table(pa.table(columns | own), folder / f"{name}.parquet")
    return folder


def test_shared_columns_come_first_and_pairs_are_those_of_training(tmp_path: Path) -> None:
    features, positives = ranker_features.read(Sources(str(write(tmp_path))))
    assert features.num_shared == 1
    assert features.query_keys.tolist() == ["x", "y", "x"]
    assert features.queries.tolist() == [[1.5, 20, 0], [0.5, 30, 1], [1.5, 20, 0]]
    assert features.item_keys.tolist() == ["10", "9", "8", "7"]  # 10 is not in the corpus, and may join it
    assert features.items.tolist() == [[5, 1], [6, 2], [7, 3], [8, 4]]
    assert features.items.dtype == features.queries.dtype == np.float32
    assert positives.tolist() == [[0, 3], [0, 2], [1, 1]]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"item_features": {"year": ["1", "2", "3", "4"]}}, "'year' of .*item_features.parquet must be of type int"),
        ({"query_features": {"likes": [0.5, None, 1.5]}}, "'likes' of .*/query_features.parquet .*, got null in row 1"),
        ({"item_features": {"likes": [1.0, 2.0, np.nan, 3.0]}}, "finite in float32, got nan in row 2"),
        ({"item_features": {"likes": [1.0, 1e99, 2.0, 3.0]}}, r"finite in float32, got 1e\+99 in row 1"),
        ({"item_features": {"item_id": [10, 9, 8, 8]}}, "must hold distinct ids, got 8 again in row 3"),
        ({"item_features": {"item_id": [10, 9, 8, 6]}}, "must hold ids of .*/item_features.parquet, got 7 in row 0"),
        ({"query_features": {"query_id": ["q", "s", "p"]}}, "hold ids of .*/query_features.parquet, got 'r' in row 2"),
        ({"query_features": {"age": [30, 20, 21]}}, "must have the same features, got others for 'x' in row 2"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, changed: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ranker_features.read(Sources(str(write(tmp_path, **changed))))


def test_boosted_trees_refuse_weights(tmp_path: Path) -> None:
    folder = write(tmp_path, relevance={"weight": [1.0, 2.0, 0.5, 1.0]})
    with pytest.raises(ValueError, match="to train boosted trees, which cannot weigh them, got a column 'weight'"):
        ranker_features.read(Sources(str(folder)))


def test_tables_without_a_feature_or_without_rows(tmp_path: Path) -> None:
    write(tmp_path)
    pq.write_table(pa.table({"item_id": [7, 8, 9]}), tmp_path / "item_features.parquet")
    with pytest.raises(ValueError, match="must have a column of numbers beside 'item_id', got none"):
        ranker_features.read(Sources(str(tmp_path)))
    (tmp_path / "query_features.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"query_features\.parquet must exist, got no such file"):
        ranker_features.read(Sources(str(tmp_path)))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--kind", "boosted", "--training.num-steps", "9"], "--training must be given with --kind cross_encoder, got"),
        (["--kind", "boosted", "--device", "cuda"], "--device must be given with --kind cross_encoder, got boosted"),
        (["--trees.num-rounds", "9"], "--trees must be given with --kind boosted, got cross_encoder"),
        (["--kind", "boosted", "--num-negatives", "0"], "num_negatives must be at least 1, got 0"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train-ranker", "--folder", str(write(tmp_path)), "--to", str(tmp_path / "trees")]
    assert main([*asked, *words]) == 2
    assert told in capsys.readouterr().err
