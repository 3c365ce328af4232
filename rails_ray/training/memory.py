"""Freed memory that stays with the process."""

import ctypes
import functools

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
MOST = 2**31 - 1  # bytes that may lie free at the end of the heap
LARGEST = 2**25  # bytes of a tensor that the heap holds, the most that glibc allows


@functools.cache
def keep_freed() -> None:
    """Let glibc keep what is freed, in this process and from now on.

    A step allocates and frees the same megabytes over and over. By default glibc returns them to the system each time,
    which then has to fill pages with zeros for the next tensor: a tenth to a quarter of a mixture's step
    (docs/log/training.md). Other C libraries are left as they are.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, MOST)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
