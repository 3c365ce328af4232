"""Threads in which torch's products take as many threads as `torch.set_num_threads` says.

A new thread does not know that number before it asks torch: until then MKL multiplies by OMP_NUM_THREADS, or by the
cores, and its sums of float32 differ in their last bit.
"""

from concurrent.futures import ThreadPoolExecutor

import torch


def torch_pool(num: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads that have asked.

    Args:
        num: most threads.
        name: begins the names of its threads.
    """
    return ThreadPoolExecutor(num, name, initializer=torch.get_num_threads)
