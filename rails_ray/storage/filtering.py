"""Which items a filter passes, by columns of their attributes.

A comparison with a missing value is neither true nor false. So each condition gives the items that it is true of and
those that it is false of, and `$not` exchanges the two (Kleene's logic). A filter passes what it is true of.

Axes: X items.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.schema.filters import AllOf, AnyOf, Comparison, Condition, Negation
from rails_ray.storage.numbers import numbers_as_array, numbers_in

Booleans = NDArray[np.bool_]
ROW = "$row"  # of a table that an expression filters: no attribute begins with $
COMPARE = {
    "$eq": pc.equal,
    "$gt": pc.greater,
    "$gte": pc.greater_equal,
    "$lt": pc.less,
    "$lte": pc.less_equal,
}


def passing(filter: Condition | pc.Expression, attributes: pa.Table) -> Booleans:
    """The items [X] that a filter passes.

    Args:
        filter: read for the columns of `attributes`; or an expression over them.

    Raises:
        ValueError: if an expression does not fit the columns.
    """
    if isinstance(filter, pc.Expression):
        return _by_expression(filter, attributes)
    return _judged(filter, attributes).is_true


class _Judged(NamedTuple):
    """The items that a condition is true of, and those that it is false of."""

    is_true: Booleans
    is_false: Booleans


def _judged(condition: Condition, attributes: pa.Table) -> _Judged:
    match condition:
        case AllOf(terms):
            every = np.ones(attributes.num_rows, np.bool_)
            judged = (_judged(term, attributes) for term in terms)
            return reduce(
                lambda one, other: _Judged(one[0] & other[0], one[1] | other[1]), judged, _Judged(every, ~every)
            )
        case AnyOf(terms):
            opposite = _judged(AllOf([Negation(term) for term in terms]), attributes)
            return _Judged(opposite.is_false, opposite.is_true)
        case Negation(term):
            judged_term = _judged(term, attributes)
            return _Judged(judged_term.is_false, judged_term.is_true)
        case Comparison(name, operator, value):
            column = _in_one(attributes[name])
            has_value = _booleans(pc.is_valid(column))
            if operator == "$exists":
                return _Judged(has_value, ~has_value)
            is_true = _compared(column, operator, value) & has_value
            return _Judged(is_true, has_value & ~is_true)


def _compared(column: pa.Array, operator: str, value: Any) -> Booleans:
    """Which values compare so; anything for a missing one."""
    if pa.types.is_list(column.type):
        values = _values(value if operator == "$in" else [value], column.type.value_type)
        num_equal = np.append(0, np.cumsum(_booleans(pc.is_in(column.values, values))))
        ends = numbers_in(column.offsets)
        found: Booleans = num_equal[ends[1:]] > num_equal[ends[:-1]]
        return found
    if operator == "$in":
        return _booleans(pc.is_in(column, _values(value, column.type)))
    return _booleans(COMPARE[operator](column, pa.scalar(value, column.type)))


def _values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of values; `pyarrow.array` would load pandas. It has both zeros or none: Arrow tells them apart."""
    if pa.types.is_floating(kind) and any(value == 0 for value in values):
        values = [*values, 0.0, -0.0]
    return pa.scalar(list(values), pa.list_(kind)).values


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _booleans(array: pa.BooleanArray) -> Booleans:
    """Arrow's booleans as numpy's; false for a missing one."""
    array = pc.fill_null(array, False)
    if not len(array):
        return np.zeros(0, np.bool_)
    bits = np.frombuffer(array.buffers()[1], np.uint8)
    end = array.offset + len(array)
    return np.unpackbits(bits, count=end, bitorder="little")[array.offset :].view(np.bool_)


def _by_expression(filter: pc.Expression, attributes: pa.Table) -> Booleans:
    found = np.zeros(attributes.num_rows, np.bool_)
    numbered = attributes.append_column(ROW, numbers_as_array(np.arange(attributes.num_rows)))
    try:
        rows = numbered.filter(filter)[ROW]
    except (pa.ArrowException, TypeError) as error:
        first = str(error).partition("\n")[0]
        names = ", ".join(attributes.column_names)
        raise ValueError(f"filter must be an expression of booleans over the columns {names}, got: {first}") from None
    for chunk in rows.chunks:
        found[numbers_in(chunk)] = True
    return found
