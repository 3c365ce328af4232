import contextlib
import itertools
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rails_ray.data.forms import numbers
from rails_ray.data.sources import Sources
from rails_ray.data.vector_files import bins
from rails_ray.data.vector_files.folder import PART_BYTES, UNFINISHED, export_folder, import_folder, open_items
from rails_ray.data.vector_files.formats import (
    LIST_WRITERS,
    READERS,
    WRITERS,
    export_vectors,
    open_lists,
    open_vectors,
    write_lists,
    write_vectors,
)
from rails_ray.data.vector_files.rows import BLOCK_BYTES, BLOCK_ROWS, rows_within
from rails_ray.data.vector_files.truth import Lengths, is_cosine
from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage.filesystem import Storage

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 9))
WITHOUT_IDS = ["npy", "fvecs", "fbin", "hdf5", "h5"]


def rows(num_rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, width)).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cut(vectors: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (vectors[first : first + size] for first in range(0, len(vectors), size))


def read(path: Path | str, block: int | None = None, **options: Any) -> np.ndarray:
    blocks = list(open_vectors(str(path), **options).blocks(block))
    assert all(own.dtype == np.float32 and own.flags.c_contiguous and 0 < len(own) <= (block or 1e9) for own in blocks)
    return np.concatenate(blocks)


# Each file equals what was written by hand, or by the tool whose format it is.


def as_fvecs(vectors: np.ndarray) -> bytes:
    return b"".join(struct.pack(f"<i{len(row)}f", len(row), *row) for row in vectors)


def as_fbin(vectors: np.ndarray) -> bytes:
    numbers = [number for row in vectors for number in row]
    return struct.pack(f"<ii{len(numbers)}f", *vectors.shape, *numbers)


def as_faiss(vectors: np.ndarray, ids: list[int] | None = None) -> bytes:
    index = faiss.IndexFlatIP(vectors.shape[1])
    if ids is None:
        index.add(vectors)
    else:
        index = faiss.IndexIDMap(index)
        index.add_with_ids(vectors, np.array(ids))
    return faiss.serialize_index(index).tobytes()


def by_numpy(path: Path) -> np.ndarray:
    return np.load(path, allow_pickle=False)


def by_hdf5(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        assert set(file) == {"train"}
        return file["train"][:]


@settings(max_examples=30)
@given(SHAPES, st.integers(1, 13), st.integers(1, 13))
def test_files_equal_those_made_by_hand(shape: tuple[int, int], written: int, taken: int) -> None:
    vectors = rows(*shape)
    bytes_of = {"fvecs": as_fvecs, "fbin": as_fbin, "faiss": as_faiss, "index": as_faiss}
    loaded = {"npy": by_numpy, "hdf5": by_hdf5, "h5": by_hdf5}
    with tempfile.TemporaryDirectory() as folder:
        for format in WRITERS:
            path = Path(folder) / f"vectors.{format}"
            write_vectors(str(path), shape[1], cut(vectors, written))
            if format in bytes_of:
                assert path.read_bytes() == bytes_of[format](vectors)
            elif format in loaded:
                assert np.array_equal(loaded[format](path), vectors)
                assert loaded[format](path).dtype == np.float32
            else:
                table = pq.read_table(path)
                assert table.to_pydict() == {"id": list(range(shape[0])), "vector": vectors.tolist()}
                assert table.schema.field("vector").type == pa.list_(pa.float32(), shape[1])
            opened = open_vectors(str(path))
            assert (opened.num_rows, opened.width) == shape
            assert np.array_equal(read(path, taken), vectors)
            assert np.array_equal(read(path), vectors)


@settings(max_examples=30)
@given(SHAPES, st.integers(1, 13))
def test_lists_equal_those_made_by_hand(shape: tuple[int, int], size: int) -> None:
    lists = np.random.default_rng(0).integers(-(2**31), 2**31, shape)
    flat = lists.reshape(-1).tolist()
    expected = {
        "ivecs": b"".join(struct.pack(f"<i{shape[1]}i", shape[1], *row) for row in lists.tolist()),
        "ibin": struct.pack(f"<ii{len(flat)}i", *shape, *flat),
    }
    with tempfile.TemporaryDirectory() as folder:
        for format in LIST_WRITERS:
            path = Path(folder) / f"lists.{format}"
            write_lists(str(path), shape[1], cut(lists, size))
            assert path.read_bytes() == expected[format]
            blocks = list(open_lists(str(path)).blocks(size))
            assert np.array_equal(np.concatenate(blocks), lists)
            assert {block.dtype for block in blocks} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("format", "kind"), [("u8bin", np.uint8), ("i8bin", np.int8), ("f16bin", np.float16), ("bvecs", np.uint8)]
)
def test_narrow_numbers_are_read(tmp_path: Path, format: str, kind: type) -> None:
    vectors = np.random.default_rng(0).integers(-100 if kind is np.int8 else 0, 127, (7, 3)).astype(kind)
    if format == "bvecs":
        data = b"".join(struct.pack("<i", 3) + row.tobytes() for row in vectors)
    else:
        data = struct.pack("<ii", 7, 3) + vectors.tobytes()
    (tmp_path / f"v.{format}").write_bytes(data)
    assert np.array_equal(read(tmp_path / f"v.{format}", 2), vectors.astype(np.float32))


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f2", "<f8", "u1", ">i2", "<i8"])
def test_arrays_of_any_number_are_read(tmp_path: Path, kind: str) -> None:
    vectors = np.arange(21).reshape(7, 3).astype(kind)
    np.save(tmp_path / "v.npy", vectors)
    assert np.array_equal(read(tmp_path / "v.npy", 2), vectors.astype(np.float32))
    with (tmp_path / "v.npy").open("wb") as file:
        np.lib.format.write_array(file, vectors, version=(2, 0))
    assert np.array_equal(read(tmp_path / "v.npy"), vectors.astype(np.float32))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_dataset("train", data=vectors, chunks=(2, 3), compression="gzip")
        file["else"] = vectors + 1
    assert np.array_equal(read(tmp_path / "v.h5", 2), vectors.astype(np.float32))
    assert np.array_equal(read(tmp_path / "v.h5", name="else"), vectors.astype(np.float32) + 1)


@pytest.mark.parametrize("shape", [(5, 1), (1, 5)])
def test_an_array_of_one_row_or_column_is_in_both_orders(tmp_path: Path, shape: tuple[int, int]) -> None:
    np.save(tmp_path / "v.npy", np.asfortranarray(rows(*shape)))
    assert np.array_equal(read(tmp_path / "v.npy"), rows(*shape))


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float16()), pa.list_(pa.uint8(), 3)])
@pytest.mark.parametrize("ids", [None, [5, 2, -1, 9, 2**40], ["b", "a", "", "ä", "e"]])
def test_tables_of_any_list_are_read(tmp_path: Path, kind: pa.DataType, ids: list[Any] | None) -> None:
    vectors = np.arange(15).reshape(5, 3)
    columns = {"title": list("abcde"), "own": pa.array(vectors.tolist(), kind)} | ({"item_id": ids} if ids else {})
    pq.write_table(pa.table(columns), tmp_path / "v.parquet", row_group_size=2)
    assert np.array_equal(read(tmp_path / "v.parquet", 4, name="own"), vectors)
    found = open_vectors(str(tmp_path / "v.parquet"), name="own").ids
    assert (found is None) if ids is None else (found.to_pylist() == ids)


