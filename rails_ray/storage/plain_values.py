"""Arrow arrays as what they hold, whatever wraps it: dictionaries, views, run ends, and extension types, whether or not
this process has registered them: an extension's name is in the type or in the metadata of the field.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

TENSORS = {"arrow.fixed_shape_tensor", "ray.data.arrow_tensor", "ray.data.arrow_tensor_v2"}
RAGGED_TENSOR = "ray.data.arrow_variable_shaped_tensor"
Metadata = Mapping[bytes, bytes] | None


class BadValueError(ValueError):
    """
    must, got: what the column must hold, and what it holds.
    row: the place of the value in its array; None if the type is wrong.
    """

    def __init__(self, must: str, got: str, row: int | None = None) -> None:
        super().__init__(f"{must}, got {got}")
        self.must, self.got, self.row = must, got, row


def plain(values: pa.Array, metadata: Metadata = None) -> pa.Array:
    """Values without extension types, dictionaries, run ends and views, at any depth of lists.

    Raises:
        BadValueError: if a tensor has more than two axes, or does not say its shape.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extended(values.storage, kind.extension_name, _parameters(kind))
    if metadata and b"ARROW:extension:name" in metadata:
        name = metadata[b"ARROW:extension:name"].decode(errors="replace")
        return _extended(values, name, metadata.get(b"ARROW:extension:metadata", b""))
    if pa.types.is_dictionary(kind):
        return plain(values.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        first, num = values.find_physical_offset(), values.find_physical_length()
        held = plain(values.values.slice(first, num))  # `run_end_decode` knows no dictionaries and views
        return held.take(pa.array(np.repeat(np.arange(num), _run_lengths(values)[first : first + num])))
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return plain(with_values(values, values.flatten()))  # a cast to lists gives wrong places in pyarrow 26
    if is_list(kind) and _is_wrapped(kind.value_field):
        return with_values(values, plain(values.flatten(), kind.value_field.metadata))
    return values


def size_bytes(values: pa.Array) -> int:
    """The size of an array once it is `plain`, by which a few bytes may stand for many: dictionaries, views, run ends.

    Raises:
        BadValueError: if that is not known without making it so.
    """
    return int(_sizes(values).sum())


def _sizes(values: pa.Array) -> NDArray[np.int64]:
    """The size of each value, and of where it ends if values differ in length. Raises what `size_bytes` does."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _sizes(values.storage)
    if pa.types.is_dictionary(kind):
        indices = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return _sizes(values.dictionary)[indices] if len(values.dictionary) else np.ones(len(values), np.int64)
    if pa.types.is_run_end_encoded(kind):
        return np.repeat(_sizes(values.values), _run_lengths(values))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(values.buffers()[1], np.int32)[4 * values.offset : 4 * (values.offset + len(values)) : 4]
        return views.astype(np.int64) + 8
    if _has_bytes(kind):
        return _whole(pc.binary_length(values)) + 8
    if is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        lengths = _whole(pc.list_value_length(values))
        if pa.types.is_primitive(kind.value_type):
            return lengths * _width(kind.value_type) + 8
        if is_list(kind):
            ends = np.cumsum(lengths)
            before: NDArray[np.int64] = np.concatenate([[0], np.cumsum(_sizes(values.flatten()))])
            found: NDArray[np.int64] = before[ends] - before[ends - lengths] + 8
            return found
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return np.full(len(values), _width(kind))
    if pa.types.is_null(kind):
        return np.ones(len(values), np.int64)
    raise BadValueError("be of strings, numbers or lists of them", str(kind))


def _run_lengths(values: pa.Array) -> NDArray[np.int64]:
    """How many values of an array, which may be a slice, each run has."""
    ends: NDArray[np.int64] = values.run_ends.to_numpy().astype(np.int64)
    return np.diff(ends.clip(values.offset, values.offset + len(values)), prepend=values.offset)


def _whole(lengths: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _width(kind: pa.DataType) -> int:
    """Bytes of a value, at least one."""
    return max(1, int(kind.bit_width) // 8)


def _has_bytes(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in checks)


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of a type are lists, of any length or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_wrapped(field: pa.Field) -> bool:
    """Return whether the values of lists may need a change."""
    return bool(field.metadata) or not (pa.types.is_primitive(field.type) or pa.types.is_decimal(field.type))


def with_values(lists: pa.Array, values: pa.Array, group: int = 1) -> pa.Array:
    """The lists with other values; a null list has none.

    Args:
        group: how many of their former values one of the others stands for.
    """
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False) // group
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    mask = lists.is_null() if lists.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(starts, pa.int64()), values, mask=mask)


def _parameters(kind: Any) -> bytes:
    """The parameters of an extension type as its fields' metadata have them."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return json.dumps({"shape": kind.shape, "permutation": kind.permutation}).encode()
    return bytes(kind.__arrow_ext_serialize__()) if isinstance(kind, pa.ExtensionType) else b""


def _extended(values: pa.Array, name: str, parameters: bytes) -> pa.Array:
    """Values of an extension type, of which only the names below say more than what is stored."""
    if name == "arrow.uuid":
        return texts_of_bytes(values, uuid_text)
    if name == RAGGED_TENSOR:
        return _ragged(values)
    if name not in TENSORS:
        return plain(values)
    try:
        described = json.loads(parameters)
        shape = described["shape"] if isinstance(described, dict) else described
        order = described.get("permutation") if isinstance(described, dict) else None
    except (ValueError, KeyError):
        raise BadValueError("hold tensors that say their shape", "none: write lists of numbers") from None
    if order and list(order) != sorted(order):
        raise BadValueError("hold tensors whose axes are in order", f"the order {order}")
    if len(shape) == 1:
        return plain(values)
    if len(shape) != 2 or not all(shape):
        raise BadValueError("hold tensors of one axis, or of two, for several vectors each", f"the shape {shape}")
    return with_values(values, pa.FixedSizeListArray.from_arrays(values.flatten(), shape[1]), shape[1])


def _ragged(values: pa.Array) -> pa.Array:
    """Tensors of several shapes, stored as their numbers and their shape."""
    numbers, shapes = values.field("data"), values.field("shape")
    axes = set(pc.list_value_length(shapes).drop_null().to_pylist())
    if axes <= {1}:
        return numbers
    widths = set(pc.list_element(shapes, 1).drop_null().to_pylist()) if axes == {2} else set()
    if len(widths) != 1 or 0 in widths:
        shown = sorted(widths) or f"{sorted(axes)} axes"
        raise BadValueError("hold tensors of one axis, or of two of which the second has one size", str(shown))
    [width] = widths
    return with_values(numbers, pa.FixedSizeListArray.from_arrays(numbers.flatten(), width), width)


def texts_of_bytes(values: pa.Array, text_of: Callable[[bytes], str]) -> pa.Array:
    found = list[str | None]()
    for row, value in enumerate(values.to_pylist()):
        try:
            found.append(None if value is None else text_of(value))
        except UnicodeDecodeError:
            raise BadValueError("hold text in UTF-8", repr(value), row) from None
    return pa.array(found, pa.large_string())


def uuid_text(value: bytes) -> str:
    return str(UUID(bytes=value))
