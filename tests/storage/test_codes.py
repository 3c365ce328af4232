from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import DamagedError
from rails_ray.modules.quantizers.item_codes import ItemCodes
from rails_ray.modules.similarities.states import Codes
from rails_ray.storage import codes, parquet, parts
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def item_codes(item_ids: list[str] | list[int], num_chunks: int = 3, seed: int = 0) -> ItemCodes:
    drawn = np.random.default_rng(seed).integers(99, size=(len(item_ids), num_chunks))
    return ItemCodes(item_ids, drawn.astype(np.int32))


@pytest.mark.parametrize("item_ids", [["b", "a", "ü"], [7, 3, 2**60], ["only"]])
def test_codes_come_back_as_they_were(item_ids: list[str] | list[int], storage: Storage) -> None:
    assert not codes.exist(storage, "runs/r")
    written = item_codes(item_ids)
    codes.write(storage, "runs/r", written)
    assert codes.exist(storage, "runs/r")
    assert not codes.exist(storage, "runs/other")
    back = codes.read(storage, "runs/r")
    assert back.item_ids == item_ids
    assert back.codes.dtype == np.int32
    assert (back.codes == written.codes).all()


def test_codes_are_the_same_bytes_each_time(storage: Storage) -> None:
    for run in ("r", "s"):
        codes.write(storage, f"runs/{run}", item_codes(["a", "b"]))
    assert storage.read("runs/r/codes.parquet") == storage.read("runs/s/codes.parquet")


def test_a_search_takes_a_copy_of_them(storage: Storage) -> None:
    codes.write(storage, "runs/r", item_codes(["a", "b"]))
    made = codes.read(storage, "runs/r")
    tensor = made.tensor  # of arrays that Arrow lets nobody write to
    assert torch.equal(tensor, torch.tensor(made.codes))
    tensor[0, 0] += 1
    assert not torch.equal(tensor, made.tensor)


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 9), unique=True), st.booleans())
def test_own_codes_go_before_those_of_others(own: list[int], others: list[int], is_text: bool) -> None:
    first, second = (
        item_codes([str(item) for item in items] if is_text else items, seed=seed)
        for seed, items in enumerate((own, others))
    )
    code_of = dict(zip(second.item_ids, second.codes.tolist(), strict=True))
    code_of |= dict(zip(first.item_ids, first.codes.tolist(), strict=True))
    both = first.or_else(second)
    assert both.item_ids[: len(own)] == first.item_ids
    assert sorted(both.item_ids) == sorted(code_of)
    assert dict(zip(both.item_ids, both.codes.tolist(), strict=True)) == code_of


@given(st.lists(st.integers(0, 9), unique=True), st.data())
def test_items_are_looked_up_by_their_ids(known: list[int], data: st.DataObject) -> None:
    made = item_codes(known)
    asked = data.draw(st.lists(st.sampled_from(known), max_size=6)) if known else []
    found = made.of(asked)
    assert found.item_ids == asked
    assert found.codes.tolist() == [made.codes[known.index(item)].tolist() for item in asked]
    with pytest.raises(DamagedError, match="codes must hold every item that is encoded, got none of 77"):
        made.of([*asked, 77])


def damage(data: bytes) -> bytes:
    """The same with a page that cannot be unpacked."""
    return data[:4] + bytes([255] * 40) + data[44:]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: None,
        lambda data: b"",
        lambda data: data[:-20],
        damage,
        lambda data: parquet.to_bytes(pa.table({"item_id": ["a"]})),
    ],
    ids=["missing", "empty", "cut short", "damaged", "no codes"],
)
def test_codes_that_are_none(change, storage: Storage) -> None:
    path = "runs/r/codes.parquet"
    codes.write(storage, "runs/r", item_codes(["a", "b"]))
    changed = change(storage.read(path))
    storage.delete(path) if changed is None else storage.write(path, changed)
    with pytest.raises(DamagedError, match=r"/runs/r/codes\.parquet must hold the codes of the items, got: "):
        codes.read(storage, "runs/r")


def encode(storage: Storage, made: ItemCodes, shard_items: list[int]) -> Encoded:
    """A version of these items."""
    planned = parts.plan(shard_items, part_items=3)
    for part in planned:
        rows = slice(part.first_row, part.first_row + part.num_items)
        items = pa.table({"item_id": made.item_ids[rows]})
        parts.write_part(storage, "v", part, parquet.item_part(items, Codes(torch.from_numpy(made.codes[rows]))))
    return parts.finish(storage, "v", planned, run="r", query={"text": "string"}, files=[], cutoff_mass=None)


def test_the_codes_of_a_version_are_in_the_order_of_its_items(storage: Storage) -> None:
    made = item_codes([f"i{9 - row}" for row in range(9)])
    encoded = encode(storage, made, [5, 4])
    assert len(encoded.parts) == 4
    encoded.parts.reverse()
    found = codes.of_version(storage, encoded)
    assert found.item_ids == made.item_ids
    assert (found.codes == made.codes).all()


def test_every_byte_of_a_versions_codes_is_checked(storage: Storage) -> None:
    encoded = encode(storage, item_codes(list("abcd")), [4])
    path = encoded.parts[1].path
    storage.write(path, storage.read(path) + b"x")
    with pytest.raises(DamagedError, match=r"of version v must have the sha256 of its manifest, "):
        codes.of_version(storage, encoded)
