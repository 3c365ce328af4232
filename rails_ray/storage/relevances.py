"""A relevance matrix: what a heavy ranker says of every item for some queries.

    relevance/<name>/begun.json               what it is made of, which a second attempt must repeat
                     items.parquet            item_id, text, title if there is one
                     queries.parquet          query_id, text, split
                     scores/<block>.parquet   query_id, scores float32 [X] in the order of the items, calls
                     relevance.parquet        query_id, item_id: the best items of each query
                     matrix.json              what it cost, written last

The folder is a data set of texts like any other, whose relevance is the ranker's. So any recipe trains on it, and many
runs share it. A block is written once, under its own number: an interrupted run goes on with the missing blocks. NaN is
a hole, a score that the ranker did not give.

Axes: Q queries, X items.
"""

import dataclasses
import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from numpy import ndarray
from pydantic import TypeAdapter, ValidationError

from rails_ray.errors import ConflictError, DamagedError
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import read_json

BLOCK = re.compile(r"(\d{6,})\.parquet")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A finished matrix.

    folder: the data set.
    num_calls: pairs that the ranker was asked for, repeats after failures included.
    num_holes: pairs without a score.
    seconds: what the calls took, summed over workers.
    """

    folder: str
    num_items: int
    num_queries: int
    num_calls: int
    num_holes: int
    seconds: float


def folder_of(name: str) -> str:
    return f"relevance/{name}"


def begin(storage: Storage, name: str, made_from: dict[str, Any], items: pa.Table, queries: pa.Table) -> None:
    """Reserve a matrix's name and store its items and queries, unless the same matrix has begun.

    Raises:
        ValueError: if the name cannot be a folder's, or another matrix has it.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"a matrix's name must be made of letters, digits, '.', '_' and '-', got {name!r}")
    folder = folder_of(name)
    try:
        storage.create(f"{folder}/begun.json", json.dumps(made_from, indent=1).encode())
    except ConflictError:
        begun = read_json(storage, f"{folder}/begun.json")
        if "ranker" in begun:
            begun["ranker"] = dataclasses.asdict(RankerConfig(**begun["ranker"]))  # its module may have moved since
        changed = next((key for key in made_from if begun.get(key) != made_from[key]), None)
        if changed is not None:
            raise ValueError(
                f"matrix {name!r} must keep the {changed} that it was begun with, {begun.get(changed)!r}, got "
                f"{made_from[changed]!r}: choose another --name"
            ) from None
    for table, rows in (("items", items), ("queries", queries)):
        if not storage.exists(f"{folder}/{table}.parquet"):
            storage.write(f"{folder}/{table}.parquet", parquet.to_bytes(rows))


def read_table(storage: Storage, name: str, table: str) -> pa.Table:
    """The items or the queries of a matrix that was begun."""
    return _read(storage, f"{folder_of(name)}/{table}.parquet")


def blocks_written(storage: Storage, name: str) -> set[int]:
    """The numbers of the blocks that are there."""
    found = (BLOCK.fullmatch(file) for file in storage.list(f"{folder_of(name)}/scores"))
    return {int(match[1]) for match in found if match}


def has_block(storage: Storage, name: str, number: int) -> bool:
    return storage.exists(_block(name, number))


def write_block(
    storage: Storage,
    name: str,
    number: int,
    query_ids: pa.ChunkedArray,
    scores: Float[ndarray, "Q X"],
    calls: list[int],
    seconds: float,
) -> None:
    """Write a block, unless another attempt was first.

    Args:
        calls: pairs asked for, of each query.
    """
    rows = pa.table(
        {
            "query_id": query_ids,
            "scores": parquet.vectors(scores.astype(np.float32)),
            "calls": pa.array(calls, pa.int64()),
        }
    ).replace_schema_metadata({"seconds": str(seconds)})
    with suppress(ConflictError):
        storage.create(_block(name, number), parquet.to_bytes(rows))


def finish(storage: Storage, name: str, num_blocks: int, num_relevant: int) -> Matrix:
    """Write the relevance, now that all blocks are there.

    Args:
        num_relevant: most items of a query that count as relevant, its best; fewer where it has fewer scores.
    """
    item_ids = read_table(storage, name, "items")["item_id"]
    query_ids, rows, calls, holes, seconds = list[Any](), list[ndarray](), 0, 0, 0.0
    all_query_ids = read_table(storage, name, "queries")["query_id"]
    first = 0
    for number in range(num_blocks):
        block = _checked(storage, _block(name, number), all_query_ids, first, len(item_ids))
        first += block.num_rows
        scores = parquet.rows_in(block["scores"])
        calls, holes = calls + sum(block["calls"].to_pylist()), holes + int(np.isnan(scores).sum())
        seconds += float(block.schema.metadata[b"seconds"])
        best = np.argsort(np.where(np.isnan(scores), np.inf, -scores), axis=1, kind="stable")[:, :num_relevant]
        for query_id, own, row in zip(block["query_id"].to_pylist(), scores, best, strict=True):
            kept = row[~np.isnan(own[row])]
            query_ids += [query_id] * len(kept)
            rows.append(kept)
    taken = item_ids.take(pa.array(np.concatenate(rows)))
    relevance = pa.table({"query_id": query_ids, "item_id": taken.combine_chunks()})
    storage.write(f"{folder_of(name)}/relevance.parquet", parquet.to_bytes(relevance))
    matrix = Matrix(
        folder=f"{storage}/{folder_of(name)}",
        num_items=len(item_ids),
        num_queries=read_table(storage, name, "queries").num_rows,
        num_calls=calls,
        num_holes=holes,
        seconds=seconds,
    )
    storage.write(f"{folder_of(name)}/matrix.json", json.dumps(dataclasses.asdict(matrix), indent=1).encode())
    return matrix


def read_finished(storage: Storage, name: str) -> Matrix | None:
    """Return what a finished matrix cost; None if it is not finished.

    Raises:
        DamagedError: if its report cannot be read.
    """
    path = f"{folder_of(name)}/matrix.json"
    if not storage.exists(path):
        return None
    try:
        return TypeAdapter(Matrix).validate_python(read_json(storage, path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DamagedError(
            f"{storage}/{path} must say what a matrix cost, got: {first['loc'][0]}: {first['msg']}: make it anew"
        ) from None


def _checked(storage: Storage, path: str, query_ids: pa.ChunkedArray, first: int, num_items: int) -> pa.Table:
    """A block, of the queries from `first` on.

    Raises:
        DamagedError: if it holds something else.
    """
    block = _read(storage, path)
    message = f"{storage}/{path} must be a block of a matrix of {num_items} items"
    try:
        width = block.schema.field("scores").type.list_size
        is_ours = block["query_id"].to_pylist() == query_ids.slice(first, block.num_rows).to_pylist()
        float(block.schema.metadata[b"seconds"])
        block["calls"]
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise DamagedError(f"{message}, got: {error}: delete it, and it is scored anew") from None
    if width != num_items or not is_ours:
        raise DamagedError(f"{message}, got other queries or {width} items: delete it, and it is scored anew")
    return block


def _block(name: str, number: int) -> str:
    return f"{folder_of(name)}/scores/{number:06d}.parquet"


def _read(storage: Storage, path: str) -> pa.Table:
    try:
        return parquet.read_plain(io.BytesIO(storage.read(path)))
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"{storage}/{path} must be a Parquet file, got: {error}: make the matrix anew") from None
