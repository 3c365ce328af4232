"""Every Arrow type that holds the right values is read as the same values; others are refused in one sentence."""

import json
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rails_ray.storage.plain_values import BadValueError, size_bytes
from rails_ray.storage.values import (
    FLOATS,
    ID,
    INTEGER,
    INTEGERS,
    NUMBER,
    NUMBERS,
    TEXT,
    TIME,
    VECTOR,
    Kind,
    common_type,
)
from support.arrow_arrays import (
    FLOAT_MAKES,
    INTEGER_MAKES,
    LIST_FORMS,
    TEXT_MAKES,
    Make,
    bytes_of,
    decimals,
    lists_of,
    sliced,
)


def id_of(array: pa.Array, value: str | None) -> str | None:
    """A text as an id. 16 bytes that nobody prints are a UUID, unless their type says that they are text."""
    kind = array.type.value_type if pa.types.is_run_end_encoded(array.type) else array.type
    is_bytes = kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    is_uuid = is_bytes and value is not None and len(value.encode()) == 16 and not value.isprintable()
    return str(uuid.UUID(bytes=value.encode())) if is_uuid and value else value


@given(st.lists(st.none() | st.text()), st.sampled_from(TEXT_MAKES), st.booleans())
@example(values=["\x80" * 8], make=bytes_of(pa.binary()), is_sliced=False)
def test_texts_of_any_type(values: list[str | None], make: Make, is_sliced: bool) -> None:
    array = (sliced(make) if is_sliced else make)(values)
    for kind in (TEXT, ID):
        found = kind.read(array)
        assert found.type == pa.large_string()
        assert found.to_pylist() == [value if kind is TEXT else id_of(array, value) for value in values]
    assert size_bytes(array) >= sum(len((value or "").encode()) for value in values)


@given(st.lists(st.none() | st.integers(0, 120)), st.sampled_from(INTEGER_MAKES), st.booleans())
def test_integers_of_any_type(values: list[int | None], make: Make, is_sliced: bool) -> None:
    array = (sliced(make) if is_sliced else make)(values)
    for kind in (ID, INTEGER):
        found = kind.read(array)
        assert found.type == pa.int64()
        assert found.to_pylist() == values
    assert NUMBER.read(array).to_pylist() == values


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 9), min_size=width, max_size=width), min_size=1)
    ),
    st.sampled_from([*FLOAT_MAKES, decimals(pa.decimal128(10, 2))]),
    st.sampled_from(LIST_FORMS),
)
def test_vectors_of_any_type(values: list[list[float]], make: Make, form: str) -> None:
    if form == "tensor" and pa.types.is_decimal(make([1]).type):
        form = "fixed"
    array = lists_of(values, make, form)
    for kind in (NUMBERS, VECTOR, FLOATS):
        assert kind.read(array).to_pylist() == values
        assert kind.read(array[1:]).to_pylist() == values[1:]
    assert INTEGERS.read(array).to_pylist() == values


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_tensors_of_two_axes(num: int, height: int, width: int, is_registered: bool) -> None:
    numbers = np.arange(num * height * width, dtype=np.float32).reshape(num, height, width)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), height * width)
    name, parameters = "ray.data.arrow_tensor_v2", json.dumps([height, width]).encode()
    metadata = {b"ARROW:extension:name": name.encode(), b"ARROW:extension:metadata": parameters}
    large = storage.cast(pa.large_list(pa.float32()))
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [height, width]), storage)
    found = VECTOR.read(tensor) if is_registered else VECTOR.read(large, metadata)
    assert found.to_pylist() == numbers.tolist()
    assert VECTOR.read(found[1:]).to_pylist() == numbers[1:].tolist()
    with pytest.raises(BadValueError, match="be of type list of floats or list of integers, got"):
        NUMBERS.read(tensor)


def test_tensors_of_several_shapes() -> None:
    metadata = {
        b"ARROW:extension:name": b"ray.data.arrow_variable_shaped_tensor",
        b"ARROW:extension:metadata": b"2",
    }
    rows = [{"data": [1.0, 2.0, 3.0, 4.0], "shape": [2, 2]}, {"data": [5.0, 6.0], "shape": [1, 2]}]
    array = pa.array(rows, pa.struct({"data": pa.list_(pa.float32()), "shape": pa.list_(pa.int64())}))
    assert VECTOR.read(array, metadata).to_pylist() == [[[1, 2], [3, 4]], [[5, 6]]]
    for shape, message in (([1, 2, 2], "axes"), ([1, 4], r"\[2, 4\]")):
        changed = pa.array([rows[1], {"data": [1.0, 2.0, 3.0, 4.0], "shape": shape}], array.type)
        with pytest.raises(BadValueError, match=message):
            VECTOR.read(changed, metadata)


