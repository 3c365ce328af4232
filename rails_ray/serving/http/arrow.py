"""Bodies in Arrow's IPC stream format, for searches of many queries: a row is a query, or its result.

A request's columns are fields of a query, null where a query has none (without `exclude_seen` the version decides); the
other fields of the request are JSON in the schema's metadata, by the name `search`. An answer's columns are the fields
of a result, and the rest of the answer is JSON in the metadata, by the name `answer`.

Columns are read by `storage.values`, as tables are. What would be larger than a body may be once it is read is refused:
dictionaries, views and run ends that name few values many times, compressed buffers, values without bytes of their own.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import chain, islice
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.exceptions import HTTPException

from rails_ray.schema.fields import shortened
from rails_ray.schema.queries import QueryInput
from rails_ray.schema.responses import QueryResult, Response, SearchResponse
from rails_ray.serving.http.limits import MAX_BODY_BYTES
from rails_ray.serving.vector_queries import VectorQueries
from rails_ray.storage import plain_values, values
from rails_ray.storage.attributes import TYPES
from rails_ray.storage.numbers import numbers_in

TYPE = "application/vnd.apache.arrow.stream"
SEARCH, ANSWER = b"search", b"answer"
MOST_ROWS = 100_000
MOST_READ_BYTES = (
    2 * MAX_BODY_BYTES
)  # of all columns once dictionaries, views and run ends are read; offsets may be wider then
ROWS_OF_A_BATCH = 64  # of an answer
NO_QUALITY = re.compile(r"q=0(\.0*)?")  # of a header: not this one
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3  # messages, by their numbers in Message.fbs
HEADER_TYPE, HEADER, DATA, COMPRESSION = 1, 2, 1, 3  # fields of Message, of DictionaryBatch and of RecordBatch
COLUMNS = {
    "text": values.TEXT,
    "embedding": values.NUMBERS,
    "history": values.IDS,
    "exclude": values.IDS,
    "include": values.IDS,
    "user_id": values.ID,
    "timestamps": values.TIMES,
}
ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {TYPE: {}}}}  # of OpenAPI
BODIES: dict[str, Any] = {"requestBody": {"content": {TYPE: {"schema": {"type": "string", "format": "binary"}}}}}
SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def type_of(annotation: Any) -> pa.DataType:
    """The type of a column for a field of an answer. A list of scores is in float32, as a search has them."""
    if get_origin(annotation) in (UnionType, Union):  # or null
        [annotation] = [own for own in get_args(annotation) if own is not NoneType]
    if get_origin(annotation) is list:
        [member] = get_args(annotation)
        return pa.list_(pa.float32() if member is float else type_of(member))
    if annotation in SCALARS:
        return SCALARS[annotation]
    return pa.struct([(name, type_of(field.annotation)) for name, field in annotation.model_fields.items()])


KINDS: dict[str, pa.DataType] = {
    name: type_of(field.annotation)
    for name, field in QueryResult.model_fields.items()
    if name not in ("items", "fields")
}
TEXTS = {"timestamp": pa.string()}  # kinds of attributes that answers write in ISO 8601


def read_queries(body: bytes) -> tuple[list[dict[str, Any]] | VectorQueries, bytes]:
    """The queries of a body, in one array if they are vectors and nothing else, and the JSON of the request's other
    fields.

    Raises:
        HTTPException: if the body is none, or holds what no query does.
    """
    try:
        _check_messages(body)
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, struct.error) as error:
        first = str(error).partition("\n")[0] or "no stream"
        raise _unreadable(f"the body must be one stream of Arrow's IPC format, got something else: {first}") from None
    names = table.schema.names
    if len(names) > len(QueryInput.model_fields):  # before anything else is done for each of them
        most = f"at most the {len(QueryInput.model_fields)} columns that a query has fields"
        raise _unreadable(f"the body must have {most}, got {len(names)}")
    for field in table.schema:
        if names.count(field.name) > 1:
            raise _unreadable(f"the body must have each column once, got {shortened(field.name)} twice")
    if table.num_rows > MOST_ROWS or not table.num_columns:
        size = f"{table.num_rows} rows of {table.num_columns} columns"
        raise _unreadable(f"the body must have a column and at most {MOST_ROWS} rows, got {size}")
    rest = (table.schema.metadata or {}).get(SEARCH, b"{}")
    is_plain = b"ARROW:extension:name" not in (table.schema.field(0).metadata or {})
    vectors = _vectors(table["embedding"]) if names == ["embedding"] and is_plain else None
    if vectors is not None:
        return vectors, rest
    columns = _columns(table)
    rows = zip(*columns.values(), strict=True)
    return [{name: own for name, own in zip(columns, row, strict=True) if own is not None} for row in rows], rest


def _vectors(column: pa.ChunkedArray) -> VectorQueries | None:
    """Lists of floats of one width, as they lie in the body; None for any others."""
    lists = column.combine_chunks()
    if not plain_values.is_list(lists.type) or not pa.types.is_floating(lists.type.value_type) or lists.null_count:
        return None
    numbers, widths = lists.flatten(), pc.unique(pc.list_value_length(lists))
    if numbers.null_count or len(widths) != 1 or not len(numbers):
        return None
    return VectorQueries.given(np.array(numbers_in(numbers)).reshape(len(lists), widths[0].as_py()))


def _columns(table: pa.Table) -> dict[str, list[Any]]:
    """The values of each column as JSON has them.

    Raises:
        HTTPException: if a column holds what no field does, or all are larger than a body may be.
    """
    read, size = dict[str, list[Any]](), 0
    for field, column in zip(table.schema, table.columns, strict=True):
        kind, found = COLUMNS.get(field.name), list[Any]()
        has_runs = pa.types.is_run_end_encoded(field.type)
        held = field.type.value_type if has_runs else field.type
        if kind is None and not (pa.types.is_boolean(held) or _is_plain(held)):
            raise _unreadable(
                f"column {shortened(field.name)} must be of strings, numbers or booleans, of lists of numbers or "
                f"strings, a map or a struct of distinct names, got {shortened(str(field.type))}"
            )
        for chunk in column.chunks:
            if kind is None and not has_runs:
                found += map(_plain, chunk.to_pylist())
                continue
            try:
                size += plain_values.size_bytes(chunk)
                if size > MOST_READ_BYTES:
                    raise _unreadable(
                        f"the body must be of at most {MOST_READ_BYTES} bytes once dictionaries, views and run ends "
                        "are read, got more: split the queries"
                    )
                found += (
                    plain_values.plain(chunk).to_pylist() if kind is None else _listed(kind.read(chunk, field.metadata))
                )
            except plain_values.BadValueError as error:
                row = "" if error.row is None else f" in row {len(found) + error.row}"
                message = f"column {shortened(field.name)} must {error.must}, got {shortened(error.got)}{row}"
                raise _unreadable(message) from None
        read[field.name] = found
    return read


def _listed(found: pa.Array) -> list[Any]:
    """Values in Python; timestamps in ISO 8601, which has no unit that could be mistaken."""
    if plain_values.is_list(found.type) and pa.types.is_timestamp(found.type.value_type):
        return [row and [own and own.isoformat() for own in row] for row in found.to_pylist()]
    listed: list[Any] = found.to_pylist()
    return listed


def _check_messages(body: bytes) -> None:
    """Refuse what could be larger than the body. Raises what reading does, and HTTPException."""
    with pa.BufferReader(body) as source:
        while True:
            try:
                message = pa.ipc.read_message(source)
            except EOFError:
                return
            metadata = message.metadata.to_pybytes()
            (root,) = struct.unpack_from("<I", metadata)
            place = _field(metadata, root, HEADER_TYPE)
            kind = 0 if place is None else metadata[place]
            if kind not in (SCHEMA, DICTIONARY_BATCH, RECORD_BATCH):
                raise _unreadable("the body must hold a schema and batches of rows, got another message")
            batch = _table(metadata, root, HEADER)
            if kind == DICTIONARY_BATCH and batch is not None:
                batch = _table(metadata, batch, DATA)
            if kind != SCHEMA and batch is not None and _field(metadata, batch, COMPRESSION) is not None:
                raise _unreadable("the body must hold no compressed buffers, got some")


def _table(metadata: bytes, table: int, number: int) -> int | None:
    """Where the table begins that a field of another names; None if it has none."""
    place = _field(metadata, table, number)
    return None if place is None else place + struct.unpack_from("<I", metadata, place)[0]


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table lies; None if the table has none."""
    (back,) = struct.unpack_from("<i", metadata, table)
    start = table - back
    (size,) = struct.unpack_from("<H", metadata, start)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, start + 4 + 2 * number)
    return table + offset if offset else None


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether each value has bytes of its own in the body."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_plain(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size > 0 and _is_plain(kind.value_type)
    if pa.types.is_map(kind):
        return _is_plain(kind.key_type) and _is_plain(kind.item_type)
    if pa.types.is_struct(kind):
        names = {field.name for field in kind}
        return 0 < len(names) == kind.num_fields and all(_is_plain(field.type) for field in kind)
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating)
    return any(check(kind) for check in checks)


