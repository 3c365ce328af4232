"""Vectors that a frozen model gives texts, kept by content, so that the model reads a text once: for training, for
validation, for evaluation, and for each version that is encoded.

    vectors/<digest of the model>/<sha256 of keys>-<sha256 of vectors>.keys       sha256 of each text, 32 bytes
    vectors/<digest of the model>/<sha256 of keys>-<sha256 of vectors>.vectors    their vectors, float32

A file whose bytes are not those of its name counts as absent, and its texts are read again. The folder may be deleted
at any time.

Axes: N texts, D width of a vector.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from rails_ray.errors import NotFoundError, StorageError
from rails_ray.storage.filesystem import Storage

FOLDER = "vectors"
KEY_BYTES = 32

Keys = NDArray[np.uint8]
Vectors = NDArray[np.float32]


class TextVectors:
    """The vectors of one model. A file is for the texts of one call that were not there.

    Args:
        model: digest of everything that decides a vector.
    """

    def __init__(self, storage: Storage, model: str, width: int) -> None:
        self.storage = storage
        self.folder = f"{FOLDER}/{model}"
        self.width = width
        self._keys: dict[str, Keys] = {}  # by the name of the file

    def __call__(self, texts: Sequence[str], read: Callable[[Sequence[str]], Vectors]) -> Vectors:
        """The vectors of texts [N, D].

        Args:
            read: gives the vectors of those that are not kept, each once.
        """
        keys = np.frombuffer(
            b"".join(hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in texts), np.uint8
        )
        keys = keys.reshape(-1, KEY_BYTES)
        found = np.empty((len(texts), self.width), np.float32)
        is_missing = np.ones(len(texts), np.bool_)
        with suppress(StorageError):
            self._fill(keys, found, is_missing)
        rows = np.flatnonzero(is_missing)
        if len(rows):
            _, firsts, places = np.unique(keys[rows], axis=0, return_index=True, return_inverse=True)
            order = np.argsort(firsts)  # as they come, so that a model reads what it would read without this
            distinct = rows[firsts[order]]
            vectors = np.ascontiguousarray(read([texts[row] for row in distinct]), np.float32)
            found[rows] = vectors[np.argsort(order)[places.ravel()]]
            with suppress(StorageError):
                self._add(keys[distinct], vectors)
        return found

    def _fill(self, keys: Keys, found: Vectors, is_missing: NDArray[np.bool_]) -> None:
        """Fill in the vectors that are kept."""
        self._look()
        for name, own in self._keys.items():
            if not is_missing.any():
                return
            order = np.argsort(_heads(own), kind="stable")
            heads = _heads(own)[order]
            places = np.searchsorted(heads, _heads(keys)).clip(max=len(heads) - 1)
            rows = order[places]
            is_here = is_missing & (own[rows] == keys).all(axis=1)
            vectors = self._vectors(name, len(own)) if is_here.any() else None
            if vectors is not None:
                found[is_here] = vectors[rows[is_here]]
                is_missing &= ~is_here

    def _look(self) -> None:
        """Read the keys of files that are new."""
        names = {name.removesuffix(".keys") for name in self.storage.list(self.folder) if name.endswith(".keys")}
        self._keys = {name: own for name, own in self._keys.items() if name in names}
        for name in sorted(names - self._keys.keys()):
            data = self._read(f"{name}.keys", name.partition("-")[0])
            if data:
                self._keys[name] = np.frombuffer(data, np.uint8).reshape(-1, KEY_BYTES)

    def _vectors(self, name: str, num_texts: int) -> Vectors | None:
        data = self._read(f"{name}.vectors", name.partition("-")[2])
        if data is None or len(data) != num_texts * self.width * 4:
            return None
        return np.frombuffer(data, "<f4").reshape(num_texts, self.width)

    def _read(self, name: str, sha256: str) -> bytes | None:
        with suppress(StorageError, NotFoundError):
            data = self.storage.read(f"{self.folder}/{name}")
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
        return None

    def _add(self, keys: Keys, vectors: Vectors) -> None:
        """Keep vectors. Keys come last, as they say that vectors are there."""
        of_keys, of_vectors = keys.tobytes(), vectors.astype("<f4", copy=False).tobytes()
        name = f"{hashlib.sha256(of_keys).hexdigest()}-{hashlib.sha256(of_vectors).hexdigest()}"
        self.storage.write(f"{self.folder}/{name}.vectors", of_vectors)
        self.storage.write(f"{self.folder}/{name}.keys", of_keys)


def _heads(keys: Keys) -> NDArray[np.uint64]:
    """The first 8 bytes of each key, which nearly always tell keys apart."""
    return np.ascontiguousarray(keys[:, :8]).view(np.uint64)[:, 0]
