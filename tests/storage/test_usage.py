"""Bytes of versions: what several of them name is stored once."""

import json
from pathlib import Path

import pytest

from rails_ray.cli.main import main
from rails_ray.serving import local
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.usage import usage


def build(root: Path, version: str, items: list[list[float]], index: str = "flat") -> None:
    local.build(items, folder=str(root), version=version, index=index)


def files(root: Path, folder: str) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (root / folder).iterdir() if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`a`; `b` of the same items, with an index; `c` of other items."""
    items = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    build(tmp_path, "a", items)
    build(tmp_path, "b", items, "hnsw")
    build(tmp_path, "c", [*items, [2.0, 1.0]])
    return tmp_path


def test_what_two_versions_name_counts_once(root: Path) -> None:
    found = usage(Storage(str(root)))
    sizes = {own.version: own.size_bytes for own in found.versions}
    alone = {own.version: own.own_bytes for own in found.versions}
    beside = {
        name: sum(own[file] for file in ("config.json", "model.safetensors"))
        for name in "abc"
        for own in [files(root, f"versions/{name}")]
    }
    fitted = json.loads((root / "versions/b/indexes/fitted-average.json").read_text())["size_bytes"]  # not counted
    assert found.total_bytes == sum(files(root, "objects").values()) - fitted + sum(beside.values())
    assert alone["a"] == beside["a"]
    assert alone["c"] == sizes["c"]
    assert sizes["a"] is not None
    assert sizes["b"] == sizes["a"] - beside["a"] + (alone["b"] or 0)
    assert found.total_bytes == (alone["b"] or 0) + (alone["c"] or 0) + sizes["a"]


def test_versions_without_a_record_are_shown(root: Path) -> None:
    (root / "versions/c/manifest.json").write_text("{}")
    (root / "versions/d").mkdir()
    (root / "versions/d/begun.json").write_text("{}")
    found = usage(Storage(str(root)))
    states = [(own.version, own.state, own.size_bytes is None) for own in found.versions]
    assert states == [
        ("a", "published", False),
        ("b", "published", False),
        ("c", "damaged", True),
        ("d", "encoding", True),
    ]


def test_no_version_takes_nothing(tmp_path: Path) -> None:
    found = usage(Storage(str(tmp_path)))
    assert (found.versions, found.total_bytes) == ([], 0)


def test_the_command_shows_them(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "versions/c/manifest.json").write_text("{}")
    assert main(["index", "du", "--storage", str(root)]) == 0
    said = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:5]] for line in said.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [
        ["a", "published"],
        ["b", "published"],
        ["c", "damaged"],
        ["all, each file once", ""],
    ]
    assert rows[2][2:] == ["unknown", "unknown"]
    assert main(["index", "du", "--storage", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["total_bytes"], len(found["versions"])) == (
        1,
        usage(Storage(str(root))).total_bytes,
        3,
    )
