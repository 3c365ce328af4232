"""Arrays of Arrow that hold the same values in each of the types and layouts that tables come in."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Make = Callable[[list[Any]], pa.Array]


def of_type(kind: pa.DataType) -> Make:
    return lambda values: pa.array(values, kind)


def decimals(kind: pa.DataType) -> Make:
    return lambda values: pa.array([None if value is None else Decimal(value) for value in values], kind)


def bytes_of(kind: pa.DataType) -> Make:
    return lambda values: pa.array([None if value is None else value.encode() for value in values], kind)


def dictionary(make: Make) -> Make:
    return lambda values: make(values).dictionary_encode()


def runs(make: Make) -> Make:
    return lambda values: pa.compute.run_end_encode(make(values))


def in_runs(values: pa.Array) -> pa.Array:
    """An array of runs of one value each, which any type may have."""
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(values) + 1), pa.int64()), values)


def sliced(make: Make) -> Make:
    return lambda values: make([values[0] if values else None, *values])[1:]


TEXT_MAKES: list[Make] = [
    *map(of_type, (pa.string(), pa.large_string(), pa.string_view())),
    *map(bytes_of, (pa.binary(), pa.large_binary(), pa.binary_view())),
    dictionary(of_type(pa.string())),
    dictionary(of_type(pa.large_string())),
    runs(of_type(pa.string())),
    runs(bytes_of(pa.large_binary())),
    lambda values: in_runs(pa.array(values, pa.string()).dictionary_encode()),
    lambda values: in_runs(pa.array(values, pa.string_view())),
]
INTEGER_MAKES: list[Make] = [
    *map(of_type, (pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.int64())),
    *map(of_type, (pa.float16(), pa.float32(), pa.float64())),
    *map(decimals, (pa.decimal128(5, 0), pa.decimal128(38, 0), pa.decimal128(20, 4), pa.decimal256(60, 0))),
    dictionary(of_type(pa.int32())),
    runs(of_type(pa.uint16())),
    runs(of_type(pa.float64())),
]
FLOAT_MAKES: list[Make] = [*map(of_type, (pa.float16(), pa.float32(), pa.float64(), pa.int16(), pa.uint64()))]


def lists_of(values: list[list[float]], make: Make, form: str) -> pa.Array:
    flat, width = make([number for row in values for number in row]), len(values[0])
    starts = np.arange(len(values) + 1) * width
    if form == "runs":
        return in_runs(lists_of(values, make, "list"))
    if form == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, width)
    if form == "view":
        return pa.ListViewArray.from_arrays(pa.array(starts[:-1], pa.int32()), [width] * len(values), flat)
    if form == "tensor":
        return pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(flat.type, [width]), pa.FixedSizeListArray.from_arrays(flat, width)
        )
    kind = pa.ListArray if form == "list" else pa.LargeListArray
    return kind.from_arrays(pa.array(starts, pa.int32() if form == "list" else pa.int64()), flat)


LIST_FORMS = ["list", "large", "fixed", "view", "tensor", "runs"]