def _plain(value: Any) -> Any:
    """A map or a struct as JSON has it: an object. A field of a struct that is null is left out, as Arrow makes one
    struct of dicts with different keys."""
    if isinstance(value, dict):
        return {name: own for name, own in value.items() if own is not None}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {str(key): own for key, own in value}
    return value


def _unreadable(message: str) -> HTTPException:
    return HTTPException(422, message)


def is_wanted(accept: str | None) -> bool:
    """Return whether a header names this format among those that it accepts."""
    for given in (accept or "").split(","):
        kind, *parameters = [part.strip().lower() for part in given.split(";")]
        if kind == TYPE and not any(NO_QUALITY.fullmatch(own) for own in parameters):
            return True
    return False


def pieces(
    head: SearchResponse,
    results: Iterator[QueryResult],
    *,
    is_unsigned: bool = False,
    fields: Mapping[str, str] = {},
) -> Iterator[bytes]:
    """The stream of an answer, some rows at a time.

    Args:
        is_unsigned: whether integer ids are of 64 bits without a sign.
        fields: kinds of the attributes that the request names.
    """
    held = list[QueryResult]()
    for row in results:  # until one tells whether ids are numbers
        held.append(row)
        if row.items:
            break
    is_number = bool(held and held[-1].items) and isinstance(held[-1].items[0], int)
    number = pa.uint64() if is_unsigned else pa.int64()
    attributes = pa.list_(pa.struct([(name, TEXTS.get(kind, TYPES[kind])) for name, kind in fields.items()]))
    kinds = {"items": pa.list_(number if is_number else pa.string()), **KINDS}
    kinds |= {"fields": attributes if fields else pa.null()}
    head_json = head.model_dump_json(exclude={"results"}).encode()
    sink, rest = BytesIO(), chain(held, results)
    schema = pa.schema(list(kinds.items()), {ANSWER: head_json})
    with pa.ipc.new_stream(sink, schema) as writer:
        while rows := list(islice(rest, ROWS_OF_A_BATCH)):
            columns = [pa.array([_value_of(row, name) for row in rows], kind) for name, kind in kinds.items()]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            yield _taken(sink)
    yield _taken(sink)


def _taken(sink: BytesIO) -> bytes:
    """Return what was written since the last time."""
    found = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return found


def _value_of(row: QueryResult, name: str) -> Any:
    value = getattr(row, name)
    return value.model_dump() if isinstance(value, Response) else value
