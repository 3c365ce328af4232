"""What a large answer took, given back."""

import asyncio

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
