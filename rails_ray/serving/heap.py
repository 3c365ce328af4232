"""Give back the memory of what was loaded or of a large answer, which Arrow and the C library would keep for later."""

import asyncio
import ctypes

import pyarrow as pa

DELAY_S = 1.0  # time for an answer to be sent and freed
_due_in: asyncio.AbstractEventLoop | None = None  # the loop that will do it


def give_back_soon() -> None:
    """Do `trim` after DELAY_S."""
    global _due_in
    loop = asyncio.get_running_loop()
    if _due_in is not loop:
        _due_in = loop
        loop.call_later(DELAY_S, lambda: loop.run_in_executor(None, trim))


def trim() -> None:
    """Give freed memory back to the system now; the C library's only if it is glibc."""
    global _due_in
    _due_in = None
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
