"""Arrays of Arrow as numpy's, and back."""

import numpy as np
import pyarrow as pa
import pytest

from rails_ray.storage.numbers import numbers_as_array, numbers_in


@pytest.mark.parametrize("dtype", ["int64", "uint8", "uint16", "int32", "float16", "float32"])
@pytest.mark.parametrize("num", [0, 1, 5])
def test_there_and_back(dtype: str, num: int) -> None:
    numbers = np.arange(num).astype(dtype)
    array = numbers_as_array(numbers)
    assert array.equals(pa.array(numbers))
    for given in (array, pa.chunked_array([array]), pa.chunked_array([array.slice(0, 2), array.slice(2)])):
        assert numbers_in(given).dtype == numbers.dtype
        assert numbers_in(given).tolist() == numbers.tolist()


def test_strides_and_slices() -> None:
    numbers = np.arange(6)
    assert numbers_as_array(numbers[::2]).to_pylist() == [0, 2, 4]
    assert numbers_in(numbers_as_array(numbers).slice(2, 3)).tolist() == [2, 3, 4]


def test_no_copy() -> None:
    numbers = np.arange(6)
    assert np.shares_memory(numbers_in(numbers_as_array(numbers)), numbers)


def test_nulls() -> None:
    with pytest.raises(pa.ArrowInvalid, match=r"^numbers must have no nulls, got 1$"):
        numbers_in(pa.array([1, None, 3]))
