"""Items with attributes of every kind, and filters over them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from rails_ray.families.next_version import publish_after, with_parts, write_part
from rails_ray.families.shards import read_part
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import versions
from rails_ray.storage.attributes import TYPES
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage

KINDS = {"lang": "string", "price": "float", "year": "int", "new": "bool", "at": "timestamp", "tags": "strings"}
DAYS = [datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(days=day, microseconds=day) for day in range(5)]
WIDTH = 6

missing = st.none()
values: dict[str, st.SearchStrategy[Any]] = {
    "lang": st.sampled_from(["fr", "de", "", "ü"]),
    "price": st.sampled_from([-1.5, 0.0, 9.5, 20.0]),
    "year": st.sampled_from([-(2**63), 1999, 2020, 2**63 - 1]),
    "new": st.booleans(),
    "at": st.sampled_from(DAYS),
    "tags": st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
}
some_items = st.lists(st.fixed_dictionaries({name: missing | own for name, own in values.items()}), max_size=12)
literals: dict[str, st.SearchStrategy[Any]] = {
    **values,
    "price": values["price"] | st.sampled_from([0, 20]),
    "at": values["at"].map(datetime.isoformat) | st.sampled_from([1767268800, "2026-01-02"]),
    "tags": st.sampled_from(["a", "b", "z"]),
}


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    """A condition on one attribute."""
    name = draw(st.sampled_from([*KINDS]))
    own, orders = literals[name], () if name in ("new", "tags") else ("$gt", "$gte", "$lt", "$lte")
    operators = dict.fromkeys(("$eq", "$ne", *orders), own)
    operators |= dict.fromkeys(("$in", "$nin"), st.lists(own, max_size=3)) | {"$exists": st.booleans()}
    given = draw(own | st.fixed_dictionaries({}, optional=operators).filter(bool))
    return {name: {"$not": given} if isinstance(given, dict) and draw(st.booleans()) else given}


def several(below: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(below, min_size=1, max_size=3)


some_filters: st.SearchStrategy[dict[str, Any]] = st.recursive(
    comparisons(),
    lambda below: (
        st.fixed_dictionaries({"$not": below})
        | st.fixed_dictionaries({}, optional={"$and": several(below), "$or": several(below)}).filter(bool)
        | st.tuples(below, below).map(lambda two: two[0] | two[1])
    ),
    max_leaves=6,
)


def table_of(items: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The attributes of items as columns."""
    return pa.table({name: pa.array([item[name] for item in items], TYPES[kind]) for name, kind in KINDS.items()})


def random_items(num_items: int, seed: int = 0) -> list[dict[str, Any]]:
    """Attributes of items, one in eight missing."""
    generator = np.random.default_rng(seed)

    def drawn(choices: Sequence[Any]) -> Any:
        return None if generator.integers(8) == 0 else choices[int(generator.integers(len(choices)))]

    tags = [["a"], ["b", "a"], [], ["c", "c"]]
    return [
        {
            "lang": drawn(["fr", "de", "en"]),
            "price": drawn([0.5 * step for step in range(40)]),
            "year": drawn(list(range(1990, 2030))),
            "new": drawn([True, False]),
            "at": drawn(DAYS),
            "tags": drawn(tags),
        }
        for _ in range(num_items)
    ]


def with_attributes(storage: Storage, items: Sequence[Mapping[str, Any]]) -> Manifest:
    """Publish the current version again, its items with attributes, which are in the order of item rows."""
    table, parts = table_of(items), []
    before, parent = storage.read_tagged(versions.CURRENT), versions.read_manifest(storage)
    for entry in parent.parts:
        part, own = read_part(storage, parent, entry), table.slice(entry.first_row, entry.num_items)
        for name in KINDS:
            part = part.append_column(name, own[name])
        parts.append(write_part(storage, part, entry.shard, entry.first_row))
    columns = parent.columns | {name: str(TYPES[kind]) for name, kind in KINDS.items()}
    made = replace(with_parts(parent, f"{parent.version}-2", parts), attributes=KINDS, columns=columns)
    return publish_after(storage, parent, made, before)


def built(
    folder: Path, num_items: int = 200, index: str = "flat", **options: Any
) -> tuple[LocalVersion, list[dict[str, Any]]]:
    """A version of random vectors with attributes, and these."""
    vectors = np.random.default_rng(3).standard_normal((num_items, WIDTH)).astype(np.float32)
    local.build(vectors, folder=str(folder), index=index, **options)
    items = random_items(num_items)
    with_attributes(Storage(str(folder)), items)
    return local.open(str(folder)), items
