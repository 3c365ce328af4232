"""Files of vectors that a user can get wrong."""

import contextlib
import itertools
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.vector_files.folder import open_items
from rails_ray.data.vector_files.formats import WRITERS, open_lists, open_vectors, write_vectors
from rails_ray.errors import NotFoundError
from rails_ray.storage.filesystem import Storage
from support.tried import tried
from support.vector_files import (
    as_faiss,
    as_fbin,
    as_fvecs,
    read,
    rows,
    wide,
)


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
        ({"vector": [[1.0], None]}, "column 'vector' of .* must have a value in every row, got null in row 1"),
        ({"vector": [[1.0], [None]]}, "column 'vector' of .* must hold numbers, got null in row 1"),
        ({"vector": [[1.0], [2.0], [np.inf]]}, "must hold numbers that are finite in float32, got inf in row 2"),
        ({"vector": pa.array([[]], pa.list_(pa.float32()))}, "must hold at least 1 number, got none in row 0"),
        (
            {"vector": pa.array([None], pa.list_(pa.float32()))},
            "'vector' of .* a value in every row, got null in row 0",
        ),
        ({"vector": pa.array([], pa.list_(pa.float32()))}, "v.parquet must hold at least 1 row, got an empty table"),
        ({"vector": [[1.0]] * 2, "id": [3, 3]}, "column 'id' of .* must hold distinct ids, got 3 again in row 1"),
        (
            {"vector": [[1.0]] * 2, "item_id": ["a", None]},
            "column 'item_id' of .* must have a value in every row, got null in row 1",
        ),
        ({"vector": [[1.0]], "id": [1.5]}, "column 'id' of .* must hold whole numbers, .*, got 1.5 in row 0"),
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
        ({"vector": [[3.0, 4.0]]}, "2.parquet must have a column 'item_id', got vector"),
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


@pytest.mark.long
def test_each_byte_of_a_parquet_file_may_be_wrong(tmp_path: Path) -> None:
    """Nothing else is raised, such as Arrow's own errors, or StopIteration of a file without the rows of its footer."""
    path = tmp_path / "v.parquet"
    write_vectors(str(path), 3, [rows(20, 3)])
    whole = path.read_bytes()
    num_refused = 0
    for place in range(len(whole)):
        for byte in {0, 1, whole[place] ^ 1, whole[place] ^ 128} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            try:
                list(open_vectors(str(path)).blocks(8))
            except ValueError:
                num_refused += 1
    assert num_refused > len(whole)


@tried()
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
