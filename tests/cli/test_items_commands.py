"""`rails-ray items` and `rails-ray index compact`: what they print, and what a job's last line says."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray import local
from rails_ray.cli.main import job, main
from rails_ray.storage.filesystem import Storage

WIDTH = 4


def write(folder: Path, ids: list[str], *, zeros: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(len(ids)).standard_normal((len(ids), WIDTH)).astype(np.float32)
    vectors = np.zeros_like(numbers) if zeros else numbers
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)
    pq.write_table(pa.table({"item_id": ids, "vector": column, "title": ids}), folder / "items.parquet")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Storage with a version of 60 items in two shards."""
    root, data = str(tmp_path / "storage"), write(tmp_path / "data", [f"a{number}" for number in range(60)])
    words = ["--recipe", "vector-cosine", "--folder", str(data), "--version", "v1", "--shards", "2", "--storage", root]
    assert main(["encode", *words]) == 0
    assert main(["publish", "--version", "v1", "--storage", root]) == 0
    return root


def test_items_come_and_go(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = write(tmp_path / "new", ["b0"])
    assert main(["items", "add", "--folder", str(new), "--storage", root]) == 0
    assert "is current: 61 items (1 added)" in capsys.readouterr().out
    assert main(["items", "upsert", "--folder", str(write(tmp_path / "newer", ["b0", "b1"])), "--storage", root]) == 0
    assert "62 items (1 added, 1 replaced)" in capsys.readouterr().out
    assert main(["items", "delete", "b0", "a1", "nobody", "--storage", root]) == 0
    said = capsys.readouterr().out
    assert "60 items (2 deleted, 1 unknown)" in said
    assert "compacted, 60 items" in said  # as more than 5% of the rows have changed
    opened = local.open(root)
    assert not opened.manifest.num_deltas
    assert opened.manifest.shard_items == opened.manifest.live_items
    assert main(["index", "verify", "--storage", root]) == 0
    assert "60 items, all as published" in capsys.readouterr().out


def test_a_compaction_by_hand(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["items", "delete", "a1", "a2", "a3", "a4", "--compact", "never", "--storage", root]
    assert main(words) == 0
    assert f"next: rails-ray index compact --storage {root}" in capsys.readouterr().out
    assert main(["index", "show", "--storage", root]) == 0
    assert "hidden items" in capsys.readouterr().out
    assert main(["index", "compact", "--storage", root]) == 0
    assert "is current: 56 items, no deltas" in capsys.readouterr().out
    assert main(["index", "diff", "v1", "--storage", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"]["removed"] == 4


def test_the_last_line_of_a_job(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write(tmp_path / "new", ["b0"])
    monkeypatch.setattr("sys.argv", ["refresh", "--folder", str(new), "--storage", root])
    assert job("refresh") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["num_added"] == 1
    assert found["version"].startswith("v1.1-")


@pytest.mark.parametrize(
    ("ids", "zeros", "message"),
    [
        (["a1"], False, "items to add must be new to version v1, got 1 of 1 that it has, first 'a1'"),
        (["b1", "b1"], False, "'b1'"),
        (["b1"], True, "b1"),
    ],
)
def test_items_that_are_refused(
    root: str, tmp_path: Path, ids: list[str], zeros: bool, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write(tmp_path / "new", ids, zeros=zeros)
    assert main(["items", "add", "--folder", str(new), "--storage", root]) == 2
    assert message in capsys.readouterr().err
    assert len(Storage(root).list("versions")) == 1


def test_nothing_is_named(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["items", "add", "--storage", root]) == 2
    assert "items to add must be named by --folder or --items, got neither" in capsys.readouterr().err
    assert main(["items", "delete", "--storage", root]) == 2


def test_a_file_alone(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = write(tmp_path / "new", ["b0"])
    assert main(["items", "add", "--items", str(new / "items.parquet"), "--storage", root]) == 0
    assert "61 items (1 added)" in capsys.readouterr().out
