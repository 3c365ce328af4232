"""FAISS, which indexes and quantizers use where it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.errors import UnsupportedError

MOST_SQUARES = 2.0**125  # of a sample's numbers together: a squared distance of two vectors is at most 4 times as much


def has_faiss() -> bool:
    """Return whether it is installed."""
    return find_spec("faiss") is not None


def has_cagra() -> bool:
    """Return whether it is installed and was built with cuVS, which has a graph for GPUs."""
    return has_faiss() and hasattr(faiss_library(), "GpuIndexCagra")


def faiss_library() -> Any:
    """The package, whose own types leave out half of it.

    Raises:
        UnsupportedError: if it is not installed, or cannot be loaded.
    """
    try:
        import faiss
    except ImportError as error:
        raise UnsupportedError(
            "an index of FAISS needs the package faiss, which is not installed: install faiss-cpu or faiss-gpu"
        ) from error
    except RuntimeError as error:  # of a build for GPUs that lacks its CUDA libraries
        raise UnsupportedError(
            f"an index of FAISS needs a package faiss that can be loaded, got an error ({str(error).rstrip('.')}): "
            "install what it names, or faiss-cpu"
        ) from error
    return faiss


def check_short(sample: NDArray[np.float32]) -> None:
    """Check before k-means by l2 that no squared distance overflows, which ends the process.

    Raises:
        ValueError: if one may.
    """
    if not np.vdot(sample, sample) <= MOST_SQUARES:
        raise ValueError(
            f"sample must have a sum of squares of at most {MOST_SQUARES:.2g}, so that float32 can hold distances, got "
            "more: scale its vectors down"
        )


@contextmanager
def training(what: str, sample: NDArray[np.float32]) -> Iterator[None]:
    """Let FAISS train inside the block, by one thread.

    FAISS checks little of a sample. Some errors end the process or write over its memory, and must be prevented before;
    the text of the others names functions and lines of FAISS, and is replaced here.

    Args:
        what: the thing that is trained, for the message.

    Raises:
        ValueError: in place of FAISS's own error.
    """
    try:
        with one_thread():
            yield
    except (RuntimeError, MemoryError) as error:
        raise ValueError(
            f"FAISS must be able to train {what} on {len(sample)} vectors of {sample.shape[-1]} numbers, got an error: "
            "take more vectors, or something smaller"
        ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """One OpenMP thread of FAISS for what this thread does: sums and links then come in one order."""
    faiss = faiss_library()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def as_float32(vectors: Float[Tensor, "N d"]) -> NDArray[np.float32]:
    """Return vectors as FAISS reads them."""
    return vectors.detach().to("cpu").float().contiguous().numpy()


def finite(vectors: Float[Tensor, "N d"], what: str) -> NDArray[np.float32]:
    """Return vectors as FAISS reads them; they must be finite.

    Raises:
        ValueError: if a number is NaN or infinite.
    """
    values = as_float32(vectors)
    is_bad = ~np.isfinite(values).all(axis=1)
    if is_bad.any():
        raise ValueError(f"{what} must be finite, got NaN or infinity in row {int(is_bad.argmax())}")
    return values
