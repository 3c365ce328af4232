"""The default search beside a version: what was written is read, and nothing else."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import DamagedError
from rails_ray.families import default_searches
from rails_ray.storage.filesystem import Storage
from support.default_searches import AVERAGE


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    assert default_searches.read_current(store, "v1") is None
    default_searches.write(store, "v1", AVERAGE)
    assert default_searches.read_current(store, "v1") == AVERAGE
    again = replace(AVERAGE, method="brute_force", params={})
    first = default_searches.current(store, "v1")
    default_searches.write(store, "v1", again)
    assert default_searches.read_current(store, "v1") == again
    assert first is not None
    assert default_searches.read(store, "v1", first) == AVERAGE, "a server keeps the one that it started with"


def test_widths_grow_with_k_and_never_shrink() -> None:
    own = replace(AVERAGE, k=10, params={"num_candidates": 45, "num_per_embedding": 10, "nprobe": 8, "ef_search": 64})
    looked_at = {"method": "average", "nprobe": 8, "ef_search": 64}
    assert own.fields_for(10) == own.fields_for(3) == {**looked_at, "num_candidates": 45, "num_per_embedding": 10}
    assert own.fields_for(25) == {**looked_at, "num_candidates": 113, "num_per_embedding": 25}


def test_a_pointer_that_names_nothing(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    for data in (b"{}", b"[]", b"no JSON", b'{"file": 3}'):
        store.write("versions/v1/search.json", data)
        with pytest.raises(DamagedError, match=r"search\.json must name a file, got (None|3): choose again"):
            default_searches.read_current(store, "v1")


def write_named(store: Storage, data: bytes) -> None:
    """As `default_searches.write` names a file."""
    name = f"search-{hashlib.sha256(data).hexdigest()}.json"
    store.write(f"versions/v1/{name}", data)
    store.write("versions/v1/search.json", json.dumps({"file": name}).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "v2"}, "those of version v2"),
        ({"method": "guess"}, "the unknown method 'guess'"),
        ({"params": {"num_candidates": 0}}, "num_candidates must be at least 1, got 0"),
        ({"params": {"num_guesses": 3}}, "num_guesses"),
        ({"params": None}, "NoneType"),
        ({"more": 3}, "more"),
        (None, "must be JSON"),
    ],
)
def test_a_file_that_was_not_written_so(tmp_path: Path, change: dict[str, Any] | None, message: str) -> None:
    store = Storage(str(tmp_path))
    fields = {"version": "v1", **vars(AVERAGE), **(change or {})}
    write_named(store, b"[" if change is None else json.dumps(fields).encode())
    with pytest.raises(DamagedError, match=r"must hold the bytes that `rails-ray tune` wrote for version v1") as error:
        default_searches.read_current(store, "v1")
    if change is not None:
        assert message in str(error.value)
    assert str(error.value).endswith(": choose again with `rails-ray tune --target-recall`")


def test_bytes_that_have_changed_or_are_gone(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    default_searches.write(store, "v1", AVERAGE)
    [path] = (tmp_path / "versions" / "v1").glob("search-*.json")
    path.write_bytes(path.read_bytes().replace(b'"average"', b'"gated"'))
    with pytest.raises(DamagedError, match="got: others than its name says: choose again"):
        default_searches.read_current(store, "v1")
    path.unlink()
    with pytest.raises(DamagedError, match="must hold the bytes"):
        default_searches.read_current(store, "v1")
