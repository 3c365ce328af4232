"""Attributes: columns of items that filters may name, ordinary columns of the parts in one of six types."""

import pyarrow as pa

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "strings": pa.list_(pa.string()),
}
"""The Arrow type of each kind."""
