"""Vectors from a file to a version and back, by the commands; and a version opened with plain pyarrow."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rails_ray.cli.main import main
from rails_ray.families.version import Version
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_vector_data
from support.examples import publish_here


def command(*words: str, code: int = 0) -> None:
    assert main(list(words)) == code


def test_a_file_becomes_a_folder_and_a_file_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    command("index", "import", str(tmp_path / "v.npy"), "--folder", str(tmp_path / "data"))
    assert "50 items of width 6" in capsys.readouterr().out
    command("index", "export", str(tmp_path / "w.fbin"), "--folder", str(tmp_path / "data"))
    assert np.fromfile(tmp_path / "w.fbin", dtype=np.float32, offset=8).reshape(50, 6).tolist() == vectors.tolist()
    command("index", "import", str(tmp_path / "absent.npy"), "--folder", str(tmp_path / "other"), code=1)
    assert "absent.npy must exist" in capsys.readouterr().err


@pytest.mark.parametrize(("component", "column"), [(None, "average"), ("1", "components")])
def test_what_a_version_stores_of_its_items(component: str | None, column: str, tmp_path: Path) -> None:
    manifest = publish_here(tmp_path)
    words = ["index", "export", str(tmp_path / "v.parquet"), "--storage", str(tmp_path)]
    command(*words, *([] if component is None else ["--component", component]))
    written = pq.read_table(tmp_path / "v.parquet")
    items = Version(Storage(str(tmp_path)), manifest).items()
    expected = items.state.columns()[column]
    assert written["id"].to_pylist() == items.item_ids
    assert np.array_equal(
        np.stack(written["vector"].to_numpy()), expected if component is None else expected[:, int(component)]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--component", "7"], "component must be at least 0 and below the 2 of an item, got 7"),
        (["--version", "v9"], "version must be one of v1, got 'v9'"),
        (["--format", "magic"], "magic"),
        (["--folder", "/nowhere"], "/nowhere/items"),
    ],
)
def test_exports_that_cannot_be(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_here(tmp_path)
    code = main(["index", "export", str(tmp_path / "v.parquet"), "--storage", str(tmp_path), *words])
    assert code in (1, 2)
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert not (tmp_path / "v.parquet").exists()


def test_ids_that_a_format_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish_here(tmp_path)
    words = ["index", "export", str(tmp_path / "v.npy"), "--storage", str(tmp_path)]
    command(*words, code=2)
    assert "write .parquet" in capsys.readouterr().err
    command(*words, "--no-use-ids")
    assert np.load(tmp_path / "v.npy").shape == (60, 6)


PLAIN = """
import json, sys
from pathlib import Path
import pyarrow.parquet as pq

root = Path(sys.argv[1])
manifest = json.loads((root / "versions" / "v1" / "manifest.json").read_text())
rows = []
for part in sorted(manifest["parts"], key=lambda part: part["first_row"]):
    table = pq.read_table(root / part["path"])
    state = json.loads(table.schema.metadata[b"state"])
    assert state == manifest["state"]
    p_x, width = state["shapes"]["components"]
    for row in table.to_pylist():
        numbers = row["components"]
        rows.append([row["item_id"], [numbers[p * width : (p + 1) * width] for p in range(p_x)]])
assert "rails_ray" not in sys.modules
print(json.dumps(rows))
"""


def test_a_version_is_opened_by_plain_pyarrow(tmp_path: Path) -> None:
    """By what docs/indexes.md says of the files of a version, without this package."""
    publish_here(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path)], capture_output=True, check=True, text=True, timeout=60
    )
    ids, components = zip(*json.loads(run.stdout), strict=True)
    store = Storage(str(tmp_path))
    items = Version(store, versions.read_manifest(store)).items()
    assert list(ids) == items.item_ids
    assert np.array_equal(np.array(components, dtype=np.float32), items.state.components)


def test_a_folder_of_vectors_is_exported(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    command("index", "export", str(tmp_path / "v.parquet"), "--folder", str(folder))
    expected = pq.read_table(folder / "items.parquet")
    written = pq.read_table(tmp_path / "v.parquet")
    assert written["id"].to_pylist() == expected["item_id"].to_pylist()
    assert np.allclose(np.stack(written["vector"].to_numpy()), np.stack(expected["vector"].to_numpy()))
