"""Files of API keys: who gets in by them, and what a router that starts anew still knows."""

import hashlib
import os
from pathlib import Path

import pytest

from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.serving.http.keys import NOBODY, Key, Keys, KeysFile, LastKeys, NoKeysError

KEY, OTHER = "k" * 20, "o" * 20


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# for the shop\n{KEY}\n\n  {OTHER}  \n")
    keys = Keys.read(str(file))
    assert keys.find(KEY.encode())
    assert keys.find(OTHER.encode())
    assert keys.find(b"# for the shop") is None
    assert keys.find(b"") is None


@pytest.mark.parametrize(
    ("content", "is_none", "message"),
    [
        (None, True, r"keys_file must be a text file of ASCII keys, got .*keys: .*No such file"),
        (b"# none\n\n", True, r"keys_file must hold at least 1 key, got none in .*keys"),
        (b"", True, r"keys_file must hold at least 1 key, got none in .*keys"),
        (b"\xff\xfe" * 20, False, r"keys_file must be a text file of ASCII keys, got .*keys: 'ascii' codec"),
        (b"# ours\nshort\n", False, r"line 2 of .*keys must be a key of at least 16 characters, got 5"),
    ],
)
def test_a_file_that_holds_no_keys_is_told(content: bytes | None, is_none: bool, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        Keys.read(str(file))
    assert isinstance(refused.value, NoKeysError) == is_none


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n")
    return file


def looked_at(file: Path, folder: Path) -> KeysFile:
    return KeysFile(str(file), LastKeys(str(file), folder))


def test_keys_change_with_their_file(file: Path, tmp_path: Path) -> None:
    keys = looked_at(file, tmp_path / "memory")
    assert keys.look() == (Keys.of([KEY]), None)
    file.write_text(f"{OTHER}\n")
    assert keys.look() == (Keys.of([OTHER]), None)


@pytest.mark.parametrize("content", [None, "", "# all of them are gone\n"])
def test_a_file_that_is_deleted_or_emptied_lets_nobody_in(content: str | None, file: Path, tmp_path: Path) -> None:
    keys = looked_at(file, tmp_path / "memory")
    keys.look()
    file.unlink() if content is None else file.write_text(content)
    found, problem = keys.look()
    assert found == NOBODY
    assert str(problem).startswith("keys_file must ")
    assert str(problem).endswith(": nobody gets in until it holds one")
    file.write_text("short\n")  # those that were locked out stay so, also through a router that has just started
    for looking in (keys, looked_at(file, tmp_path / "memory")):
        found, problem = looking.look()
        assert found == NOBODY
        assert str(problem).endswith("at least 16 characters, got 5: nobody gets in until it is fixed")
    file.write_text(f"{KEY}\n")
    assert keys.look() == (Keys.of([KEY]), None)


def test_a_file_that_is_malformed_leaves_the_last_good_keys_valid_also_after_a_restart(
    file: Path, tmp_path: Path
) -> None:
    looked_at(file, tmp_path / "memory").look()
    file.write_text(f"{OTHER}\nshort\n")
    found, problem = looked_at(file, tmp_path / "memory").look()
    assert found == Keys.of([KEY])
    assert problem == (
        f"line 2 of {file} must be a key of at least 16 characters, got 5: the keys that were valid before stay valid "
        "until it is fixed"
    )
    found, problem = looked_at(file, tmp_path / "another machine").look()
    assert found == NOBODY
    assert str(problem).endswith("got 5: nobody gets in until it is fixed")


def test_all_who_look_agree_whoever_looked_last(file: Path, tmp_path: Path) -> None:
    """A router looks every ten seconds and the command each second: what one has seen counts for the other."""
    router, command = (looked_at(file, tmp_path / "memory") for _ in range(2))
    assert router.look() == command.look() == (Keys.of([KEY]), None)
    file.write_text(f"{OTHER}\n")
    command.look()
    file.write_text("short\n")
    assert router.look().keys == command.look().keys == Keys.of([OTHER])  # the first key was taken back
    file.write_text("")
    command.look()
    file.write_text("short\n")
    assert router.look().keys == NOBODY


def test_what_is_remembered_is_no_key_and_only_its_owner_can_have_written_it(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    last = LastKeys(str(file), folder)
    assert last.keep(Keys.of([KEY]))
    (kept,) = folder.iterdir()
    assert KEY not in kept.read_text()
    assert (folder.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)
    assert last.read() == Keys.of([KEY])
    assert LastKeys(str(tmp_path / "other keys"), folder).read() is None
    folder.chmod(0o770)  # others of the group could have written it
    assert last.read() is None
    assert not last.keep(Keys.of([KEY]))
    folder.chmod(0o700)
    kept.write_text("no digest\n")
    assert last.read() is None
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert LastKeys(str(file), link).read() is None


def test_keys_that_are_kept_are_marked_as_used(file: Path, tmp_path: Path) -> None:
    keys = looked_at(file, tmp_path / "memory")
    keys.look()
    (kept,) = (tmp_path / "memory").iterdir()
    os.utime(kept, (0, 0))
    keys.look()
    assert kept.stat().st_mtime > 0


def test_keys_that_cannot_be_kept_are_told(file: Path, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    keys = looked_at(file, tmp_path / "a file")
    found, problem = keys.look()
    assert found == Keys.of([KEY])
    assert problem == (
        f"{tmp_path / 'a file'} must be a folder that only this user can open, got another or none: a router that "
        "starts while the file of keys is malformed will let nobody in"
    )
    file.write_text("short\n")
    assert keys.look().keys == Keys.of([KEY])  # this process still knows


def test_a_key_by_its_hash_with_a_scope_and_a_rate(file: Path, tmp_path: Path) -> None:
    line = f"{Key.of(KEY).line()} scope=search rate=2.5"
    file.write_text(f"{line}\n{OTHER} rate=7\n")
    keys = looked_at(file, tmp_path / "memory").look().keys
    found, other = keys.find(KEY.encode()), keys.find(OTHER.encode())
    assert found is not None
    assert other is not None
    assert (found.scopes, found.rate, found.line()) == ({"search"}, 2.5, line)
    assert (other.scopes, other.rate) == ({"search", "admin"}, 7)
    assert KEY not in line
    file.write_text("short\n")  # another router remembers all of it
    assert looked_at(file, tmp_path / "memory").look().keys == keys


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            f"sha256:{hashlib.sha256(b'').hexdigest()}",
            r"line 1 of .* must be the hash of a key, got that of nothing: run",
        ),
        ("sha256:abc", r"line 1 of .* must have 64 hexadecimal digits after sha256:, got 3 characters"),
        (
            f"{KEY} scope=all",
            r"line 1 of .* may have scope=search,admin and rate=NUMBER after its key, got 'scope=all'",
        ),
        (f"{KEY} scope=", r"got 'scope='"),
        (f"{KEY} rate=0", r"got 'rate=0'"),
        (f"{KEY} rate=nan", r"got 'rate=nan'"),
        (f"{KEY} {OTHER}", r"got 'oooo"),
    ],
)
def test_a_line_that_is_no_key(line: str, message: str, file: Path) -> None:
    file.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=message):
        Keys.read(str(file))


def test_the_command_makes_a_key_and_its_line(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert main(["new-key", "--rate", "50"]) == 0
    said = capsys.readouterr()
    key = said.err.split()[-1]
    file.write_text(said.out)
    found = Keys.read(str(file)).find(key.encode())
    assert found is not None
    assert (found.scopes, found.rate) == ({"search"}, 50)
    assert key not in said.out
    assert main(["new-key", "--scope", "admin"]) == 0
    file.write_text(capsys.readouterr().out)
    assert Keys.read(str(file)).known[0].scopes == {"search", "admin"}
    assert main(["new-key", "--rate", "0"]) == EXIT_BAD_ARGUMENT
    assert capsys.readouterr().err == "rails-ray: --rate must be above 0 and below 1e+06, got 0\n"
