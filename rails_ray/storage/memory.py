"""Memory for a large file."""

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes of a cache line: what begins at a multiple of it is read fastest


def aligned(num_bytes: int, place: int = 0) -> NDArray[np.uint8]:
    """Memory whose byte `place` lies at a multiple of 64. numpy asks the system for large pages for it."""
    memory = np.empty(num_bytes + LINE - 1, np.uint8)
    start = -(memory.ctypes.data + place) % LINE
    return memory[start : start + num_bytes]
