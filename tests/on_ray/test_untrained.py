"""Recipes that train nothing: from vectors or texts to a version by one command, with or without queries."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray import on_ray
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, EXIT_FAILED, main
from rails_ray.errors import NotFoundError
from rails_ray.serving import local
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data, write_vector_data

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def command(*words: object, code: int = 0) -> None:
    assert main([str(word) for word in words]) == code


@pytest.fixture
def vectors(tmp_path: Path) -> np.ndarray:
    """Imported from a file, in the folder `data`."""
    made = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    np.save(tmp_path / "v.npy", made)
    command("index", "import", tmp_path / "v.npy", "--folder", tmp_path / "data")
    return made


def test_vectors_alone_are_encoded_and_searched(
    vectors: np.ndarray, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = ("--storage", tmp_path / "storage")
    words = ("encode", "--recipe", "vector-cosine", "--folder", tmp_path / "data", "--version", "v1", *storage)
    command(*words, "--run", "r")
    command(*words, "--run", "r")  # finished already
    command("publish", "--version", "v1", *storage)
    found = local.open(str(tmp_path / "storage")).search([vectors[7].tolist()], k=3).results[0]
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = vectors @ vectors[7] / lengths / lengths[7]
    best = np.argsort(-cosines)[:3]
    assert found.items == best.tolist()
    assert np.allclose(found.scores, cosines[best], atol=1e-6)
    for measured in ("evaluate", "calibrate"):
        capfd.readouterr()
        command(measured, "--version", "v1", *storage, code=1)
        assert "data/queries.parquet must exist, got no such file" in capfd.readouterr().err
    command("train", "vector-cosine", "--data.folder", tmp_path / "data", "--run", "r", *storage)
    assert "run r: no queries to measure it with, 0 s of training" in capfd.readouterr().out


@pytest.mark.parametrize("index", ["none", "flat", "hnsw"])
def test_a_cluster_and_one_process_write_the_same_files(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run and the version, of items that lie in row groups of several tasks; but for the seconds of training."""
    data, names = write_vector_data(tmp_path / "data", num_items=200) / "items.parquet", ["cluster", "process"]
    items = pq.read_table(data)
    if index == "flat":  # and ids that are numbers
        items = items.set_column(0, "item_id", pa.array(range(200)))
    pq.write_table(items, data, row_group_size=90)
    words = ["--recipe", "vector-cosine", "--items", data, "--run", "r", "--version", "v", "--shards", 2]
    words += ["--part-items", 9] + ([] if index == "none" else ["--index", index])
    command("encode", *words, "--workers", 2, "--storage", tmp_path / "cluster")
    monkeypatch.setattr("rails_ray.cli.encode.has_cluster", lambda: False)
    command("encode", *words, "--storage", tmp_path / "process")
    roots = [tmp_path / name for name in names]
    made = [{str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()} for root in roots]
    assert made[0].keys() == made[1].keys()
    differ = [name for name, path in made[0].items() if path.read_bytes() != made[1][name].read_bytes()]
    assert differ == ["runs/r/training.json"]
    assert len(list((tmp_path / "cluster" / "versions" / "v" / "parts").glob("[0-9]*.json"))) == 24


def test_codes_of_fewer_vectors_than_they_are_wide(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32))
    command("index", "import", tmp_path / "v.npy", "--folder", tmp_path / "data")
    words = ("encode", "--recipe", "vector-cosine", "--folder", tmp_path / "data", "--storage", tmp_path / "storage")
    command(*words, "--version", "few", "--codes", "8x16")
    capfd.readouterr()
    command(*words, "--version", "fewer", "--codes", "8x256", code=EXIT_BAD_ARGUMENT)
    assert "there are items, 40, got 256: take fewer codewords, --codes 8x32" in " ".join(
        capfd.readouterr().err.split()
    )


@pytest.mark.long
def test_queries_of_one_split_are_enough_to_measure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, storage = write_vector_data(tmp_path / "data"), ("--storage", tmp_path / "storage")
    queries = pq.read_table(data / "queries.parquet")
    pq.write_table(queries.set_column(2, "split", pa.array(["test"] * len(queries))), data / "queries.parquet")
    words = ("encode", "--recipe", "vector-cosine", "--version", "v1", *storage)
    command(*words, "--folder", data)
    command(*words, "--folder", data)  # the same run again, without its name
    assert on_ray.evaluate(str(tmp_path / "storage"), version="v1").hit_rate[10] > 0.5
    capfd.readouterr()
    command("calibrate", "--version", "v1", *storage, code=EXIT_BAD_ARGUMENT)
    assert "must hold a query with a relevant item in split 'valid', got none" in capfd.readouterr().err
    command("encode", "--run", "v1", "--version", "v2", "--items", data / "items.parquet", *storage)
    assert on_ray.evaluate(str(tmp_path / "storage"), version="v2").num_queries == 180


@pytest.mark.long
def test_a_run_and_a_version_without_names_get_the_recipes(vectors: np.ndarray, tmp_path: Path) -> None:
    store = Storage(str(tmp_path / "storage"))
    command("encode", "--recipe", "vector-cosine", "--items", tmp_path / "data/items", "--storage", store)
    [run], [version] = store.list("runs"), store.list("versions")
    assert run == version
    assert run.startswith("vector-cosine-")
    assert runs.read(store, run).validation["num_queries"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("recipe", "write", "query"),
    [("vector-cosine", write_vector_data, [1.0] * 7), ("baseline-bm25", write_text_data, "red")],
)
def test_with_queries_it_is_measured(recipe: str, write: Any, query: Any, tmp_path: Path) -> None:
    storage, data = str(tmp_path / "storage"), write(tmp_path / "data")
    command("encode", "--recipe", recipe, "--folder", data, "--run", "r", "--version", "v", "--storage", storage)
    assert 0 < runs.read(Storage(storage), "r").validation["hit_rate"]["10"] <= 1
    assert on_ray.evaluate(storage, version="v").num_queries > 0


@pytest.mark.long
def test_texts_without_queries(tmp_path: Path) -> None:
    data, storage = write_text_data(tmp_path / "data"), str(tmp_path / "storage")
    for table in ("queries", "relevance"):
        (data / f"{table}.parquet").unlink()
    command(
        "encode", "--recipe", "baseline-bm25", "--folder", data, "--run", "r", "--version", "v", "--storage", storage
    )
    command("publish", "--version", "v", "--storage", storage)
    assert local.open(storage).search(["red thing"], k=3).results[0].items
    with pytest.raises(NotFoundError, match=r"queries\.parquet must exist"):
        on_ray.evaluate(storage, run="r")


@pytest.mark.long
def test_queries_without_relevance_are_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_vector_data(tmp_path / "other")
    (tmp_path / "other" / "relevance.parquet").unlink()
    storage = ("--storage", tmp_path / "storage")
    command("encode", "--recipe", "vector-cosine", "--folder", tmp_path / "other", "--version", "v", *storage)
    command("evaluate", "--version", "v", *storage, code=EXIT_FAILED)
    assert "other/relevance.parquet must exist, got no such file" in capfd.readouterr().err