def test_uuids() -> None:
    values = [uuid.UUID(int=number * 2**100 + 7) for number in range(1, 4)]
    packed = [value.bytes for value in values]
    for array in (pa.array(packed, pa.uuid()), pa.array(packed, pa.binary(16)), pa.array(packed, pa.binary())):
        assert ID.read(array).to_pylist() == list(map(str, values))
    assert ID.read(pa.array([b"sixteen letters!"], pa.binary(16))).to_pylist() == ["sixteen letters!"]


def test_missing_numbers_of_pandas_are_null() -> None:
    array = pa.array([7.0, np.nan, None], from_pandas=False)
    assert ID.read(array).to_pylist() == INTEGER.read(array).to_pylist() == [7, None, None]


def test_large_ids_are_never_negative_and_never_rounded() -> None:
    large = 2**63 + 5
    assert ID.read(pa.array([large], pa.uint64())).to_pylist() == [large]
    assert common_type([pa.uint64()]) == pa.uint64()
    with pytest.raises(BadValueError, match=rf"hold whole numbers within int64, got {large}") as error:
        INTEGER.read(pa.array([1, large], pa.uint64()))
    assert error.value.row == 1


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        (ID, pa.array([1.0, 2.5]), r"hold whole numbers, .*, got 2\.5"),
        (ID, pa.array([2.0**60]), r"of type double up to 2\*\*53, as it rounds larger ones, got 1\.15.*e\+18"),
        (ID, pa.array([2.0**25], pa.float32()), r"of type float up to 2\*\*24, as it rounds larger ones, got 3.*e\+07"),
        (ID, pa.array([True]), "be of type integer or string, got bool"),
        (ID, pa.array([Decimal("1.5")]), r"hold whole numbers within int64, got 1\.5"),
        (ID, pa.array([b"\xff"]), r"hold text in UTF-8, got b'\\xff'"),
        (TEXT, pa.array([b"\xff" * 16]), "hold text in UTF-8, got"),
        (TEXT, pa.array([1]), "be of type string, got int64"),
        (INTEGER, pa.array(["1"]), "be of type integer, got string"),
        (INTEGERS, pa.array([[1.0, 2.0], [0.5]]), r"hold whole numbers, .*, got 0\.5"),
        (NUMBERS, pa.array([["a"]]), "be of type list of floats or list of integers, got list<.*string>"),
        (VECTOR, pa.array([[[["a"]]]]), "be of type list of floats .*, got list<"),
        (NUMBERS, pa.array([{"a": 1.0}]), "be of type list of floats or list of integers, got struct"),
        (TIME, pa.array(["soon"]), "hold times in ISO 8601, such as 2026-01-31T23:59:00Z, got 'soon'"),
        (
            VECTOR,
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.float32(), [1, 1, 1]), pa.array([[1.0]], pa.list_(pa.float32(), 1))
            ),
            r"hold tensors of one axis, or of two, .*, got the shape \[1, 1, 1\]",
        ),
    ],
)
def test_what_is_refused(kind: Kind, array: pa.Array, message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        kind.read(array)


DAY_US = 86_400 * 10**6


@pytest.mark.parametrize(
    "array",
    [
        pa.array([DAY_US], pa.timestamp("us")),
        pa.array([DAY_US // 10**6], pa.timestamp("s", "America/New_York")),
        pa.array([DAY_US * 1000], pa.timestamp("ns", "UTC")),
        pa.array([1], pa.date32()),
        pa.array([86_400_000], pa.date64()),
        pa.array(["1970-01-02"]),
        pa.array(["1970-01-02 00:00:00"]),
        pa.array(["1970-01-02T00:00:00Z"]),
        pa.array(["1970-01-02T02:00:00+02:00"]),
        pa.array(["1970-01-01T19:00:00.000-05:00"]).dictionary_encode(),
    ],
)
def test_moments_of_any_type(array: pa.Array) -> None:
    found = TIME.read(array)
    assert found.type == pa.timestamp("us")
    assert found.cast(pa.int64()).to_pylist() == [DAY_US]


def test_texts_with_and_without_a_zone() -> None:
    found = TIME.read(pa.array(["1970-01-02", None, "1970-01-02T01:00:00+01:00", "1960-01-01T00:00:00.5"]))
    assert found.cast(pa.int64()).to_pylist() == [DAY_US, None, DAY_US, -315619199500000]
