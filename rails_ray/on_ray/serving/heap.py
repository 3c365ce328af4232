"""Give back the memory of a large answer, which the C library would keep for the next one."""

import asyncio
import ctypes

DELAY_S = 1.0  # time for an answer to be sent and freed
_is_due = False


def give_back_soon() -> None:
    """Give freed memory back to the system after DELAY_S. Does nothing without glibc."""
    global _is_due
    if not _is_due:
        _is_due = True
        loop = asyncio.get_running_loop()
        loop.call_later(DELAY_S, lambda: loop.run_in_executor(None, trim))


def trim() -> None:
    global _is_due
    _is_due = False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
