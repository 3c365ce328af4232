"""Where compiled loops run: on the CPU, if numba is installed, in as many threads as torch has.

The loops let go of Python's lock, and ordinary threads run them, each on lines of its own. numba's own parallel loops
bring a thread pool which by default two Python threads must not enter at once, as a server's threads would.

Compiling takes some 4 seconds once per process and dtype of codes, at the first search. Nothing compiled is kept on
disk, as a search must not fail because a folder is read-only or a disk is full, unless NUMBA_CACHE_DIR names a folder
to keep it in.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor


@cache
def loops() -> ModuleType | None:
    """`compiled_loops`; None if numba is not installed, or cannot be imported, which is logged."""
    try:
        from rails_ray.kernels import compiled_loops
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        logging.getLogger(__name__).warning("numba must fit numpy for fast searches of codes, got: %s", error)
        return None
    return compiled_loops


def loops_for(*tensors: Tensor) -> ModuleType | None:
    """`loops()`; None if the tensors are not all on the CPU."""
    return loops() if all(tensor.device.type == "cpu" for tensor in tensors) else None


def in_threads(work: Callable[[int, int], object], num_lines: int) -> None:
    """Calls `work(first, end)` for parts of equal size of the lines 0 .. num_lines - 1, all parts at once: the last one
    here, the others in threads that stay, as to start one takes as long as to look up thousands of items. `work` must
    not call this itself."""
    num_threads = min(torch.get_num_threads(), num_lines)
    if num_threads <= 1:
        work(0, num_lines)
        return
    ends = [num_lines * number // num_threads for number in range(num_threads + 1)]
    *others, last = pairwise(ends)
    running = [_threads(num_threads - 1).submit(work, *part) for part in others]
    try:
        work(*last)
    finally:
        wait(running)  # they write where the caller reads
    for done in running:
        done.result()


@cache
def _threads(num: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num, thread_name_prefix="rails-ray")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads
