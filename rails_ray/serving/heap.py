"""Give back memory: what Arrow and the C library would keep for later of what was loaded or of a large answer, and
code that only loading needed."""

import asyncio
import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

MAPS = Path("/proc/self/smaps")  # Linux alone has it
# A private part of memory that is a file's, is not written to, and has no page that differs from the file.
CODE = re.compile(
    r"^(\w+)-(\w+) .-.p \S+ \S+ \S+ +/(?!dev/|anon_hugepage).*\n"
    r"(?:\w+: .*\n)*?Anonymous: +0 kB\n(?:\w+: .*\n)*?Swap: +0 kB$",
    re.MULTILINE,
)
DONT_NEED = 4  # MADV_DONTNEED
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


def give_back_code() -> None:
    """Drop the pages of libraries' code and constants from this process, and of files that it maps to read; those that
    are needed again are read from the system's cache of files, or from the file. Of torch, Arrow and Python some 100 MB
    are read once, at the start.

    Call it while no other thread maps or unmaps files, as one that loads a library does: what takes the place of a file
    would be dropped too.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # what is freed may be a file
    try:
        with suppress(OSError):  # another system has no such list, and some let nobody read it
            parts = [match.groups() for match in CODE.finditer(MAPS.read_text(errors="surrogateescape"))]
            advise = ctypes.CDLL(None).madvise
            for part in parts:
                first, end = (int(address, 16) for address in part)
                advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), DONT_NEED)
    finally:
        if was_enabled:
            gc.enable()
