"""Searches whose bodies are in Arrow's stream format: the same answers as in JSON, and what is refused."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rails_ray.schema.queries import QueryInput
from rails_ray.schema.responses import QueryResult
from rails_ray.serving.http import arrow, streaming
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.vector_queries import VectorQueries

TEXTS = ["red", "blue hat", "green"]
OPTIONS = {"k": 4, "cutoff": {"top_k": 4}}


@pytest.fixture(scope="module")
def single(version: LocalVersion) -> SingleProcessServer:
    return SingleProcessServer(version)


def ask(single: SingleProcessServer, content: bytes, path: str = "/v1/search", **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(api_of(lambda: single))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post(path, content=content, headers={"content-type": arrow.TYPE, **headers})

    return asyncio.run(asked())


def as_stream(table: pa.Table, options: Any = OPTIONS, **how: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with_options = table.replace_schema_metadata({"search": json.dumps(options)} if options is not None else {})
    with pa.ipc.new_stream(sink, with_options.schema, options=pa.ipc.IpcWriteOptions(**how)) as writer:
        writer.write_table(with_options)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def in_json(single: SingleProcessServer, queries: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask(
        single, json.dumps({"queries": queries, **options}).encode(), **{"content-type": ""}
    ).json()
    return answer


def test_the_answer_is_that_of_json(single: SingleProcessServer, version: LocalVersion) -> None:
    expected = in_json(single, [{"text": text} for text in TEXTS], **OPTIONS)
    body = as_stream(pa.table({"text": TEXTS}))
    assert ask(single, body).json() == expected
    answer = ask(single, body, accept=f"{arrow.TYPE}, application/json;q=0.5")
    assert answer.headers["content-type"] == arrow.TYPE
    assert "shards" in answer.headers["server-timing"]
    table = pa.ipc.open_stream(answer.content).read_all()
    assert set(table.column_names) == set(QueryResult.model_fields)
    results = expected.pop("results")
    assert json.loads(table.schema.metadata[b"answer"]) == expected
    for found, own in zip(table.to_pylist(), results, strict=True):
        assert found.pop("scores") == pytest.approx(own.pop("scores"))
        assert found == own


def test_queries_by_several_fields(single: SingleProcessServer, version: LocalVersion) -> None:
    [vector] = version.engine.embed(["red"]).tolist()
    columns = {
        "text": pa.array(["blue hat", None]),
        "embedding": pa.array([None, vector], pa.list_(pa.float32(), len(vector))),
        "exclude": pa.array([["i1", "i3"], None], pa.list_(pa.large_string())),
        "exclude_seen": pa.array([False, None]),
    }
    queries = [{"text": "blue hat", "exclude": ["i1", "i3"], "exclude_seen": False}, {"embedding": vector}]
    assert ask(single, as_stream(pa.table(columns), None)).json() == in_json(single, queries)


def as_others_write(texts: list[str], vector: list[float]) -> Iterator[tuple[pa.Table, list[dict[str, Any]]]]:
    """Columns of types that other tools write, by field, and the queries that they mean."""
    by_text: list[dict[str, Any]] = [{"text": text} for text in texts]
    plain = pa.array(texts)
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()):
        yield pa.table({"text": plain.cast(kind)}), by_text
    yield pa.table({"text": plain.dictionary_encode()}), by_text
    yield pa.Table.from_pandas(pd.DataFrame({"text": pd.Categorical(texts)}), preserve_index=False), by_text
    by_vector: list[dict[str, Any]] = [{"embedding": vector}] * 2
    width = len(vector)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vector * 2, pa.float32()), width)
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [width]), rows)
    for column in (
        rows,
        tensors,
        rows.cast(pa.large_list(pa.float64())),
        pa.array([vector] * 2, pa.list_view(pa.float32())),
    ):
        yield pa.table({"embedding": column}), by_vector
    some = [{"text": "red", "exclude": ["i1", "i3"]}]
    for column in (
        pa.array([["i1", "i3"]], pa.list_(pa.string_view())),
        pa.array([["i1", "i3"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.array([[b"i1", b"i3"]]),
    ):
        yield pa.table({"text": ["red"], "exclude": column}), some


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32(), 3), pa.list_(pa.float64()), pa.large_list(pa.float16()), pa.list_(pa.float32())]
)
def test_vectors_alone_are_one_array(kind: pa.DataType) -> None:
    numbers = [[0.5, -1.0, 2.0], [0.0, 4.0, 1.5], [1.0, 1.0, 1.0]]
    table = pa.concat_tables([pa.table({"embedding": pa.array(part, kind)}) for part in (numbers[:1], numbers)])
    queries, rest = arrow.read_queries(as_stream(table.slice(1)))
    assert isinstance(queries, VectorQueries)
    assert queries.array.dtype == np.float32
    assert queries.array.tolist() == numbers
    assert queries.array.flags.writeable  # as torch wants it
    assert json.loads(rest) == OPTIONS


@pytest.mark.parametrize(
    "values", [[[1.0], None], [[1.0, None]], [[1.0], [1.0, 2.0]], [[]], [[float("nan")]], [[1e300]], []]
)
def test_vectors_that_are_no_array_are_queries_one_by_one(values: list[Any]) -> None:
    queries, _ = arrow.read_queries(as_stream(pa.table({"embedding": pa.array(values, pa.list_(pa.float64()))})))
    assert isinstance(queries, list)
    assert len(queries) == len(values)


def with_runs(columns: dict[str, list[Any]]) -> pa.Table:
    return pa.table({name: pa.compute.run_end_encode(pa.array(values)) for name, values in columns.items()})


def test_run_ends_are_read(single: SingleProcessServer, version: LocalVersion) -> None:
    [vector] = version.engine.embed(["red"]).tolist()
    columns = {
        "text": ["red", "red", "green", None, None],
        "embedding": [None, None, None, vector, vector],
        "exclude": [["i1", "i3"]] * 2 + [[]] * 3,
        "exclude_seen": [True, None, None, False, False],
    }
    names = list(columns)
    queries = [
        {name: own for name, own in zip(names, row, strict=True) if own is not None}
        for row in zip(*columns.values(), strict=True)
    ]
    table = with_runs(columns)
    assert ask(single, as_stream(table)).json() == in_json(single, queries, **OPTIONS)
    assert arrow.read_queries(as_stream(table.slice(1, 3)))[0] == queries[1:4]  # in the middle of runs
    of_words = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int16()), pa.array(["red"]).dictionary_encode())
    assert arrow.read_queries(as_stream(pa.table({"text": of_words})))[0] == [{"text": "red"}] * 2


def test_columns_are_read_as_those_of_tables(single: SingleProcessServer, version: LocalVersion) -> None:
    [vector] = version.engine.embed(["red"]).tolist()
    for table, queries in as_others_write(TEXTS, vector):
        assert ask(single, as_stream(table)).json() == in_json(single, queries, **OPTIONS), table.schema


def test_ids_and_times_are_read_as_those_of_tables() -> None:
    instants = pa.array([[datetime(2026, 1, 1), datetime(1969, 1, 1)]], pa.list_(pa.timestamp("ms")))
    for ids in (pa.list_(pa.float64()), pa.list_(pa.decimal128(20, 0)), pa.list_(pa.uint64())):
        table = pa.table({"history": pa.array([[5, 2**40]]).cast(ids), "timestamps": instants})
        expected = {"history": [5, 2**40], "timestamps": ["2026-01-01T00:00:00", "1969-01-01T00:00:00"]}
        assert arrow.read_queries(as_stream(table))[0] == [expected]


def test_a_map_is_an_object() -> None:
    table = pa.table({"features": pa.array([[(17, 1.0), (3, 0.5)], None], pa.map_(pa.int64(), pa.float64()))})
    assert arrow.read_queries(as_stream(table))[0] == [{"features": {"17": 1.0, "3": 0.5}}, {}]


def test_a_struct_is_an_object() -> None:
    given = [{"17": 1.0}, {"3": 0.5}]
    assert arrow.read_queries(as_stream(pa.table({"features": given})))[0] == [{"features": own} for own in given]


def test_ids_that_are_numbers_and_empty_lists() -> None:
    certificate = {"is_exact": True, "gap": 0.0, "reason": None}
    facts = {"titles": None, "scores": [], "threshold": None, "num_kept": 0, "num_searched": 1, "num_scored": 1}
    rows = [
        QueryResult.model_validate({"items": items, "certificate": certificate, "is_truncated": False, **facts})
        for items in ([], [5, 2**53 + 1])
    ]
    head: Any = {"version": "v", "method": "gated", "is_exact": True, "cutoff": {}, "results": []}
    head |= {"coverage": {"shards_answered": 1, "num_shards": 1, "items_searched": 1, "num_items": 1}}
    content = b"".join(arrow.pieces(arrow.SearchResponse.model_validate(head), iter(rows)))
    assert pa.ipc.open_stream(content).read_all()["items"].to_pylist() == [[], [5, 2**53 + 1]]


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        (None, False),
        ("application/json", False),
        (f"application/json, {arrow.TYPE.upper()} ; q=0.5", True),
        (f"{arrow.TYPE};q=0.001", True),
        (f"{arrow.TYPE};q=0.0, application/json", False),
        (f"{arrow.TYPE}; q=0", False),
    ],
)
def test_which_format_a_header_wants(accept: str | None, is_wanted: bool) -> None:
    assert arrow.is_wanted(accept) == is_wanted


def test_a_long_answer_comes_in_pieces(single: SingleProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE_BYTES", 1000)
    body = as_stream(pa.table({"text": TEXTS * 100}))
    found = pa.ipc.open_stream(ask(single, body, accept=arrow.TYPE).content).read_all()
    assert found.column("items").num_chunks == 5
    assert found["items"].to_pylist() == [own["items"] for own in ask(single, body).json()["results"]]


LONG = pa.table({"text": ["a" * 1000] * 10})
DICTIONARY = pa.table({"text": pa.array(["red" * 20, "red" * 20]).dictionary_encode()})
NAMED = pa.array(np.zeros(10_000, np.int32))
RUN_BOMB = pa.table({"text": pa.RunEndEncodedArray.from_arrays(pa.array([10_000], pa.int32()), pa.array(["a" * 9000]))})
LISTS = pa.array([[9000] * 10_000])
RUN_OF_LISTS_BOMB = pa.table({"history": pa.RunEndEncodedArray.from_arrays(pa.array([9000], pa.int32()), LISTS)})
DICTIONARY_BOMB = pa.table({"text": pa.DictionaryArray.from_arrays(NAMED, pa.array(["a" * 9000]))})
VIEW = pa.array(["a" * 9000], pa.string_view())
VIEWS = [None, pa.py_buffer(VIEW.buffers()[1].to_pybytes() * 10_000), VIEW.buffers()[2]]
VIEW_BOMB = pa.table({"text": pa.Array.from_buffers(pa.string_view(), 10_000, VIEWS)})
LIST_BOMB = pa.table(
    {"history": pa.ListViewArray.from_arrays(NAMED, pa.array([9000] * 10_000, pa.int32()), range(9000))}
)
NO_BYTES = pa.table({"history": pa.array([[[]]], pa.list_(pa.list_(pa.string(), 0)))})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body must be given, got none"),
        (b"nothing", "the body must be one stream of Arrow's IPC format, got something else"),
        (b"\xff\xff\xff\xff\x08\x00\x00\x00\xff\xff\xff\x7f\x00\x00\x00\x00", "the body must be one stream of Arrow"),
        (as_stream(LONG)[:-500], "the body must be one stream of Arrow's IPC format, got something else"),
        (as_stream(LONG, compression="zstd"), "the body must hold no compressed buffers, got some"),
        (as_stream(LONG, compression="lz4"), "the body must hold no compressed buffers, got some"),
        (as_stream(DICTIONARY, compression="zstd"), "the body must hold no compressed buffers, got some"),
        (as_stream(pa.table({"text": [1]})), "column 'text' must be of type string, got 'int64'"),
        (
            as_stream(pa.table({"text": [b"\xff"]})),
            "column 'text' must hold text in UTF-8, got \"b'\\\\xff'\" in row 0",
        ),
        (as_stream(pa.table({"text": pa.nulls(3)})), "queries[0] must have exactly one of text, embedding"),
        (
            as_stream(pa.table({"features": pa.StructArray.from_arrays([pa.array([1.0])] * 2, ["17", "17"])})),
            "or a struct of distinct names, got 'struct<17: double, 17: double>'",
        ),
        (as_stream(pa.table({"features": pa.array([{}], pa.struct([]))})), "of distinct names, got 'struct<>'"),
        (as_stream(pa.table({"txt": pa.nulls(3)})), "column 'txt' must be of strings, numbers or booleans, of lists"),
        (as_stream(NO_BYTES), "column 'history' must be of type list of integers or list of strings, got"),
        (
            as_stream(pa.table({"history": pa.array([[1.0], [0.5]])})),
            "column 'history' must hold whole numbers, and of type double up to 2**53, as it rounds larger ones, got "
            "'0.5' in row 1",
        ),
        (as_stream(pa.table({"embedding": [["a"]]})), "column 'embedding' must be of type list of floats or list of"),
        (as_stream(DICTIONARY_BOMB), f"the body must be of at most {arrow.MOST_READ_BYTES} bytes once dictionaries"),
        (as_stream(VIEW_BOMB), f"the body must be of at most {arrow.MOST_READ_BYTES} bytes once dictionaries"),
        (as_stream(RUN_BOMB), f"the body must be of at most {arrow.MOST_READ_BYTES} bytes once dictionaries"),
        (as_stream(RUN_OF_LISTS_BOMB), f"the body must be of at most {arrow.MOST_READ_BYTES} bytes once dictionaries"),
        (as_stream(LIST_BOMB), f"the body must be of at most {arrow.MOST_READ_BYTES} bytes once dictionaries"),
        (
            as_stream(pa.table([["a"], ["b"]], ["text", "text"])),
            "the body must have each column once, got 'text' twice",
        ),
        (
            as_stream(pa.table({f"c{number}": [True] for number in range(5000)})),
            f"the body must have at most the {len(QueryInput.model_fields)} columns that a query has fields, got 5000",
        ),
        (as_stream(pa.table({"text": ["a"] * 100_001})), "must have a column and at most 100000 rows, got 100001 rows"),
        (as_stream(pa.table({"text": pa.array([], pa.string())})), "queries must have a length of at least 1"),
        (as_stream(pa.table({"text": ["a"]}), {"queries": []}), "metadata `search` must not have queries"),
        (as_stream(pa.table({"text": ["a"]}), [1]), "the body must be a JSON object, got [1]"),
        (as_stream(pa.table({"text": ["a"]}), {"k": 0}), "k must be greater than or equal to 1"),
        (as_stream(pa.table({"txt": ["a"]})), "queries[0]"),
        (
            as_stream(pa.table({"embedding": [[float("nan")]]})),
            "queries[0].embedding[0] must be a finite number, got nan",
        ),
    ],
)
def test_what_is_refused(single: SingleProcessServer, content: bytes, message: str) -> None:
    answer = ask(single, content)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_no_byte_of_a_body_can_be_wrong_and_do_harm(single: SingleProcessServer) -> None:
    """Each byte of a small body in turn: an answer or a sentence."""
    for table in (pa.table({"text": ["red"], "exclude": [["i1"]]}), with_runs({"text": ["red", "red"]})):
        _check_each_byte(as_stream(table))


def _check_each_byte(content: bytes) -> None:
    for place in range(len(content)):
        for wrong in (0xFF, content[place] ^ 0x10):
            changed = content[:place] + bytes([wrong]) + content[place + 1 :]
            with suppress(arrow.HTTPException):
                arrow.read_queries(changed)


def test_other_routes_take_json_alone(single: SingleProcessServer) -> None:
    answer = ask(single, as_stream(LONG), "/v1/explain")
    assert (answer.status_code, answer.json()["error"]) == (422, "the body must be JSON in UTF-8, got the byte 0xff")