@pytest.mark.parametrize(
    ("format", "ids"),
    [("parquet", [7, 3, 2**62, -1, 0]), ("parquet", list("zyxwv")), ("faiss", [7, 3, 2**62, 1, 0])],
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_ids_come_back(tmp_path: Path, format: str, ids: list[Any], size: int) -> None:
    path, vectors = tmp_path / f"v.{format}", rows(5, 3)
    write_vectors(str(path), 3, cut(vectors, size), ids)
    if format == "faiss":
        assert path.read_bytes() == as_faiss(vectors, ids)
    opened = open_vectors(str(path))
    assert opened.ids is not None
    assert opened.ids.to_pylist() == ids
    assert np.array_equal(np.concatenate(list(opened.blocks(2))), vectors)
    pairs = ((pa.array(ids[first : first + size]), vectors[first : first + size]) for first in range(0, 5, size))
    again = tmp_path / f"again.{format}"
    export_vectors(str(again), 3, pairs)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("format", WITHOUT_IDS)
def test_row_numbers_need_no_room_for_ids(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"v.{format}"
    write_vectors(str(path), 3, cut(rows(5, 3), 2), range(5))
    assert open_vectors(str(path)).ids is None
    for ids in ([0, 1, 2, 4, 3], list("abcde"), ["0", "1", "2", "3", "4"]):
        before = path.read_bytes()
        with pytest.raises(ValueError, match=f"v.{format} must be its row numbers, as its format holds no ids, got"):
            write_vectors(str(path), 3, cut(rows(5, 3), 2), ids)
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 3, 4, 1], "column 'id' of .*v.parquet must hold distinct ids, got 1 again in row 4"),
        ([1, 2, 3], "ids of .*v.parquet must be one for each row, got 1 for 2 rows at row 2"),
        (range(9), "ids of .*v.parquet must be one for each of its 5 rows, got 9"),
        ([1.5, 2, 3, 4, 5], "ids of .*v.parquet must be of type integer or string, got double"),
        ([1, 2, None, 4, 5], "ids of .*v.parquet must have a value in every row, got null in row 2"),
        ([1, "b", 3, 4, 5], "ids of .*v.parquet must be integers of 64 bits or strings, got: .*"),
        (
            np.array([2**63, 1, 2, 3, 4], np.uint64),
            "must be integers of 64 bits or strings, got: .*9223372036854775808",
        ),
        ([2**70, 1, 2, 3, 4], "must be integers of 64 bits or strings, got: .*"),
    ],
)
def test_ids_that_are_none(tmp_path: Path, ids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_vectors(str(tmp_path / "v.parquet"), 3, cut(rows(5, 3), 2), ids)
    assert list(tmp_path.iterdir()) == []


def test_ids_of_another_kind_later(tmp_path: Path) -> None:
    pairs: list[tuple[Any, np.ndarray]] = [([1, 2], rows(2, 3)), (["a", "b"], rows(2, 3))]
    with pytest.raises(ValueError, match="must all be of the type int64, got large_string at row 2"):
        export_vectors(str(tmp_path / "v.parquet"), 3, pairs)
    with pytest.raises(ValueError, match=r"v.faiss must be integers, as its format holds no others, got 'a' in row 0"):
        export_vectors(str(tmp_path / "v.faiss"), 3, pairs[1:])
    with pytest.raises(ValueError, match="must be there for all blocks or for none, got a change at row 2"):
        export_vectors(str(tmp_path / "v.faiss"), 3, [pairs[0], (None, rows(2, 3))])


def wide(num_rows: int, width: int) -> np.ndarray:
    """As `rows` in one call takes too long."""
    return np.zeros((num_rows, width), np.float32)


BAD_BLOCKS = [
    ([], "v.npy must hold at least 1 row, got 0"),
    ([wide(0, 3)], "v.npy must hold at least 1 row, got 0"),
    ([wide(2, 3), wide(1, 4)], r"v.npy must hold rows of 3 numbers, got the shape \(1, 4\) in row 2"),
    ([wide(2, 3)[0]], r"v.npy must hold rows of 3 numbers, got the shape \(3,\) in row 0"),
    ([wide(2, 3), np.array([[0] * 3, [0, np.nan, 0]])], "v.npy must hold numbers .* float32, got nan in row 3"),
    ([np.array([["1", "2", "3"]])], "v.npy must hold integers or floats, got the type <U1"),
    ([np.array([[1e39, 0, 0]])], r"v.npy must hold numbers that are finite in float32, got 1e\+39 in row 0"),
]


@pytest.mark.parametrize(("blocks", "message"), BAD_BLOCKS)
def test_blocks_that_cannot_be_written(tmp_path: Path, blocks: list[np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_vectors(str(tmp_path / "v.npy"), 3, blocks)
    assert list(tmp_path.iterdir()) == []


def test_lists_that_cannot_be_written(tmp_path: Path) -> None:
    path = str(tmp_path / "v.ivecs")
    for block, message in [
        (np.array([[1, 2**31]]), "must hold integers of 32 bits, got 2147483648 in row 2"),
        (np.array([[1.0, 2.5]]), "must hold integers, got the type float64 in row 2"),
        (np.array([[1, 2, 3]]), r"must hold lists of 2 integers, got the shape \(1, 3\) in row 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            write_lists(path, 2, [np.zeros((2, 2), np.int64), block])
    with pytest.raises(ValueError, match="must hold at least 1 row, got 0"):
        write_lists(path, 2, [])
    assert list(tmp_path.iterdir()) == []


def test_more_rows_than_a_header_can_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "MOST_ROWS", 4)
    with pytest.raises(ValueError, match="must hold at most 4 rows, got 5"):
        write_vectors(str(tmp_path / "v.fbin"), 3, [rows(5, 3)])


# What a user can get wrong.


def npy(values: np.ndarray, **options: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        np.lib.format.write_array(file, values, **options)
        file.seek(0)
        return file.read()


def npy_header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    with tempfile.TemporaryFile() as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
        file.seek(0)
        return file.read()


NAN = np.where(np.arange(6).reshape(3, 2) == 3, np.nan, 1.0).astype(np.float32)
BAD_FILES = [
    ("npy", b"", "must be an array of numpy.save, got: "),
    ("npy", b"PK\x03\x04 and more", "must be an array of numpy.save, got: .*magic"),
    ("npy", npy(wide(3, 2))[:-1], "must have 152 bytes, for 3 rows of 2 float32, got 151: it was cut off"),
    ("npy", npy(wide(3, 2)) + b"x", "must have 152 bytes, for 3 rows of 2 float32, got 153: check its format"),
    ("npy", npy(wide(3, 2))[:20], "must be an array of numpy.save, got: "),
    ("npy", npy(wide(3, 2).reshape(3, 2, 1)), r"must be of two dimensions, .*, got the shape \(3, 2, 1\)"),
    ("npy", npy(wide(3, 2).reshape(-1)), r"must be of two dimensions, rows and their width, got the shape \(6,\)"),
    ("npy", npy(np.asfortranarray(wide(3, 2))), "must hold row after row, got Fortran order, .*ascontiguousarray"),
    ("npy", npy(np.array([["a"]])), "must hold integers or floats, got the type <U1"),
    ("npy", npy(wide(3, 2) > 0), "must hold integers or floats, got the type bool"),
    ("npy", npy(wide(3, 2) + 1j), "must hold integers or floats, got the type complex64"),
    (
        "npy",
        npy(np.array([[{}]], dtype=object), allow_pickle=True),
        "must hold integers or floats, got the type object",
    ),
    ("npy", npy(np.zeros((2, 2), [("ä", "f4")]), version=(3, 0)), r"must be of version 1.0 or 2.0 .*, got \(3, 0\)"),
    ("npy", npy(wide(0, 2)), "must hold at least 1 row, got 0"),
    ("npy", npy_header((-3, 2)), "must hold at least 1 row, got -3"),
    ("npy", npy(wide(3, 0)), "must hold rows of 1 to 65536 numbers, got a width of 0: check its format"),
    ("npy", npy_header((2**40, 2**16)), "must have 288230376151711872 bytes, .*, got 128: it was cut off"),
    ("npy", npy(NAN), "v.npy must hold numbers that are finite in float32, got nan in row 1"),
    ("npy", npy(np.array([[1.0], [-1e300]])), r"must hold numbers that are finite in float32, got -1e\+300 in row 1"),
    ("fvecs", b"", "must begin with the width of its first row, an int32, got 0 bytes"),
    ("fvecs", b"\x01\0", "must begin with the width of its first row, an int32, got 2 bytes"),
    ("fvecs", as_fvecs(wide(3, 2))[:-1], "must have a multiple of 12 bytes, .* got 35: it was cut off, or its rows"),
    (
        "fvecs",
        as_fvecs(wide(2, 3)) + as_fvecs(wide(4, 1)),
        "must hold rows of one width, 3 as in row 0, got 1 in row 2",
    ),
    ("fvecs", struct.pack("<i", -5) + bytes(20), "must hold rows of 1 to 65536 numbers, got a width of -5"),
    ("fvecs", struct.pack("<i", 0), "must hold rows of 1 to 65536 numbers, got a width of 0"),
    ("fvecs", struct.pack(">i2f", 2, 0, 0), "got a width of 33554432: check its format and its byte order"),
    ("fvecs", as_fvecs(NAN), "v.fvecs must hold numbers that are finite in float32, got nan in row 1"),
    ("bvecs", struct.pack("<i", 3) + b"ab", "must have a multiple of 7 bytes, for rows of 3 numbers .* got 6"),
    ("fbin", b"1234567", "must begin with the number of rows and their width, 8 bytes, got 7"),
    ("fbin", as_fbin(wide(3, 2))[:-4], "must have 32 bytes, for 3 rows of 2 float32, got 28: it was cut off"),
    ("fbin", as_fbin(wide(3, 2)) + b"1234", "must have 32 bytes, for 3 rows of 2 float32, got 36: check its format"),
    ("fbin", struct.pack("<ii", 0, 3), "must hold at least 1 row, got 0"),
    ("fbin", struct.pack("<ii", 3, -1), "got a width of 4294967295: check its format and its byte order"),
    ("fbin", struct.pack(">ii6f", 3, 2, *range(6)), "got a width of 33554432: check its format and its byte order"),
    ("fbin", struct.pack("<ii", -1, 65536), "must have 1125899906580488 bytes, .*, got 8: it was cut off"),
    ("fbin", as_fbin(NAN), "v.fbin must hold numbers that are finite in float32, got nan in row 1"),
    ("f16bin", struct.pack("<iiee", 1, 2, 1.0, -np.inf), "finite in float32, got -inf in row 0"),
    ("u8bin", as_fbin(wide(3, 2)), "must have 14 bytes, for 3 rows of 2 uint8, got 32: check its format"),
    ("parquet", b"text", "v.parquet must be a Parquet file, got: "),
    ("hdf5", b"text", "must be a whole HDF5 file, got: .*"),
    ("faiss", b"", "must be a whole index of FAISS, got an empty file"),
    ("faiss", b"more than four bytes", "must be a whole index of FAISS, got: Index type 0x65726f6d"),
    ("faiss", as_faiss(wide(9, 2))[:-1], "must be a whole index of FAISS, got: "),
    ("faiss", as_faiss(wide(9, 2))[:37] + struct.pack("<Q", 2**38), "must be a whole index of FAISS, got: "),
    ("faiss", as_faiss(wide(3, 2), [4, 5, 4]), "column 'id' of .*v.faiss must hold distinct ids, got 4 again in row 2"),
    ("faiss", as_faiss(NAN), "v.faiss must hold numbers that are finite in float32, got nan in row 1"),
    (
        "faiss",
        as_faiss(wide(9, 2), list(range(9))).replace(struct.pack("<q", 9), struct.pack("<q", 7), 1),
        r"match ntotal \(7\)",
    ),
    ("faiss", faiss.serialize_index(faiss.IndexFlatIP(3)).tobytes(), "must hold at least 1 row, got 0"),
]


@pytest.mark.parametrize(("format", "data", "message"), BAD_FILES)
def test_files_that_cannot_be_read(tmp_path: Path, format: str, data: bytes, message: str) -> None:
    path = tmp_path / f"v.{format}"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": [1], "vectors": [[1.0]]}, "v.parquet must have a column 'vector', got id, vectors"),
        ({"vector": [1.0]}, "column 'vector' of .* must be of type list of floats or .*, got double"),
        ({"vector": [["a"]]}, "column 'vector' of .* must be of type list of floats or .*, got list<.*string>"),
        ({"vector": [[[1.0, 2.0]]]}, r"of type list of floats or .*, got list<.*list<.*double>>"),
        ({"vector": [[1.0], [1.0, 2.0]]}, "must hold 1 numbers in every row as in row 0, got 2 in row 1"),
        ({"vector": [[1.0], None]}, "column 'vector' of .* must hold numbers, got null in row 1"),
        ({"vector": [[1.0], [None]]}, "column 'vector' of .* must hold numbers, got null in row 1"),
        ({"vector": [[1.0], [2.0], [np.inf]]}, "must hold numbers that are finite in float32, got inf in row 2"),
        ({"vector": pa.array([[]], pa.list_(pa.float32()))}, "must hold rows of 1 to 65536 numbers, got a width of 0"),
        ({"vector": pa.array([None], pa.list_(pa.float32()))}, "column 'vector' of .* hold numbers, got null in row 0"),
        ({"vector": pa.array([], pa.list_(pa.float32()))}, "v.parquet must hold at least 1 row, got 0"),
        ({"vector": [[1.0]] * 2, "id": [3, 3]}, "column 'id' of .* must hold distinct ids, got 3 again in row 1"),
        (
            {"vector": [[1.0]] * 2, "item_id": ["a", None]},
            "ids of .* must have a value in every row, got null in row 1",
        ),
        ({"vector": [[1.0]], "id": [1.5]}, "ids of .* must be of type integer or string, got double"),
        (
            {"vector": [[1.0]], "id": pa.array([2**63], pa.uint64())},
            "must be integers of 64 bits or strings, got: .*9223372036854775808",
        ),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "v.parquet")


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"test": wide(3, 2)}, "v.h5 must have a data set 'train', got test"),
        ({}, "v.h5 must have a data set 'train', got none"),
        ({"train/inner": wide(3, 2)}, "v.h5 must have a data set 'train', got train"),
        ({"train": wide(3, 2)[0]}, r"'train' of .*v.h5 must be of two dimensions, .*, got the shape \(2,\)"),
        ({"train": np.array([[b"a"]])}, r"'train' of .*v.h5 must hold integers or floats, got the type \|S1"),
        ({"train": wide(0, 2)}, "'train' of .*v.h5 must hold at least 1 row, got 0"),
        ({"train": NAN}, "'train' of .*v.h5 must hold numbers that are finite in float32, got nan in row 1"),
        ({"train": NAN, "test": wide(3, 0)}, "'test' of .*v.h5 must hold rows of 1 to 65536 numbers, got a width of 0"),
        ({"train": NAN, "neighbors": wide(3, 1)}, "'neighbors' of .*v.h5 must hold integers, got the type float32"),
    ],
)
def test_hdf5_that_cannot_be_read(tmp_path: Path, datasets: dict[str, np.ndarray], message: str) -> None:
    with h5py.File(tmp_path / "v.h5", "w") as file:
        for name, values in datasets.items():
            file[name] = values
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "v.h5")


