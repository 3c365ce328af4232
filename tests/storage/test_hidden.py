"""Hidden rows of a part: a set in a file of its own."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import DamagedError
from rails_ray.storage import hidden
from rails_ray.storage.described import Encoded, PartEntry
from rails_ray.storage.filesystem import Storage
from support.examples import encode


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


@pytest.fixture
def stored(storage: Storage) -> tuple[Storage, Encoded, PartEntry]:
    described = encode(storage, "v1", [9])
    [part] = described.parts
    return storage, described, part


@given(rows=st.lists(st.integers(0, 8), max_size=12))
def test_they_come_back_ascending_and_once(tmp_path_factory: pytest.TempPathFactory, rows: list[int]) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("hidden")))
    described = encode(storage, "v1", [9])
    entry = hidden.write(storage, np.array(rows, np.int64))
    part = dataclasses.replace(described.parts[0], hidden=entry)
    assert hidden.read(storage, described, part).tolist() == sorted({*rows})
    live = hidden.live_rows(storage, described, part)
    assert live is not None
    assert live.tolist() == [row for row in range(9) if row not in rows]
    assert part.num_live == 9 - len({*rows})


def test_two_deletions_in_any_order_are_one_file(storage: Storage) -> None:
    assert hidden.write(storage, np.array([3, 1, 3])) == hidden.write(storage, np.array([1, 3]))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            lambda entry: dataclasses.replace(entry, num_items=1),
            r"must hide 1 of the 9 rows of \S+, got 2 rows up to 12",
        ),
        (lambda entry: entry, r"must hide 2 of the 9 rows of \S+, got 2 rows up to 12: restore it"),
    ],
)
def test_rows_that_a_part_lacks(
    stored: tuple[Storage, Encoded, PartEntry], broken: Callable[..., object], message: str
) -> None:
    storage, described, part = stored
    entry = broken(hidden.write(storage, np.array([2, 12])))
    with pytest.raises(DamagedError, match=message):
        hidden.read(storage, described, dataclasses.replace(part, hidden=entry))


def test_a_part_without_hidden_rows(stored: tuple[Storage, Encoded, PartEntry]) -> None:
    storage, described, part = stored
    assert not len(hidden.read(storage, described, part))
    assert hidden.live_rows(storage, described, part) is None
