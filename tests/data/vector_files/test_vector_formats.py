"""Files of vectors equal those made by hand, or by the tool whose format it is, and come back a block at a time."""

import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.vector_files import bins
from rails_ray.data.vector_files.formats import WRITERS, export_vectors, open_lists, open_vectors, write_vectors
from rails_ray.data.vector_files.rows import BLOCK_BYTES, BLOCK_ROWS, rows_within
from support.tried import tried
from support.vector_files import (
    WITHOUT_IDS,
    as_faiss,
    as_fbin,
    as_fvecs,
    as_ibin,
    as_ivecs,
    by_hdf5,
    by_numpy,
    cut,
    read,
    rows,
    wide,
)

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 9))


@tried(30)
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


@tried(30)
@given(SHAPES, st.integers(1, 13))
def test_lists_equal_those_made_by_hand(shape: tuple[int, int], size: int) -> None:
    lists = np.random.default_rng(0).integers(-(2**31), 2**31, shape)
    with tempfile.TemporaryDirectory() as folder:
        for format, bytes_of in {"ivecs": as_ivecs, "ibin": as_ibin}.items():
            path = Path(folder) / f"lists.{format}"
            path.write_bytes(bytes_of(lists))
            opened = open_lists(str(path))
            assert (opened.num_rows, opened.width) == shape
            blocks = list(opened.blocks(size))
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
        ([1.5, 2, 3, 4, 5], "ids of .*v.parquet must hold whole numbers, .*, got 1.5 in row 0"),
        ([1, 2, None, 4, 5], "ids of .*v.parquet must have a value in every row, got null in row 2"),
        ([1, "b", 3, 4, 5], "ids of .*v.parquet must be integers of 64 bits or strings, got: .*"),
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


def test_more_rows_than_a_header_can_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "MOST_ROWS", 4)
    with pytest.raises(ValueError, match="must hold at most 4 rows, got 5"):
        write_vectors(str(tmp_path / "v.fbin"), 3, [rows(5, 3)])


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
@pytest.mark.long
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
