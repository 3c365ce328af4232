"""Where work is done: short work at once, long work in a thread."""

import asyncio
import threading
import time
from functools import partial

import pytest

from rails_ray.on_ray.serving.short_work import SHORT_S, ShortWork


def lasting(seconds: float) -> int:
    """The thread that it is done in."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass
    return threading.get_ident()


def done(*works: tuple[float, int]) -> list[bool]:
    """Whether each work, of so many seconds and such a size, is done at once."""

    async def run() -> list[int]:
        kind = ShortWork()
        return [await kind.done(partial(lasting, seconds), size) for seconds, size in works]

    return [thread == threading.get_ident() for thread in asyncio.run(run())]


def test_work_is_done_at_once_as_long_as_it_is_short() -> None:
    assert done((0, 1), (0, 1), (0, 1)) == [False, True, True]
    assert done((3 * SHORT_S, 1), (0, 1)) == [False, False]


def test_works_of_about_the_same_size_are_alike() -> None:
    assert done((0, 8), (0, 15), (0, 16), (0, 7), (0, 9)) == [False, True, False, False, True]
    assert done((3 * SHORT_S, 100), (0, 1), (0, 100), (0, 1)) == [False, False, False, True]


def test_one_that_was_slow_by_chance_is_forgotten() -> None:
    assert done((0, 1), (3 * SHORT_S, 1), (0, 1), (0, 1), (0, 1)) == [False, True, False, False, True]


def test_what_fails_raises_and_says_nothing_of_the_time() -> None:
    async def run() -> int:
        kind = ShortWork()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await kind.done(partial(int, "no"), 1)
        await kind.done(partial(lasting, 0), 1)
        with pytest.raises(ValueError, match="no"):
            await kind.done(partial(int, "no"), 1)
        return await kind.done(partial(lasting, 0), 1)

    assert asyncio.run(run()) == threading.get_ident()
