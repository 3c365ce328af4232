"""Files of vectors that other tools write and read, and the data folder that they become.

| member       | what it is                                                                                       |
|--------------|--------------------------------------------------------------------------------------------------|
| `formats`    | opens and writes a file of any format, which its ending or the caller names                      |
| `npy`        | `.npy`, NumPy's array                                                                            |
| `vecs`       | `.fvecs`, `.bvecs`, `.ivecs` (TEXMEX): the width before each row                                 |
| `bins`       | `.fbin`, `.f16bin`, `.u8bin`, `.i8bin`, `.ibin` (big-ann-benchmarks): one header, then rows      |
| `parquet`    | `.parquet`: a column of ids and a column of vectors                                              |
| `hdf5`       | `.hdf5`, `.h5` (ann-benchmarks): items, queries and their neighbors; needs h5py                  |
| `faiss_file` | `.faiss`, `.index`: flat, scalar-quantised, PQ, IVF, HNSW, with ids or without; read needs faiss |
| `rows`       | an open file: rows of one width, in blocks, each number checked                                  |
| `writing`    | what is written: blocks and ids, checked; a file that appears whole or not at all                |
| `optional`   | packages that only some formats need                                                             |
| `folder`     | a data folder from a file, and a file from a data folder                                         |
| `truth`      | neighbors as relevance; which distances order items as cosine does                               |

Memory holds a block of rows, and the ids if the file has any; FAISS holds an index that it reads. No format unpickles.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rails_ray.data.vector_files.rows import VectorFile
from rails_ray.data.vector_files.writing import Labelled


class Reader(Protocol):
    """Opens a file of one format."""

    def __call__(self, path: Path, name: str | None) -> VectorFile:
        """The file, its header checked.

        Args:
            name: which vectors, in a format that names them; None for the usual ones.

        Raises:
            ValueError: if the file is not of the format, or was cut off.
        """


class Writer(Protocol):
    """Writes a file of one format."""

    def __call__(self, path: Path, width: int, blocks: Iterator[Labelled]) -> None:
        """Write all blocks [n, width]. They are checked, and have ids only if the format can hold them."""
