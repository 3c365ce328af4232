"""`rails-ray index gc`, `tag` and `untag`: what they print, and what a job's last line says."""

import json
from pathlib import Path

import pytest

from rails_ray.cli.main import job, main
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.collected import build


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Storage with four versions, v1 to v4."""
    for number in range(1, 5):
        build(Storage(str(tmp_path)), f"v{number}", 100 * number)
    return str(tmp_path)


def rows_of(said: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if line.startswith("│")]


def test_what_would_go_is_shown_and_then_deleted(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    storage = Storage(root)
    before = storage.walk("")
    assert main(["index", "gc", "--keep", "1", "--storage", root]) == 0
    said = capsys.readouterr().out
    assert storage.walk("") == before
    rows = rows_of(said)
    assert [row[:3] for row in rows] == [
        ["v1", "published", ""],
        ["v2", "published", ""],
        ["v3", "published", "current before"],
        ["v4", "current", "current"],
        ["all", "", ""],
    ]
    assert rows[2][3] == "0 bytes"
    assert "the same command with --delete deletes them" in said
    assert main(["index", "gc", "--keep", "1", "--delete", "--storage", root]) == 0
    said = capsys.readouterr().out
    assert "deleted: " in said
    assert [own.version for own in versions.listed(storage)] == ["v3", "v4"]
    assert main(["index", "gc", "--keep", "1", "--storage", root]) == 0
    assert "nothing to delete" in capsys.readouterr().out


def test_as_json(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["index", "gc", "--version", "v1", "--version", "v2", "--json", "--storage", root]
    assert main(words) == 0
    dry = json.loads(capsys.readouterr().out)
    assert (dry["format"], dry["num_deleted"], dry["is_complete"]) == (1, 0, False)
    assert [(own["version"], own["reasons"]) for own in dry["versions"]] == [
        ("v1", []), ("v2", []), ("v3", ["current before"]), ("v4", ["current"]),
    ]  # fmt: skip
    assert 0 < dry["size_bytes"] < dry["total_bytes"]
    assert main([*words, "--delete", "--yes"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["is_complete"]
    assert (done["num_deleted"], done["deleted_bytes"]) == (dry["num_files"], dry["size_bytes"])
    assert done["versions"] == dry["versions"]


def test_more_than_half(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    storage = Storage(root)
    storage.write("objects/" + 64 * "0", bytes(100_000))
    assert main(["index", "gc", "--storage", root]) == 0
    assert "the same command with --delete --yes deletes them" in capsys.readouterr().out
    assert main(["index", "gc", "--delete", "--storage", root]) == 2
    assert "at most half of all bytes may be deleted unless --yes is given, got 100,000 of" in capsys.readouterr().err
    assert main(["index", "gc", "--delete", "--yes", "--storage", root]) == 0


def test_tags_are_given_listed_and_taken(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "tag", "stable", "v1", "--storage", root]) == 0
    assert capsys.readouterr().out == "tag stable: version v1\n"
    assert main(["index", "tag", "live", "--storage", root]) == 0
    assert main(["index", "tag", "release", "stable", "--storage", root]) == 0
    assert main(["index", "list", "--storage", root]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row[:3] for row in rows] == [
        ["v1", "published", "release, stable"],
        ["v2", "published", ""],
        ["v3", "published", ""],
        ["v4", "current", "live"],
    ]
    assert main(["index", "show", "stable", "--storage", root]) == 0
    assert "v1" in capsys.readouterr().out
    assert main(["index", "gc", "--keep", "0", "--delete", "--storage", root]) == 0
    assert [own.version for own in versions.listed(Storage(root))] == ["v1", "v3", "v4"]
    capsys.readouterr()
    assert main(["index", "untag", "stable", "--storage", root]) == 0
    assert capsys.readouterr().out == "tag stable is gone\n"
    assert main(["index", "untag", "stable", "--storage", root]) == 1
    assert capsys.readouterr().err == "rails-ray: tag must be one of live, release, got 'stable'\n"


def test_as_a_job(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert job("index", ["gc", "--keep", "0", "--delete", "--yes", "--storage", root]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["job"] == "index"
    assert last["num_deleted"] == last["num_files"] > 0