def test_files_of_one_table(tmp_path: Path) -> None:
    """A folder of items that someone else has made: its files must agree."""

    def opened(**second: Any) -> np.ndarray:
        items = tmp_path / "items"
        items.mkdir(exist_ok=True)
        pq.write_table(pa.table({"item_id": ["a"], "vector": [[1.0, 2.0]]}), items / "1.parquet")
        pq.write_table(pa.table(second), items / "2.parquet")
        return np.concatenate(list(open_items(Storage(str(tmp_path))).blocks()))

    assert opened(vector=[[3, 4]], item_id=pa.array(["b"], pa.large_string())).tolist() == [[1, 2], [3, 4]]
    for second, message in [
        ({"vector": [[3.0, 4.0]]}, "2.parquet must have a column 'item_id' as .*1.parquet has, got none"),
        ({"item_id": ["b"]}, "2.parquet must have a column 'vector', got item_id"),
        ({"item_id": [7], "vector": [[3.0, 4.0]]}, "2.parquet must be of type large_string as in .*, got int64"),
        ({"item_id": ["a"], "vector": [[3.0, 4.0]]}, "must hold distinct ids, got 'a' again in row 0"),
        ({"item_id": ["b"], "vector": [[3.0]]}, "must hold 2 numbers in every row as in row 0 of .*1.parquet, got 1"),
        ({"item_id": ["b"], "vector": [7.0]}, "column 'vector' of .*2.parquet must be of type list of .*, got double"),
    ]:
        with pytest.raises(ValueError, match=message):
            opened(**second)


