"""Give memory back that a large answer has taken: the C library keeps what is freed for the next one."""

import asyncio
import ctypes

DELAY_S = 1.0  # until an answer has been sent and is forgotten


def give_back_soon() -> None:
    """Have what is free given back, a moment from now. Of a library other than glibc nothing is asked."""
    loop = asyncio.get_running_loop()
    loop.call_later(DELAY_S, lambda: loop.run_in_executor(None, _trim))


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
