"""Memory that is given back: that of a large answer, and code that only loading needed."""

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rails_ray.serving import heap

NUM, SIZE = 100_000, 2000  # pieces that come from the C library's heap, as they are longer than 512 bytes


def resident() -> int:
    found: int = psutil.Process().memory_info().rss
    return found


def test_what_is_free_is_given_back_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "DELAY_S", 0.01)
    pieces = [bytes(SIZE) for _ in range(NUM)]
    last = pieces[-1]  # it holds the top of the heap, so that the library keeps what lies below
    pieces.clear()
    before = resident()

    async def answer() -> None:
        heap.give_back_soon()
        assert resident() > before - NUM * SIZE / 2
        async with asyncio.timeout(30):
            while resident() > before - NUM * SIZE / 2:
                await asyncio.sleep(0.01)

    asyncio.run(answer())
    assert len(last) == SIZE


def test_another_c_library_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.trim()


MAPS = """\
55d5a0964000-55d5a0965000 r--p 00000000 fe:00 1234                       /usr/bin/python3.11
Size:                  4 kB
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
7f0000000000-7f0000002000 r-xp 00001000 fe:00 1235                       /usr/lib/a library.so (deleted)
Rss:                   8 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
Swap:                  0 kB
7f0000002000-7f0000003000 r--p 00003000 fe:00 1235                       /usr/lib/relocated.so
Rss:                   4 kB
Anonymous:             4 kB
Swap:                  0 kB
7f0000003000-7f0000004000 rw-p 00004000 fe:00 1235                       /usr/lib/data.so
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  0 kB
7f0000004000-7f0000005000 r--s 00000000 fe:00 1236                       /tmp/vectors.npy
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
7f0000005000-7f0000006000 r--p 00000000 fe:00 1237                       /usr/lib/on_swap.so
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  4 kB
7f0000006000-7f0000007000 r-xp 00000000 00:0f 1238                       /anon_hugepage (deleted)
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  0 kB
7f0000007000-7f0000008000 r--p 00000000 00:05 1239                       /dev/a device
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  0 kB
7f0000008000-7f0000009000 r--p 00000000 00:00 0
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  0 kB
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
"""


def test_what_may_differ_from_its_file_is_no_code() -> None:
    found = [match.groups() for match in heap.CODE.finditer(MAPS)]
    assert found == [("55d5a0964000", "55d5a0965000"), ("7f0000000000", "7f0000002000")]


DROPS = """
import re, torch
from pathlib import Path
from rails_ray.serving import heap

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = of_files()
heap.give_back_code()
print(before - of_files(), int(torch.ones(100, 100).matmul(torch.ones(100, 1)).sum()))
"""


def test_code_is_dropped_and_what_runs_is_read_again() -> None:
    said = subprocess.run([sys.executable, "-c", DROPS], capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) > 20 * 1024, "torch alone reads more when it is imported"
    assert said[1] == "10000"


def test_a_system_without_a_list_of_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heap, "MAPS", tmp_path / "none")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.give_back_code()