def test_hdf5_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    write_vectors(str(path), 3, [rows(5000, 3)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"must be a whole HDF5 file, got: .*truncated"):
        read(path)


@settings(max_examples=200)
@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_a_damaged_file_is_read_or_refused(format: str, data: st.DataObject) -> None:
    """Whatever byte is wrong, nothing else is raised, and no more is read than there is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"v.{format}"
        write_vectors(str(path), 3, [rows(20, 3)])
        damaged = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(damaged) - 1) | st.integers(0, min(len(damaged) - 1, 160)))
        damaged[place] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged[: data.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))])
        with contextlib.suppress(ValueError):
            for block in itertools.islice(open_vectors(str(path)).blocks(8), 4):
                assert block.size <= 8 * 65_536


@pytest.mark.parametrize("format", ["npy", "fvecs", "fbin"])
def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"v.{format}"
    write_vectors(str(path), 3, [rows(5, 3)])
    blocks = open_vectors(str(path)).blocks(2)
    next(blocks)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    with pytest.raises(ValueError, match="must keep its 5 rows while it is read, got only 4"):
        list(blocks)


def test_what_is_no_file_of_vectors(tmp_path: Path) -> None:
    for ending in ("bin", "ivecs", "txt"):
        with pytest.raises(ValueError, match=f"vectors are read from .npy, .fvecs, .*, got .*v.{ending}': choose one"):
            open_vectors(str(tmp_path / f"v.{ending}"))
    with pytest.raises(ValueError, match=r"vectors are read from .*, got 'pickle': choose one"):
        open_vectors(str(tmp_path / "v.npy"), format="pickle")
    with pytest.raises(ValueError, match=r"vectors are written as .npy, .*, got .*v.u8bin': choose one"):
        write_vectors(str(tmp_path / "v.u8bin"), 3, [rows(2, 3)])
    with pytest.raises(ValueError, match=r"lists of neighbors are read from .ivecs, .*, got .*v.npy': choose one"):
        open_lists(str(tmp_path / "v.npy"))
    with pytest.raises(ValueError, match=r"lists of neighbors are written as .ivecs, .ibin, got .*v.h5': choose one"):
        write_lists(str(tmp_path / "v.h5"), 3, [])
    with pytest.raises(NotFoundError, match=r"v.npy must exist, got no such file"):
        open_vectors(str(tmp_path / "v.npy"))
    (tmp_path / "v.npy").mkdir()
    with pytest.raises(ValueError, match=r"v.npy must be a file, got a folder"):
        open_vectors(str(tmp_path / "v.npy"))
    with pytest.raises(ValueError, match=r"s3://bucket/v.npy must be a file of this machine: copy it here first"):
        open_vectors("s3://bucket/v.npy")
    write_vectors(str(tmp_path / "v.fbin"), 3, [rows(2, 3)])
    with pytest.raises(ValueError, match=r"name must be left out for .fbin, which holds one array .*, got 'train'"):
        open_vectors(str(tmp_path / "v.fbin"), name="train")
    with pytest.raises(ValueError, match="rows of a block must be at least 1, got 0"):
        next(open_vectors(str(tmp_path / "v.fbin")).blocks(0))
    (tmp_path / "v.dat").write_bytes((tmp_path / "v.fbin").read_bytes())
    assert np.array_equal(read(tmp_path / "v.dat", format="fbin"), rows(2, 3))
    write_vectors(str(tmp_path / "new" / "V.FBIN"), 3, [rows(2, 3)])
    assert np.array_equal(read(tmp_path / "new" / "V.FBIN"), rows(2, 3))


@pytest.mark.parametrize(("package", "format", "pip"), [("h5py", "h5", "h5py"), ("faiss", "faiss", "faiss-cpu")])
def test_a_package_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, format: str, pip: str
) -> None:
    (tmp_path / f"v.{format}").write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError, match=f"{package} must be installed for v.{format}, got none: run `pip install {pip}"
    ):
        read(tmp_path / f"v.{format}")


def test_neighbors_with_their_distances(tmp_path: Path) -> None:
    lists = np.arange(6, dtype=np.int32).reshape(3, 2)
    (tmp_path / "v.ibin").write_bytes(struct.pack("<ii", 3, 2) + lists.tobytes() + rows(3, 2).tobytes())
    for size in (1, 2, 3, 9):
        assert np.array_equal(np.concatenate(list(open_lists(str(tmp_path / "v.ibin")).blocks(size))), lists)
    (tmp_path / "v.ibin").write_bytes(struct.pack("<ii", 3, 2) + lists.tobytes()[:-1])
    with pytest.raises(ValueError, match="must have 32 bytes, for 3 rows of 2 int32, got 31: it was cut off"):
        open_lists(str(tmp_path / "v.ibin"))


# Indexes of FAISS.

WIDTH, NUM_ROWS = 8, 300


def written_index(path: Path, index: Any, vectors: np.ndarray, ids: np.ndarray | None = None) -> Path:
    index.train(vectors)
    if ids is None:
        index.add(vectors)
    else:
        index.add_with_ids(vectors, ids)
    faiss.write_index(index, str(path))
    return path


@pytest.mark.parametrize(
    ("description", "error"),
    [
        ("Flat", 0),
        ("IVF4,Flat", 0),
        ("HNSW8", 0),
        ("PQ4x4,RFlat", 0),
        ("OPQ4,Flat", 1e-5),
        ("OPQ4,IVF4,Flat", 1e-5),
        ("SQ8", 0.03),
        ("IVF4,SQ8", 0.03),
        ("HNSW8,SQ8", 0.03),
        ("SQfp16", 2e-3),
        ("PQ4x4", 4),
        ("IVF4,PQ4x4", 4),
    ],
)
@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_vectors_that_an_index_gives_back(tmp_path: Path, description: str, error: float, metric: str) -> None:
    vectors = rows(NUM_ROWS, WIDTH)
    kind = {"dot": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}[metric]
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, description, kind), vectors)
    opened = open_vectors(str(path))
    assert (opened.num_rows, opened.width, opened.ids, opened.distance) == (NUM_ROWS, WIDTH, None, metric)
    assert np.abs(read(path, 7) - vectors).max() <= error
    assert np.abs(read(path) - vectors).mean() <= error / 4


@pytest.mark.parametrize("description", ["IDMap,Flat", "IDMap2,SQ8", "IVF4,Flat", "IDMap,IVF4,Flat", "OPQ4,IVF4,Flat"])
def test_ids_of_an_index(tmp_path: Path, description: str) -> None:
    vectors = rows(NUM_ROWS, WIDTH)
    ids = np.random.default_rng(1).permutation(NUM_ROWS) * 3 + 7
    path = written_index(tmp_path / "v.index", faiss.index_factory(WIDTH, description), vectors, ids)
    opened = open_vectors(str(path))
    assert opened.ids is not None
    found = dict(zip(opened.ids.to_pylist(), np.concatenate(list(opened.blocks(7))), strict=True))
    assert sorted(found) == sorted(ids.tolist())
    assert max(np.abs(found[number] - vector).max() for number, vector in zip(ids, vectors, strict=True)) < 0.03


@pytest.mark.parametrize(
    ("description", "kind"),
    [("LSH", "IndexLSH"), ("IVF4,PQ4x4fs", "IndexIVFPQFastScan"), ("PCA4,IVF4,PQ4x4fs", "IndexIVFPQFastScan")],
)
def test_an_index_that_does_not_give_vectors_back(tmp_path: Path, description: str, kind: str) -> None:
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, description), rows(NUM_ROWS, WIDTH))
    with pytest.raises(
        ValueError, match=rf"must be an index that gives its vectors back \(IndexFlat, .*\), got {kind}:"
    ):
        open_vectors(str(path))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("OPQ4,Flat", r"must be a whole index of FAISS, got \[\(299, 8\), \(299, 8\)\] and 300 vectors within it"),
        ("IVF4,Flat", "must have 299 vectors in its lists, got 300"),
    ],
)
def test_an_index_that_miscounts_its_vectors(tmp_path: Path, description: str, message: str) -> None:
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, description), rows(NUM_ROWS, WIDTH))
    index = faiss.read_index(str(path))
    index.ntotal -= 1
    faiss.write_index(index, str(path))
    with pytest.raises(ValueError, match=message):
        open_vectors(str(path))


def test_an_index_with_ids_of_two_kinds(tmp_path: Path) -> None:
    inner = faiss.index_factory(WIDTH, "IVF4,Flat")
    index = faiss.IndexIDMap(inner)
    path = written_index(tmp_path / "v.faiss", index, rows(NUM_ROWS, WIDTH), np.arange(NUM_ROWS))
    inner.reset()
    inner.add_with_ids(rows(NUM_ROWS, WIDTH), np.arange(NUM_ROWS) + 9)
    faiss.write_index(index, str(path))
    with pytest.raises(ValueError, match="must have one map of ids, got an IndexIDMap over an IVF with ids of its own"):
        open_vectors(str(path))


def test_an_id_of_an_index_twice(tmp_path: Path) -> None:
    ids = np.arange(NUM_ROWS) // 2
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, "IVF4,Flat"), rows(NUM_ROWS, WIDTH), ids)
    with pytest.raises(ValueError, match=r"column 'id' of .*v.faiss must hold distinct ids, got . again in row"):
        open_vectors(str(path))


def test_reading_an_index_leaves_the_limits_of_faiss_as_they_were(tmp_path: Path) -> None:
    before = faiss.get_deserialization_vector_byte_limit()
    (tmp_path / "v.faiss").write_bytes(as_faiss(rows(2, 3)))
    open_vectors(str(tmp_path / "v.faiss"))
    assert faiss.get_deserialization_vector_byte_limit() == before


# Memory.


def test_the_size_of_a_block() -> None:
    assert rows_within(BLOCK_BYTES, 1) == BLOCK_ROWS
    assert rows_within(BLOCK_BYTES, 128) == 2**14
    assert rows_within(BLOCK_BYTES, 65_536) == 32
    assert rows_within(100, 65_536) == 1


MEMORY = """
import re, sys
from pathlib import Path
import faiss, h5py, pyarrow
from rails_ray.data.vector_files.formats import open_vectors, write_vectors

def resident():
    if sys.argv[2].endswith("parquet"):
        return pyarrow.default_memory_pool().max_memory() / 1e6
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3

def blocks(path):
    global most
    for block in open_vectors(path).blocks():
        most = max(most, resident())
        yield block

next(open_vectors(sys.argv[1]).blocks(1))
most = before = resident()
if sys.argv[2] != sys.argv[1]:
    write_vectors(sys.argv[2], open_vectors(sys.argv[1]).width, blocks(sys.argv[1]))
num_rows = sum(map(len, blocks(sys.argv[2])))
print(num_rows, most - before)
"""


@pytest.mark.parametrize("format", ["fbin", "npy", "fvecs", "faiss", "hdf5", "parquet"])
def test_memory_holds_a_block(tmp_path: Path, format: str) -> None:
    """200 MB are written and read, and memory grows by less than 64 MB. For Parquet it is Arrow's that is measured, and
    the ids need some too. FAISS holds an index that it reads."""
    width, num_rows = 100, 500_000
    with (tmp_path / "v.fbin").open("wb") as file:
        file.write(struct.pack("<ii", num_rows, width))
        file.truncate(8 + num_rows * width * 4)
    paths = [str(tmp_path / name) for name in ("v.fbin", f"v.{format}")]
    done = subprocess.run([sys.executable, "-c", MEMORY, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, grown_mb = done.stdout.split()
    assert int(found) == num_rows
    assert float(grown_mb) < {"parquet": 96, "faiss": 264}.get(format, 64)


# A data folder.


def neighbors(items: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(unit(queries) @ unit(items).T), axis=1)[:, :k]


def nearest(items: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(((queries[:, None] - items[None]) ** 2).sum(2), axis=1)[:, :k]


def bench_file(path: Path, items: np.ndarray, distance: str | bytes, truth: np.ndarray, queries: np.ndarray) -> str:
    with h5py.File(path, "w") as file:
        file.attrs["distance"] = distance
        file["train"], file["test"], file["neighbors"] = items, queries, truth.astype(np.int32)
        file["distances"] = rows(*truth.shape)
    return str(path)


def test_a_data_folder_of_a_file_of_ann_benchmarks(tmp_path: Path) -> None:
    items, queries = rows(50, 4), rows(6, 4, seed=1)
    truth = neighbors(items, queries, 3)
    source = bench_file(tmp_path / "glove.hdf5", items, "angular", truth, queries)
    folder = Storage(str(tmp_path / "data"))
    told = import_folder(source, folder)
    assert (told.num_items, told.width, told.num_queries, told.num_pairs, told.distance) == (50, 4, 6, 18, "angular")
    least, most = np.linalg.norm(items, axis=1).min(), np.linalg.norm(items, axis=1).max()
    assert str(told) == (
        f"50 items of width 4 and of lengths {least:.4g} to {most:.4g}, 6 queries, 18 neighbors; "
        "search by cosine orders these items as the file's distance, angular"
    )
    found = pq.read_table(tmp_path / "data" / "items" / "part-000000000000.parquet")
    assert found["item_id"].to_pylist() == list(range(50))
    assert found.schema.field("vector").type == pa.list_(pa.float32(), 4)
    assert found["vector"].to_pylist() == items.tolist()
    asked = pq.read_table(tmp_path / "data" / "queries.parquet").to_pydict()
    assert asked == {"query_id": list(range(6)), "vector": queries.tolist(), "split": ["test"] * 6}
    pairs = pq.read_table(tmp_path / "data" / "relevance.parquet").to_pydict()
    assert list(zip(pairs["query_id"], pairs["rank"], pairs["item_id"], strict=True)) == [
        (query, rank, truth[query, rank]) for query in range(6) for rank in range(3)
    ]
    assert sorted(folder.list(".")) == ["items", "queries.parquet", "relevance.parquet"]
    assert folder.list("items") == ["part-000000000000.parquet"]


def test_a_data_folder_is_a_data_set_of_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`numbers` reads it: items in several parts, with ids that are strings."""
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 4 * 20)
    items, queries = rows(50, 4), rows(6, 4, seed=1)
    truth = neighbors(items, queries, 2)
    ids = [f"item-{row}" for row in range(50)]
    write_vectors(str(tmp_path / "items.parquet"), 4, cut(items, 7), ids)
    write_vectors(str(tmp_path / "queries.npy"), 4, [queries])
    write_lists(str(tmp_path / "truth.ivecs"), 2, [truth])
    folder = tmp_path / "data"
    import_folder(
        str(tmp_path / "items.parquet"),
        Storage(str(folder)),
        queries=str(tmp_path / "queries.npy"),
        truth=str(tmp_path / "truth.ivecs"),
        distance="cosine",
    )
    assert sorted(path.name for path in (folder / "items").iterdir()) == [
        f"part-{first:012d}.parquet" for first in (0, 20, 40)
    ]
    asked = pq.read_table(folder / "queries.parquet")
    splits = pa.array(["train", "train", "valid", "valid", "test", "test"])
    pq.write_table(asked.set_column(2, "split", splits), folder / "queries.parquet")
    data = numbers.read(Sources(str(folder)), ["vector"])
    assert list(data.item_ids) == ids
    assert np.array_equal(np.asarray(data.item_inputs), items)
    assert np.array_equal(np.asarray(data.queries["test"].inputs), queries[4:])
    assert [line.tolist() for line in data.queries["test"].relevant] == np.sort(truth[4:], axis=1).tolist()


