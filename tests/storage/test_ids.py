"""Ids as a column: what a list and a dictionary say, without the objects."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.storage import ids
from rails_ray.storage.ids import ColumnDigest, ItemIds

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=20)
STRINGS = st.lists(st.text(max_size=4), unique=True, max_size=20)
ANY = st.one_of(st.integers(), st.text(max_size=4), st.booleans())


@given(st.one_of(INTEGERS, STRINGS), st.data())
def test_they_are_what_a_list_and_a_dictionary_say(known: list, data: st.DataObject) -> None:
    kind = pa.int64() if all(isinstance(own, int) for own in known) else pa.string()
    made = ItemIds(pa.array(known, kind)).prepare()
    assert len(made) == len(known)
    assert list(made) == known == made
    asked = data.draw(st.lists(st.one_of(ANY, *([st.sampled_from(known)] if known else []))))
    rows = {own: row for row, own in enumerate(known)}
    expected = [rows.get(own, -1) if isinstance(own, int if made.is_integer else str) else -1 for own in asked]
    assert made.rows(asked).tolist() == expected
    if known:
        some = data.draw(st.lists(st.integers(0, len(known) - 1)))
        assert made.take(some) == [known[row] for row in some]
        assert [made[row] for row in some] == [known[row] for row in some]


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.int32()])
def test_integers_of_every_width(kind: pa.DataType) -> None:
    made = ItemIds(pa.chunked_array([pa.array([5, 3], kind), pa.array([9], kind)]))
    assert made.rows([9, 3, 4, 2**70, -1, "3", "03", 5]).tolist() == [2, 1, -1, -1, -1, 1, -1, 0]


def test_two_strings_with_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "hash_of", lambda text: len(text))
    made = ItemIds(["aa", "b", "cc", "dd"])
    assert made.rows(["dd", "aa", "cc", "ee", "b", "x"]).tolist() == [3, 0, 2, -1, 1, -1]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=12), st.data())
def test_a_digest_is_of_the_values_however_they_are_cut(values: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values)))
    whole, cut = ColumnDigest(), ColumnDigest()
    whole.add(pa.array(values, pa.string()))
    cut.add(
        pa.chunked_array([pa.array(values[:place], pa.large_string()), pa.array(values[place:], pa.large_string())])
    )
    assert whole.hexdigest() == cut.hexdigest()
    other = ColumnDigest()
    other.add(pa.array(["".join(values)]))
    assert len(values) == 1 or whole.hexdigest() != other.hexdigest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([[1, 2], [3]]), pa.array([[1], [2, 3]])),
        (pa.array([1, 2]), pa.array([2, 1])),
        (pa.array([[1.0]], pa.list_(pa.float32(), 1)), pa.array([[2.0]], pa.list_(pa.float32(), 1))),
    ],
)
def test_digests_of_other_columns_differ(one: pa.Array, other: pa.Array) -> None:
    found = []
    for column in (one, other):
        digest = ColumnDigest()
        digest.add(column)
        found.append(digest.hexdigest())
    assert found[0] != found[1]
    sliced = ColumnDigest()
    sliced.add(pa.concat_arrays([other, one]).slice(len(other)))
    assert sliced.hexdigest() == found[0]


VALUES = {
    "strings": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=2), max_size=3)),
    "string": (pa.string(), st.text(max_size=3)),
    "int": (pa.int64(), st.integers(-3, 3)),
    "bool": (pa.bool_(), st.booleans()),
    "timestamp": (pa.timestamp("us", "UTC"), st.integers(-3, 3)),
}


@given(st.sampled_from(sorted(VALUES)), st.data())
def test_digests_of_columns_with_nulls(name: str, data: st.DataObject) -> None:
    """Two columns have one digest if they are equal, however they are cut."""
    kind, values = VALUES[name]
    one, other = (data.draw(st.lists(st.none() | values, max_size=4)) for _ in range(2))
    found = []
    for own in (one, one, other):
        digest, whole, place = ColumnDigest(), pa.array([None, *own], kind), data.draw(st.integers(1, len(own) + 1))
        digest.add(whole[1:place])
        digest.add(pa.chunked_array([whole[place:]]))
        found.append(digest.hexdigest())
    assert found[0] == found[1]
    assert (found[0] == found[2]) == (one == other)


def test_digests_without_nulls_are_those_of_earlier_releases() -> None:
    """As versions that were begun by them are resumed."""
    for column, values, lengths in (
        (pa.array(["ab", ""]), b"ab", np.array([2, 0])),
        (pa.array([[1, 2], []], pa.list_(pa.int64())), np.array([1, 2]).tobytes(), np.array([2, 0])),
        (pa.array([3, 4], pa.int64()), np.array([3, 4]).tobytes(), np.array([], np.int64)),
    ):
        digest = ColumnDigest()
        digest.add(column)
        parts = hashlib.sha256(values).digest() + hashlib.sha256(lengths.tobytes()).digest()
        assert digest.hexdigest() == hashlib.sha256(parts).hexdigest()


@pytest.mark.parametrize("text", ["\ud800", "a\udc80", "\udfff\ud800", ""])
def test_half_a_surrogate_pair_is_no_id_and_no_end_of_the_process(text: str) -> None:
    known = ItemIds(pa.chunked_array([["a", "b"]]))
    assert text not in known
    assert isinstance(ids.hash_of(text), int)
