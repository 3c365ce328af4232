"""Vectors of texts that are kept: each text is read once, and nothing that is damaged is taken."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import StorageError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.text_vectors import KEY_BYTES, TextVectors
from support.tried import tried

WIDTH = 3


class Reader:
    """Gives vectors of texts, and notes which it was asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        return np.array([vector_of(text) for text in texts], np.float32).reshape(-1, WIDTH)


def vector_of(text: str) -> np.ndarray:
    return np.random.default_rng(list(text.encode())).standard_normal(WIDTH).astype(np.float32)


def expected(texts: Sequence[str]) -> np.ndarray:
    return np.array([vector_of(text) for text in texts], np.float32).reshape(-1, WIDTH)


def kept(root: Path | str, model: str = "m") -> TextVectors:
    return TextVectors(Storage(str(root)), model, WIDTH)


@tried(30)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.text(max_size=2), max_size=12)), max_size=6))
def test_each_text_is_read_once_in_the_order_it_comes(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[bool, list[str]]]
) -> None:
    root, reader = tmp_path_factory.mktemp("kept"), Reader()
    found = kept(root)
    for is_other_process, texts in calls:
        found = kept(root) if is_other_process else found
        assert np.array_equal(found(texts, reader), expected(texts))
    assert reader.texts == list(dict.fromkeys(text for _, texts in calls for text in texts))


def test_another_model_knows_nothing(tmp_path: Path) -> None:
    reader = Reader()
    for model in ("one", "other"):
        kept(tmp_path, model)(["a", "b"], reader)
    assert reader.texts == ["a", "b", "a", "b"]


@pytest.mark.parametrize("suffix", ["keys", "vectors"])
@pytest.mark.parametrize("damage", [b"", b"\0" * (2 * KEY_BYTES), b"\0" * (2 * WIDTH * 4), None])
def test_what_is_damaged_or_gone_is_read_again_and_repaired(tmp_path: Path, suffix: str, damage: bytes | None) -> None:
    first, again, last = Reader(), Reader(), Reader()
    open_before = kept(tmp_path)
    open_before(["a", "b"], first)
    [file] = (tmp_path / "vectors" / "m").glob(f"*.{suffix}")
    file.unlink() if damage is None else file.write_bytes(damage)
    assert np.array_equal(kept(tmp_path)(["a", "b"], again), expected(["a", "b"]))
    assert again.texts == ["a", "b"]
    assert np.array_equal(open_before(["b", "a"], last), expected(["b", "a"]))
    assert last.texts == []


def test_two_that_read_the_same_at_once(tmp_path: Path) -> None:
    one, other, last = kept(tmp_path), kept(tmp_path), Reader()

    def meanwhile(texts: Sequence[str]) -> np.ndarray:
        other(["b", "c"], Reader())
        return expected(texts)

    assert np.array_equal(one(["a", "b"], meanwhile), expected(["a", "b"]))
    assert np.array_equal(kept(tmp_path)(["c", "b", "a"], last), expected(["c", "b", "a"]))
    assert last.texts == []


def test_storage_that_fails_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise StorageError("the disk is full")

    for method in ("write", "list"):
        monkeypatch.setattr(Storage, method, fails)
        assert np.array_equal(kept(tmp_path)(["a"], Reader()), expected(["a"]))