@pytest.mark.parametrize("format", WRITERS)
def test_a_folder_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 3 * 4)
    source, folder = tmp_path / f"v.{format}", Storage(str(tmp_path / "data"))
    ids = {"parquet": list("abcdefghij"), "faiss": list(range(9, -1, -1))}.get(format)
    write_vectors(str(source), 3, [rows(10, 3)], ids)
    import_folder(str(source), folder)
    assert len(folder.list("items")) == 3
    opened = open_items(folder)
    assert opened.ids is not None
    assert opened.ids.to_pylist() == (ids or list(range(10)))
    assert (opened.num_rows, opened.width) == (10, 3)
    export_folder(folder, str(tmp_path / f"again.{format}"))
    assert np.array_equal(read(tmp_path / f"again.{format}"), rows(10, 3))
    again = open_vectors(str(tmp_path / f"again.{format}")).ids
    assert ids is None or (again is not None and again.to_pylist() == ids)
    export_folder(folder, str(tmp_path / "plain.npy"), use_ids=False)
    assert np.array_equal(np.load(tmp_path / "plain.npy"), rows(10, 3))


def test_strings_are_refused_where_they_have_no_room(tmp_path: Path) -> None:
    write_vectors(str(tmp_path / "v.parquet"), 3, [rows(2, 3)], ["a", "b"])
    folder = Storage(str(tmp_path / "data"))
    import_folder(str(tmp_path / "v.parquet"), folder)
    with pytest.raises(
        ValueError, match="must be its row numbers, as its format holds no ids, got 'a' in row 0: write"
    ):
        export_folder(folder, str(tmp_path / "v.npy"))


