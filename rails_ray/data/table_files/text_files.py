"""A table in text: comma-separated, tab-separated, or JSON lines.

A column of CSV is of integers if each value is one as it is usually written ("7", not "007"), of floats if each is a
number, of lists if each is JSON's list, and of texts otherwise. An empty field without quotes is null.
"""

import io
import json
import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from rails_ray.storage.filesystem import Storage

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
ENDINGS = (*DELIMITERS, *JSON_LINES)
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
BLOCK_BYTES = 2**24  # of text that is read at once: a row must fit


def ending_of(path: str) -> str | None:
    """The ending of a file of text tables, without that of its compression; None if it is no such file."""
    plain = next((path.removesuffix(end) for end in COMPRESSIONS if path.endswith(end)), path)
    return next((ending for ending in ENDINGS if plain.endswith(ending)), None)


def read(storage: Storage, path: str, texts: Collection[str] = ()) -> pa.Table:
    """The table of a file.

    Args:
        texts: columns that are texts, whatever they hold.

    Raises:
        NotFoundError: if there is no such file.
        ValueError: if it is not of its format.
    """
    ending, data = ending_of(path), opened(storage, path)
    if ending in JSON_LINES:
        return json_lines(data, f"{storage}/{path}")
    assert ending is not None
    table = delimited(data, f"{storage}/{path}", DELIMITERS[ending])
    return pa.table({name: table[name] if name in texts else typed(table[name]) for name in table.column_names})


def opened(storage: Storage, path: str) -> io.BytesIO:
    """The bytes of a file, decompressed.

    Raises:
        ValueError: if they are no such compression.
    """
    data = storage.read(path)
    for ending, name in COMPRESSIONS.items():
        if path.endswith(ending):
            try:
                with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
                    return io.BytesIO(stream.read())
            except OSError as error:
                raise ValueError(f"{storage}/{path} must be a file of {name}, got: {error}") from None
    return io.BytesIO(data)


def delimited(
    data: io.BytesIO, name: str, delimiter: str, columns: list[str] | None = None, has_quotes: bool = True
) -> pa.Table:
    """Columns of texts.

    Args:
        name: of the file, for messages.
        columns: their names; None if the first line has them.
    """
    if not data.getbuffer().nbytes:
        return pa.table({column: pa.array([], pa.large_string()) for column in columns or ()})
    parse = pa.csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=has_quotes, quote_char='"' if has_quotes else False
    )
    read = pa.csv.ReadOptions(column_names=columns, block_size=BLOCK_BYTES)
    try:
        names = columns or pa.csv.open_csv(data, read, parse).schema.names
        data.seek(0)
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return pa.csv.read_csv(data, read, parse, convert)
    except pa.ArrowException as error:
        raise ValueError(f"{name} must be rows of one number of fields in UTF-8, got: {error}") from None


def typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as what they all write: integers, floats, or lists of JSON; else as they are."""
    given = column.drop_null()
    if not len(given):
        return column
    if pc.all(pc.match_substring_regex(given, INTEGER)).as_py():
        return column.cast(pa.int64())
    if pc.all(pc.starts_with(given, "[")).as_py():
        try:
            return pa.chunked_array(
                [pa.array([None if one is None else json.loads(one) for one in column.to_pylist()])]
            )
        except (ValueError, pa.ArrowException):
            return column
    if not re.match(r"[-+.0-9]|nan|inf", given[0].as_py(), re.IGNORECASE):
        return column
    try:
        floats = column.cast(pa.float64())
    except pa.ArrowInvalid:
        return column
    # A code such as 007 or 1e5 is no number: it would come back in another way.
    return column if pc.any(pc.match_substring_regex(given, r"^-?0[0-9]|^[0-9]+[eE]")).as_py() else floats


def json_lines(data: io.BytesIO, name: str) -> pa.Table:
    """A table of a line of JSON for each row."""
    if not data.getbuffer().nbytes:
        return pa.table({})
    try:
        return pa.json.read_json(data, pa.json.ReadOptions(block_size=BLOCK_BYTES))
    except pa.ArrowException as error:
        raise ValueError(
            f"{name} must hold an object of JSON in each line, with values of one type, got: {error}"
        ) from None


def renamed(table: pa.Table, names: dict[str, Any]) -> pa.Table:
    """Some columns under other names, without the others."""
    return pa.table({new: table[old] for old, new in names.items() if old in table.column_names})
