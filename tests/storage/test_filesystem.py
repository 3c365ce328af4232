"""What every kind of storage does, and what a local folder does when it fails."""

import errno
import hashlib
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rails_ray.errors import ConflictError, NotFoundError, StorageError
from rails_ray.storage.filesystem import Storage, Tagged
from rails_ray.storage.local import HASHED_BYTES, LocalFiles
from support.azure_server import needs_azurite

RACERS = 16


KINDS = [
    "local",
    "s3",
    "s3 with a prefix",
    pytest.param("azure", marks=needs_azurite),
    pytest.param("azure with a prefix", marks=needs_azurite),
    "google",
    "google with a prefix",
]


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty storage."""
    if request.param == "local":
        return str(tmp_path / "new")
    kind, _, prefix = request.param.partition(" ")
    bucket: str = request.getfixturevalue(kind)
    return f"{bucket}/one/two" if prefix else bucket


@pytest.fixture
def storage(root: str) -> Storage:
    return Storage(root)


def test_write_read_list(storage: Storage) -> None:
    assert storage.list("a") == []
    storage.write("a/b.txt", b"1")
    storage.write("a/b.txt", b"2")
    storage.write("a/c/d", b"3")
    storage.write("a/.hidden", b"4")
    storage.write("ab", b"")
    assert storage.read("a/b.txt") == b"2"
    assert storage.read("ab") == b""
    assert storage.list("a") == ["b.txt", "c"]
    assert storage.list("a/b.txt") == []
    assert storage.list(".") == storage.list("") == ["a", "ab"]
    assert storage.exists("a/c/d")


def test_walk_finds_all_files_below_a_folder(storage: Storage) -> None:
    assert storage.walk("a") == []
    for path in ("a/c/d=1/e", "a/b", "a/.hidden", "a/.hidden-too/e", "ab/c", "a/c.x/e"):
        storage.write(path, b"")
    assert storage.walk("a") == storage.walk("a/") == ["a/b", "a/c.x/e", "a/c/d=1/e"]
    assert storage.walk("") == [*storage.walk("a"), "ab/c"]
    assert storage.walk("a/b") == []


def test_a_link_that_leads_back_is_walked_once(tmp_path: Path) -> None:
    Storage(str(tmp_path)).write("a/b/c", b"")
    (tmp_path / "a/b/again").symlink_to(tmp_path / "a")
    assert Storage(str(tmp_path)).walk("a") == ["a/b/c"]


ODD = ("a@b", "a+b", "a b", "100%", "a%20b", "#1", "[x]", "{y}", "a=b&c", "~a", "a'b", "é", "a;b,c", "a:b", "(1)")


@pytest.mark.long
def test_names_of_any_characters(root: str) -> None:
    """Of folders and files, and of the folder that is the root."""
    for name in ODD:
        storage = Storage(f"{root}/{name}")
        for path in (f"{name}/{name}.txt", f"{name}/other"):
            storage.create(path, name.encode())
            storage.swap(path, path.encode(), storage.read_tagged(path).tag)
            assert storage.exists(path)
            assert storage.read(path) == path.encode()
        assert storage.list(name) == sorted([f"{name}.txt", "other"])
        assert storage.list("") == [name]
        assert storage.copy(f"{name}/other", f"copied {name}") == len(f"{name}/other".encode())
        with storage.open(f"copied {name}") as opened:
            assert opened.file.read() == f"{name}/other".encode()
        assert Storage(str(storage)).read(f"copied {name}") == f"{name}/other".encode()
        storage.delete(f"{name}/other")
        assert storage.list(name) == [f"{name}.txt"]
    assert Storage(root).list("") == sorted(ODD)


def test_a_folder_by_its_url(tmp_path: Path) -> None:
    for name in ("plain", *ODD):
        folder = tmp_path / name
        Storage(str(folder)).write("a", b"1")
        for url in (folder.as_uri(), folder.as_uri().replace("file://", "file://localhost")):
            assert Storage(url).read("a") == b"1"
            assert str(Storage(url)) == str(folder)
    for url in ("file://host/folder", "file://folder", "file://"):
        with pytest.raises(ValueError, match=f"^storage must be file:///folder, with three slashes, got {url}$"):
            Storage(url)


def test_only_files_exist(storage: Storage) -> None:
    storage.write("a/bc/d", b"")
    storage.write("a/bc.txt", b"")
    assert [storage.exists(path) for path in ("a/bc/d", "a/bc", "a/b", "a", "x", "a/bc.txt/e")] == [True] + 5 * [False]


def test_every_process_reads_and_lists_what_the_others_wrote(root: str) -> None:
    mine, theirs = Storage(root), Storage(str(Storage(root)))
    assert mine.list("a") == []
    assert not mine.exists("a/b")
    theirs.write("a/b", b"1")
    assert mine.list("a") == ["b"]
    assert mine.exists("a/b")
    theirs.write("a/b", b"2")
    assert mine.read("a/b") == b"2"
    theirs.delete("a/b")
    assert mine.list("a") == []
    assert not mine.exists("a/b")


def test_delete(storage: Storage) -> None:
    storage.write("a/b", b"1")
    storage.delete("a/b")
    storage.delete("a/b")
    storage.delete("x/y")
    assert not storage.exists("a/b")


def test_large_files(storage: Storage) -> None:
    data = os.urandom(20 << 20)
    storage.write("large", data)
    assert storage.read("large") == data


def test_a_copy_stays_when_its_source_changes(storage: Storage) -> None:
    storage.write("a/b", b"12")
    storage.write("c/d", b"before")
    assert storage.copy("a/b", "c/d") == storage.copy("a/b", "c/e") == storage.copy("a/b", "c/e") == 2
    storage.write("a/b", b"3")
    assert [storage.read(path) for path in ("a/b", "c/d", "c/e")] == [b"3", b"12", b"12"]
    storage.delete("a/b")
    assert storage.read("c/d") == b"12"
    assert storage.list("c") == ["d", "e"]
    for missing in ("a/b", "c/d/e"):
        with pytest.raises(NotFoundError, match=f"{missing} must exist, got no such file"):
            storage.copy(missing, "c/f")
    assert storage.list("c") == ["d", "e"]


def test_a_file_system_without_links_copies_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    storage = Storage(str(tmp_path))
    storage.write("a", b"12")
    assert storage.copy("a", "b/c") == 2
    assert storage.read("b/c") == b"12"
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["c"]
    with pytest.raises(StorageError, match=r"storage must copy the file .*/a, got: .*"):
        storage.copy("a", "b")


@pytest.mark.parametrize("size", [0, 5, HASHED_BYTES, 2 * HASHED_BYTES + 3])
def test_a_large_file_is_hashed_while_it_is_read(storage: Storage, size: int) -> None:
    data = os.urandom(size)
    storage.write("a/b", data)
    found, sha256 = storage.read_hashed("a/b", place=5)
    assert found.tobytes() == data
    assert not size or (found.ctypes.data + 5) % 64 == 0
    assert sha256 == hashlib.sha256(data).hexdigest()
    for missing in ("a/c", "a"):
        with pytest.raises(NotFoundError, match="must exist, got no such file"):
            storage.read_hashed(missing)


def test_a_file_is_created_once(storage: Storage) -> None:
    storage.create("a/b", b"1")
    with pytest.raises(ConflictError, match=r"a/b must not exist yet, got a file that someone else wrote first"):
        storage.create("a/b", b"2")
    with pytest.raises(ConflictError, match="a/b must not exist yet"):
        storage.swap("a/b", b"2", None)
    storage.swap("a/c", b"3", None)
    assert [storage.read(f"a/{name}") for name in "bc"] == [b"1", b"3"]
    assert storage.list("a") == ["b", "c"]


def test_a_swap_replaces_the_state_that_was_read(storage: Storage) -> None:
    assert storage.read_tagged("a") is None
    storage.create("a", b"1")
    first = storage.read_tagged("a")
    assert first == storage.read_tagged("a") == Tagged(b"1", first.tag)
    storage.swap("a", b"2", first.tag)
    with pytest.raises(ConflictError, match=r"a must still be as it was read, got a change .*: read it again"):
        storage.swap("a", b"3", first.tag)
    second = storage.read_tagged("a")
    assert second.data == b"2"
    assert second.tag != first.tag
    storage.delete("a")
    with pytest.raises(ConflictError, match="a must still be as it was read"):
        storage.swap("a", b"3", second.tag)
    assert not storage.exists("a")
    assert storage.list("") == []


@pytest.mark.parametrize("exists", [False, True], ids=["create", "swap"])
def test_one_of_many_wins(root: str, exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(root)
    if exists:
        storage.create("a", b"first")
    tagged = storage.read_tagged("a")
    start = threading.Barrier(RACERS)
    read = LocalFiles.read_tagged

    def read_slowly(self: LocalFiles, path: str) -> tuple[bytes, str] | None:
        """Time enough for the others between a look and the rename."""
        found = read(self, path)
        time.sleep(0.02)  # widens the gap that the lock must close; with the lock it changes nothing
        return found

    monkeypatch.setattr(LocalFiles, "read_tagged", read_slowly)

    def race(racer: int) -> bool:
        mine = Storage(root) if racer % 2 else storage
        start.wait()
        try:
            mine.swap("a", b"%d" % racer, tagged and tagged.tag)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as racers:
        won = list(racers.map(race, range(RACERS)))
    assert won.count(True) == 1
    assert storage.read("a") == b"%d" % won.index(True)


def test_checks_leave_nothing_behind(root: str, tmp_path: Path) -> None:
    storage = Storage(root)
    storage.check_conditional()
    assert storage.files.list("") == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_missing_file(storage: Storage) -> None:
    for path in ("nope", "no/pe"):
        with pytest.raises(NotFoundError, match=f"{storage}/{path} must exist, got no such file"):
            storage.read(path)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b"])
def test_no_path_leads_out(storage: Storage, path: str) -> None:
    for method in (storage.read, storage.list, storage.exists, storage.delete, storage.read_tagged):
        with pytest.raises(ValueError, match=f"must be relative and lead down, got '{path}'"):
            method(path)
    with pytest.raises(ValueError, match=f"must be relative and lead down, got '{path}'"):
        storage.write(path, b"")


@pytest.mark.parametrize("path", ["", "."])
def test_the_root_is_no_file(storage: Storage, path: str) -> None:
    with pytest.raises(ValueError, match=f"must name a file, got '{path}'"):
        storage.write(path, b"")


def test_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Storage("here")) == str(tmp_path / "here")
    assert str(Storage("s3://bucket")) == str(Storage("s3://bucket//")) == "s3://bucket"
    assert str(Storage("s3://bucket/a//b/")) == "s3://bucket/a/b"


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (
            "ftp://bucket/x",
            r"must be a local folder, file:///folder, s3://bucket/prefix, .* or gs://bucket/prefix, got ftp://\.\.\.",
        ),
        ("az://key:hush@container/x", "without credentials, got some: remove them and set AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "https://me:hush@host/x",
            r"must be a local folder, file:///folder, s3://bucket/prefix, .*, got https://\.\.\.",
        ),
        ("s3://key:hush@bucket/x", "without credentials, got some: remove them and set AWS_ACCESS_KEY_ID"),
        ("s3://key:a/hush@bucket", "without credentials, got some"),
        ("s3://bucket/x?secret=hush", "without a query, got one: set the endpoint by its variable"),
        ("s3://key:hush/x", "without credentials, got some"),
        ("s3://a bucket/x", "must be s3://bucket/prefix, got an invalid bucket or prefix"),
        ("s3://", "got an invalid bucket or prefix"),
        ("s3://bucket/a/../b", "got an invalid bucket or prefix"),
    ],
)
def test_roots_that_cannot_be(root: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Storage(root)
    assert "hush" not in str(caught.value)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"storage must be a folder, got the file .*file"):
        Storage(str(tmp_path / "file"))


@pytest.mark.parametrize("method", ["write", "create", "swap"])
def test_a_write_that_fails_leaves_the_old_bytes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    storage = Storage(str(tmp_path))
    storage.write("file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    tag = [storage.read_tagged("file").tag] if method == "swap" else []
    message = r"storage must take the file /.*/file, got: No space left on device: free some space and run it again"
    with pytest.raises(StorageError, match=message):
        getattr(storage, method)("file", b"new", *tag)
    assert storage.read("file") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(
            StorageError, match=r"take the file .*/file, got: File too large: raise the limit .*ulimit -f"
        ):
            storage.write("file", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.write("a", b"")
    with pytest.raises(StorageError, match=r"take the file .*/a/b/c, got: Not a directory: move away the file"):
        storage.write("a/b/c", b"")
    with pytest.raises(NotFoundError, match="a/b/c must exist, got no such file"):
        storage.read("a/b/c")
    storage.delete("a/b/c")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, "Permission denied: check the folder's owner"),
        (errno.EROFS, "Read-only file system: mount it for writing"),
        (errno.EDQUOT, "Disk quota exceeded: free some space or raise the quota"),
        (errno.EIO, "Input/output error: fix that and run it again"),
    ],
)
def test_a_folder_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str) -> None:
    """Told of every method; `check_conditional` tells it before there is anything to lose."""
    storage = Storage(str(tmp_path))

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("mkdir", "read_bytes", "is_file", "iterdir", "unlink"):
        monkeypatch.setattr(Path, name, fail)
    for call, deed in [
        (storage.check_conditional, r"take the file .*/\.probe-\w+"),
        (lambda: storage.write("a", b""), "take the file .*/a"),
        (lambda: storage.create("a", b""), "take the file .*/a"),
        (lambda: storage.swap("a", b"", "tag"), "take the file .*/a"),
        (lambda: storage.read("a"), "give the file .*/a"),
        (lambda: storage.exists("a"), "find the file .*/a"),
        (lambda: storage.delete("a"), "delete the file .*/a"),
        (lambda: storage.list("a"), "list the folder .*/a"),
    ]:
        with pytest.raises(StorageError, match=f"storage must {deed}, got: {message}"):
            call()


def test_a_local_folder_needs_no_s3_library() -> None:
    """And whatever works on one imports without it."""
    code = (
        "import sys, pkgutil, importlib, rails_ray.storage\n"
        "sys.modules |= dict.fromkeys(('s3fs', 'botocore', 'aiobotocore'))\n"
        "names = {module.name for module in pkgutil.iter_modules(rails_ray.storage.__path__)} - {'s3'}\n"
        "assert 'filesystem' in names\n"
        "for name in names: importlib.import_module(f'rails_ray.storage.{name}')\n"
        "from rails_ray.storage.filesystem import Storage\n"
        "Storage('.')\n"
        "try: Storage('s3://bucket')\n"
        "except Exception as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    sentence = "storage s3://.. needs the package s3fs, got none: pip install 'rails-ray[clouds]'\n"
    assert (run.stdout, run.returncode) == (sentence, 0), run.stderr