def euclidean(tmp_path: Path, items: np.ndarray, distance: str = "euclidean") -> str:
    queries = rows(6, 4, seed=1)
    return bench_file(tmp_path / "sift.hdf5", items, distance, nearest(items, queries, 3), queries)


@pytest.mark.parametrize("distance", ["euclidean", "dot", "hamming"])
def test_neighbors_by_another_distance_are_refused(tmp_path: Path, distance: str) -> None:
    source, folder = euclidean(tmp_path, rows(50, 4), distance), Storage(str(tmp_path / "data"))
    with pytest.raises(
        ValueError, match=f"must be the neighbors by cosine, got those by the distance '{distance}' of i"
    ):
        import_folder(source, folder)
    assert folder.list("items") == folder.list("queries") == []
    told = import_folder(source, folder, use_truth=False)
    assert str(told).endswith(f"orders these items otherwise than the file's distance, {distance}")
    assert (told.num_queries, told.num_pairs) == (6, 0)
    assert not folder.exists("relevance.parquet")


@pytest.mark.parametrize("length", [1, 7.5])
def test_euclidean_neighbors_of_items_of_one_length_are_those_by_cosine(tmp_path: Path, length: float) -> None:
    items, queries = (unit(rows(50, 4)) * length).astype(np.float32), rows(6, 4, seed=1)
    assert np.array_equal(nearest(items, queries, 3), neighbors(items, queries, 3))
    folder = Storage(str(tmp_path / "data"))
    told = import_folder(euclidean(tmp_path, items), folder)
    assert str(told).endswith("orders these items as the file's distance, euclidean")
    assert f"of length {length}" in str(told)
    assert folder.exists("relevance.parquet")


