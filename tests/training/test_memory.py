import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from rails_ray.training.memory import keep_freed

free, malloc = ctypes.CDLL(None).free, ctypes.CDLL(None).malloc
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        memory = malloc(2**22)
        ctypes.memset(memory, 1, 2**22)
        free(memory)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ctypes.CDLL(None).mallopt(-3, 2**17)  # glibc raises its own threshold as tensors are freed; here it may not
first = faults()
keep_freed()
faults()
print(first, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone gives memory back at once")
def test_memory_that_is_freed_is_not_filled_with_zeros_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, then = map(int, done.stdout.split())
    assert first > 100
    assert then < first / 10
