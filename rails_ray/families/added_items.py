"""Items that are added to a version: checked against it, and encoded as its own were."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from rails_ray.counting import advance
from rails_ray.data.corpus import item_inputs, vectors_in
from rails_ray.data.vectors import check_directions, zero_rows
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.storage import parquet
from rails_ray.storage.attributes import kinds_for, read_column
from rails_ray.storage.described import Encoded
from rails_ray.storage.ids import ItemIds, keys_of
from rails_ray.storage.parts import PART_ITEMS


def checked_ids(version: Version, items: pa.Table) -> ItemIds:
    """The ids of items to add.

    Raises:
        ValueError: if they cannot be added.
    """
    family, kind = version.family, id_type(version)
    if family.has_a_row_for_each_item:
        raise ValueError(
            f"items must be added to a version whose model reads texts or vectors, got {version.name}, whose model "
            "knows only the items that it was trained on: train a new run on all items"
        )
    if not items.num_rows:
        raise ValueError("items to add must be one at least, got none")
    column = items["item_id"]
    if pa.types.is_integer(column.type) != pa.types.is_integer(kind):
        raise ValueError(f"item_id must be of type {kind}, as those of version {version.name} are, got {column.type}")
    try:
        ids = ItemIds(column.cast(kind))
    except pa.ArrowInvalid as error:
        raise ValueError(f"item_id must fit type {kind}, as those of version {version.name} do: {error}") from None
    if len(np.unique(keys_of(ids.column))) < len(ids):
        seen = set[ItemId]()
        for own in ids:  # a hash may be that of another string
            if own in seen:
                raise ValueError(f"item_id must be different for each item to add, got {own!r} twice")
            seen.add(own)
    _check_inputs(version, items)
    if "input" in items.column_names and pa.types.is_fixed_size_list(items["input"].type):
        zeros = zero_rows(vectors_in(items["input"]))
        if len(zeros) and family.config.data.zero_vectors != "keep":
            check_directions("items to add", len(zeros), len(ids), ids[int(zeros[0])])
    return ids


def _check_inputs(version: Version, items: pa.Table) -> None:
    """Raises:
    ValueError: if items have not what the model reads of them.
    """
    form = version.family.form
    kind = items["input"].type if "input" in items.column_names else None
    got = "none" if kind is None else "vectors" if pa.types.is_fixed_size_list(kind) else "texts"
    columns, shape = getattr(form, "item_columns", None), getattr(form, "item_shape", ())
    if columns is not None:  # a query is a vector
        if columns and got != "vectors":
            raise ValueError(
                f"items to add to version {version.name} must be vectors, as its model reads them, got {got}"
            )
        found = math.prod(vectors_in(items["input"]).shape[1:]) if got == "vectors" else 0
        if columns and shape and found != math.prod(shape):
            wanted = " x ".join(map(str, shape))
            raise ValueError(
                f"vectors to add to version {version.name} must have {wanted} numbers an item, got {found}"
            )
    elif version.family.encodes_inputs and got != "texts":
        raise ValueError(f"items to add to version {version.name} must be texts, as its model reads them, got {got}")


def encoded_parts(version: Version, items: pa.Table) -> Iterator[pa.Table]:
    """The parts that items become, by the version's own model.

    Raises:
        ValueError: if an attribute is none of the version's, or of another type.
    """
    described, family = version.described, version.family
    ids, named = items["item_id"].to_pylist(), _columns_of(described, items)
    encode = family.added_encoder(version.storage, described, ids, lambda: version.item_encoder)
    for first in range(0, items.num_rows, PART_ITEMS):
        block = items.slice(first, PART_ITEMS)
        state = encode(block["item_id"].to_pylist(), item_inputs(block) if "input" in block.column_names else None)
        part = parquet.item_part(named.slice(first, PART_ITEMS), state, list(described.attributes or {}))
        if parquet.state_entry(part) != described.state:
            raise ValueError(
                f"added items must be stored as those of version {described.version}, {described.state}, got "
                f"{parquet.state_entry(part)}: encode a new version"
            )
        advance(min(first + PART_ITEMS, items.num_rows), items.num_rows, "items")
        yield part


def _columns_of(described: Encoded, items: pa.Table) -> pa.Table:
    """The columns beside the state that the version's parts have; a missing title is an empty one, a missing attribute
    null."""
    columns, attributes = dict[str, Any](), described.attributes or {}
    for name in items.column_names:
        if name not in (*parquet.NAMED, "input", *attributes):
            raise ValueError(
                f"attributes must be those of version {described.version}, {', '.join(attributes) or 'none'}, got "
                f"{name!r}: encode a new version to store it"
            )
    for name in filter(described.columns.__contains__, parquet.NAMED):
        kind, source = pa.type_for_alias(described.columns[name]), "input" if name == "text" else name
        is_there = source in items.column_names
        columns[name] = items[source].cast(kind) if is_there else pa.array([""] * items.num_rows, kind)
    for name, own in kinds_for(described.version, attributes).items():
        is_there = name in items.column_names
        columns[name] = read_column(name, items[name], own) if is_there else pa.nulls(items.num_rows, own.empty)
    return pa.table(columns)


def id_type(version: Version) -> pa.DataType:
    """The Arrow type of a version's ids."""
    return pa.type_for_alias(version.described.columns["item_id"])