@given(st.integers(0, 99), st.sampled_from(["euclidean", "dot"]), st.booleans())
def test_what_is_called_cosine_orders_as_cosine(seed: int, distance: str, are_equal: bool) -> None:
    items, queries = rows(9, 3, seed), rows(4, 3, seed + 1)
    items = unit(items) * 2 if are_equal else items
    lengths = Lengths()
    for block in cut(items, 4):
        lengths.add(block)
    order = nearest(items, queries, 9) if distance == "euclidean" else np.argsort(-queries @ items.T, axis=1)
    is_same = np.array_equal(order, neighbors(items, queries, 9))
    assert is_same or not is_cosine(distance, lengths)
    assert is_cosine(distance, lengths) == are_equal


def test_neighbors_without_a_distance(tmp_path: Path) -> None:
    def imported(items: np.ndarray, name: str, **options: Any) -> Any:
        queries = rows(6, 4, seed=1)
        write_vectors(str(tmp_path / "items.fvecs"), 4, [items])
        write_vectors(str(tmp_path / "queries.fvecs"), 4, [queries])
        write_lists(str(tmp_path / "truth.ivecs"), 3, [neighbors(items, queries, 3)])
        paths = {"queries": str(tmp_path / "queries.fvecs"), "truth": str(tmp_path / "truth.ivecs")}
        return import_folder(str(tmp_path / "items.fvecs"), Storage(str(tmp_path / name)), **{**paths, **options})

    with pytest.raises(
        ValueError, match=r"or all items of one length, got items of lengths .* and no word on the dist"
    ):
        imported(rows(50, 4), "unknown")
    with pytest.raises(ValueError, match="got those by the distance 'euclidean' of items of lengths"):
        imported(rows(50, 4), "unknown", distance="euclidean")
    assert imported(rows(50, 4), "angular", distance="angular").num_pairs == 18
    assert imported(unit(rows(50, 4)), "normal").num_pairs == 18
    with pytest.raises(ValueError, match="distance must be one of angular, cosine, dot, euclidean, ip, l2, got 'l3'"):
        imported(rows(50, 4), "unknown", distance="l3")
    with pytest.raises(ValueError, match=r"distance must come with the neighbors .*, got 'dot' and none"):
        imported(rows(50, 4), "unknown", distance="dot", truth=None)
    with pytest.raises(ValueError, match=r"truth.ivecs must come with the queries .*, got none: give them too"):
        imported(rows(50, 4), "unknown", queries=None)
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        imported(rows(50, 4), "unknown", split="dev")
    source = bench_file(tmp_path / "b.h5", rows(50, 4), b"angular", np.zeros((6, 2), int), rows(6, 4))
    with pytest.raises(ValueError, match=r"distance must be 'angular' as .* says, got 'dot'"):
        imported(rows(50, 4), "unknown", truth=source, distance="dot")
    assert imported(rows(50, 4), "of both", queries=source, truth=source).num_pairs == 12


