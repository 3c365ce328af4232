from pathlib import Path

import pytest

from rails_ray.errors import NotFoundError
from rails_ray.storage.filesystem import Storage


def test_write_read_list(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "new"))
    assert storage.list("a") == []
    storage.write("a/b.txt", b"1")
    storage.write("a/b.txt", b"2")
    storage.write("a/c/d", b"3")
    assert storage.read("a/b.txt") == b"2"
    assert storage.list("a") == ["b.txt", "c"]
    assert storage.exists("a/c/d")
    assert not storage.exists("a/x")


def test_a_write_that_fails_leaves_the_old_bytes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(tmp_path))
    storage.write("file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        storage.write("file", b"new")
    assert storage.read("file") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nope must exist, got no such file"):
        Storage(str(tmp_path)).read("nope")


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b"])
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="must be relative and lead down"):
        Storage(str(tmp_path)).read(path)


def test_roots_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="storage must be a local folder, got s3://bucket/x"):
        Storage("s3://bucket/x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"storage must be a folder, got the file .*file"):
        Storage(str(tmp_path / "file"))
