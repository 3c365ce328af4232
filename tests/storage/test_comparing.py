"""Two versions' items compared: as loops over dictionaries do it, part by part, and what is damaged."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.versions
from rails_ray.errors import DamagedError
from rails_ray.modules.similarities.states import Codes, ItemState
from rails_ray.storage import parts
from rails_ray.storage.comparing import compare_items, item_digests, shared_bytes
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part

Contents = tuple[str, int]  # title, and a number of the vector


@contextmanager
def two(first: dict[Any, Contents], second: dict[Any, Contents], *part_items: int) -> Iterator[tuple[Any, ...]]:
    """A storage with two versions."""
    with TemporaryDirectory() as folder:
        storage, sizes = Storage(folder), part_items or (2, 2)
        yield storage, encoded(storage, "a", first, sizes[0]), encoded(storage, "b", second, sizes[1])


def encoded(storage: Storage, version: str, items: dict[Any, Contents], part_items: int = 2) -> Encoded:
    """A version of items with a title and a vector, without anything else."""
    planned = parts.plan([len(items)], part_items) if items else []
    ids, contents = pa.array(items, None if items else pa.string()), list(items.values())
    for part in planned:
        rows = slice(part.first_row, part.first_row + part.num_items)
        named = pa.table({"item_id": ids[rows], "title": [title for title, _ in contents[rows]]})
        vectors = torch.tensor([[[float(number), 1.0]] for _, number in contents[rows]])
        parts.write_part(storage, version, part, item_part(named, ItemState(vectors, None, None)))
    if planned:
        return parts.finish(storage, version, planned, run="r", query={}, files=[], cutoff_mass=None)
    fields = {"version": version, "num_items": 0, "shard_items": [0], "parts": []}
    other = encoded(storage, "some", {"x": ("", 0)})
    return dataclasses.replace(other, **fields)


CONTENTS = st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2))
NUMBERED, NAMED = (
    st.dictionaries(ids, CONTENTS, max_size=7)
    for ids in (st.sampled_from([-(2**63), 0, 1, 2, 3, 5, 2**63 - 1]), st.sampled_from(["", "0", "1", "2", "é", "🍕"]))
)


@given(NUMBERED | NAMED, NUMBERED | NAMED, st.integers(1, 4), st.integers(1, 4))
def test_the_diff_is_that_of_dictionaries(
    first: dict[Any, Contents], second: dict[Any, Contents], first_part: int, second_part: int
) -> None:
    with two(first, second, first_part, second_part) as (storage, one, other):
        found = compare_items(storage, one, other)
    lists = tuple(list(own) for own in (found.added, found.removed, found.changed))
    assert (found.num_common, *lists) == oracles.versions.items_diff(first, second)


MANY = {number: ("a", number) for number in range(6)}


def test_a_part_of_both_is_not_read_and_its_bytes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    with two(MANY, MANY | {5: ("b", 5), 6: ("a", 6)}) as (storage, one, other):
        read = list[str]()
        read_hashed = Storage.read_hashed

        def noted(self: Storage, path: str, *rest: Any) -> Any:
            read.append(path)
            return read_hashed(self, path, *rest)

        monkeypatch.setattr(Storage, "read_hashed", noted)
        found = compare_items(storage, one, other)
        assert read == [one.parts[2].path, *(part.path for part in other.parts[2:])]
        assert (list(found.changed), list(found.added), list(found.removed), found.num_common) == ([5], [6], [], 6)
        assert shared_bytes(one, other) == sum(part.size_bytes for part in one.parts[:2])
        assert compare_items(storage, one, one).num_common == 6
        assert len(read) == 3, "nothing is read of a version beside itself"


def test_an_id_in_digits_is_no_number() -> None:
    with two({5: ("a", 1)}, {"5": ("a", 1)}) as (storage, one, other):
        found = compare_items(storage, one, other)
    assert (list(found.added), list(found.removed), found.num_common) == (["5"], [5], 0)


@pytest.mark.parametrize("side", [0, 1])
def test_a_damaged_part_is_named(side: int) -> None:
    with two(MANY, dict.fromkeys(MANY, ("c", 0))) as (storage, *both):
        entry = both[side].parts[1]
        storage.write(entry.path, storage.read(entry.path)[:-1])
        with pytest.raises(DamagedError, match=f"{entry.path} of version {'ab'[side]} must have the sha256 of its"):
            compare_items(storage, *both)


def state(**tensors: torch.Tensor) -> ItemState:
    return ItemState(**{"gate": None, "average": None, **tensors})


def test_a_digest_is_of_all_columns_but_the_id() -> None:
    """Numbers of another dtype or shape, a column more, and a title that is longer are other contents."""
    vectors = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]])
    titles = {"item_id": [1, 2, 3], "title": ["a", "a", "a"]}

    def digests(columns: dict[str, list[Any]], items: Any) -> list[bytes]:
        return [own.tobytes() for own in item_digests(item_part(pa.table(columns), items))]

    first, second, third = digests(titles, state(components=vectors))
    assert first == third != second
    assert digests({**titles, "item_id": [7, 8, 9]}, state(components=vectors)) == [first, second, third]
    others = [
        digests({"item_id": [1, 2, 3]}, state(components=vectors)),
        digests({**titles, "title": ["a b", "", "b"]}, state(components=vectors)),
        digests({**titles, "text": ["a", "a", "a"]}, state(components=vectors)),
        digests(titles, state(components=vectors.to(torch.bfloat16))),
        digests(titles, state(components=vectors.reshape(3, 2, 1))),
        digests(titles, state(components=vectors, gate=vectors[:, 0])),
        digests(titles, Codes(torch.tensor([[1], [2], [3]], dtype=torch.int32))),
    ]
    known = {first, second}
    for own in others:
        assert not known & set(own)
        known |= set(own)


def test_versions_on_s3(s3: str) -> None:
    storage = Storage(s3)
    one, other = encoded(storage, "a", MANY), encoded(storage, "b", {**MANY, 0: ("b", 0)})
    assert list(compare_items(storage, one, other).changed) == [0]