def test_neighbors_beyond_64_bits(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["neighbors"] = np.array([[1, 2], [3, 2**63]], np.uint64)
    with pytest.raises(ValueError, match=r"must hold integers below 2\*\*63, got 9223372036854775808 in row 1"):
        list(open_lists(str(tmp_path / "v.h5")).blocks())


def test_a_data_folder_on_s3(tmp_path: Path, s3: str) -> None:
    folder = Storage(f"{s3}/data")
    source = bench_file(tmp_path / "v.h5", rows(50, 4), "angular", np.zeros((6, 2)), rows(6, 4))
    import_folder(source, folder)
    assert folder.list(".") == ["items", "queries.parquet", "relevance.parquet"]
    export_folder(folder, str(tmp_path / "v.fbin"))
    assert np.array_equal(read(tmp_path / "v.fbin"), rows(50, 4))
    with pytest.raises(ValueError, match="must hold no data set yet, got a table of items: choose another folder"):
        import_folder(source, folder)


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    folder, items, queries = Storage(str(tmp_path / "data")), rows(50, 4), rows(6, 4)
    cases = [
        (np.zeros((6, 2), int) - 1, queries, "must hold rows of items, 0 to 49, got -1 in row 0"),
        (np.full((6, 2), 50), queries, "must hold rows of items, 0 to 49, got 50 in row 0"),
        (np.zeros((5, 2), int), queries, "must hold a list for each of the 6 rows of .*, got 5"),
        (np.zeros((6, 2), int), rows(6, 5), "'test' of .* must hold rows of 4 numbers as 'train' of .*, got 5"),
    ]
    for truth, asked, message in cases:
        source = bench_file(tmp_path / "v.h5", items, "angular", truth, asked)
        with pytest.raises(ValueError, match=message):
            import_folder(source, folder)
        assert folder.list(".") in ([], ["items"])
        assert folder.list("items") == []


def test_a_folder_that_holds_a_data_set_is_left_alone(tmp_path: Path) -> None:
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(2, 3)])
    for name in ("items", "queries", "relevance"):
        folder = Storage(str(tmp_path / f"with-{name}"))
        folder.write(f"{name}.parquet", b"theirs")
        with pytest.raises(ValueError, match=f"must hold no data set yet, got a table of {name}: choose another"):
            import_folder(str(tmp_path / "v.npy"), folder)
        assert folder.list(".") == [f"{name}.parquet"]


def test_an_import_that_was_cut_off_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 3 * 4)
    folder = Storage(str(tmp_path / "data"))
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(10, 3)])
    with monkeypatch.context() as cut_off:
        cut_off.setattr("rails_ray.data.vector_files.folder.as_column", lambda block: stop(block))
        with pytest.raises(KeyboardInterrupt):
            import_folder(str(tmp_path / "v.npy"), folder)
    assert folder.list("items") == ["import-not-finished.parquet", "part-000000000000.parquet"]
    with pytest.raises(ValueError, match=r"items/import-not-finished.parquet must be a Parquet file"):
        numbers.item_files(Sources(str(folder)), ["vector"])
    with pytest.raises(DamagedError, match="must hold all items of an import, got one that was cut off: import them a"):
        open_items(folder)
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(3, 3)])
    import_folder(str(tmp_path / "v.npy"), folder)
    assert open_items(folder).num_rows == 3
    assert folder.list("items") == ["part-000000000000.parquet"]


def stop(block: np.ndarray) -> Any:
    """The column of a block, but the second one is where Ctrl-C comes."""
    from rails_ray.data.vectors import as_column

    if not np.array_equal(block, rows(10, 3)[:4]):
        raise KeyboardInterrupt
    return as_column(block)


def test_two_imports_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Storage(str(tmp_path / "data"))
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(2, 3)])
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(
            "rails_ray.data.vector_files.folder.Lengths.add", lambda *_: folder.write(UNFINISHED, b"other")
        )
        with pytest.raises(
            ConflictError, match="must be filled by one import at a time, got another one: import again"
        ):
            import_folder(str(tmp_path / "v.npy"), folder)


def test_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"items.parquet must exist, got no such file, and no folder items"):
        open_items(Storage(str(tmp_path)))
    assert PART_BYTES == 2**26
    assert set(WRITERS) <= set(READERS)
