"""A column of times, from what `storage.values.TIME` reads."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.sources import Sources
from rails_ray.schema.times import TELLING_S, UNITS, common_unit
from rails_ray.storage.rows import Rows

MICROSECONDS = 10**6  # of a second


def microseconds(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], str]:
    """The times since 1970 in microseconds, and the unit that numbers have by their size ("seconds" for timestamps).

    Raises:
        ValueError: if numbers are of several units.
    """
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_numpy(), UNITS[0][0]
    numbers = column.to_numpy()
    sizes, (least_s, most_s) = np.abs(numbers), TELLING_S
    telling = [numbers[(sizes > least_s * size) & (sizes <= most_s * size)][:1] for _, size, _ in UNITS]
    unit, size = common_unit(np.concatenate([numbers[sizes == sizes.max(initial=0)][:1], *telling]).tolist())
    if size <= MICROSECONDS:
        return np.round(numbers * (MICROSECONDS // size)).astype(np.int64), unit
    return np.asarray(numbers // (size // MICROSECONDS), np.int64), unit


def times_of(sources: Sources, read: Rows, interactions: pa.Table) -> NDArray[np.int64] | None:
    """The times of interactions in microseconds; None if they have none."""
    if "timestamp" not in read:
        return None
    try:
        times, unit = microseconds(interactions["timestamp"])
    except ValueError as error:
        raise ValueError(f"column 'timestamp' of {read.name} must {error}") from None
    if unit != UNITS[0][0]:
        sources.note(f"interactions: column 'timestamp' is read as {unit}, by its size")
    return times
