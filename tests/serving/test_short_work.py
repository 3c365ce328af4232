"""Where work is done: short work at once, long work in a thread."""

import asyncio
import threading

import pytest

from rails_ray.serving.short_work import SHORT_S, ShortWork

LONG_S = 2 * SHORT_S


def done(*works: tuple[float, int], fails: bool = False) -> list[bool]:
    """Whether each work, of so many seconds and such a size, is done at once."""
    now, threads = 0.0, list[int]()
    kind = ShortWork(clock=lambda: now)

    async def run() -> None:
        nonlocal now
        for seconds, size in works:

            def work(seconds: float = seconds) -> None:
                nonlocal now
                now += seconds
                threads.append(threading.get_ident())
                if fails:
                    raise ValueError("no")

            if fails:
                with pytest.raises(ValueError, match="no"):
                    await kind.done(work, size)
            else:
                await kind.done(work, size)

    asyncio.run(run())
    return [thread == threading.get_ident() for thread in threads]


def test_work_is_done_at_once_as_long_as_it_is_short() -> None:
    assert done((0, 1), (0, 1), (LONG_S, 1), (0, 1)) == [False, True, True, False]
    assert done((LONG_S, 1), (0, 1)) == [False, False]


def test_works_of_about_the_same_size_are_alike() -> None:
    assert done((0, 8), (0, 15), (0, 16), (0, 7), (0, 9)) == [False, True, False, False, True]
    assert done((LONG_S, 100), (0, 1), (0, 100), (0, 1)) == [False, False, False, True]


def test_one_that_was_slow_by_chance_is_forgotten_and_many_are_not() -> None:
    assert done((LONG_S, 1), *[(0, 1)] * 10) == [False] * 8 + [True] * 3
    mixed = done(*[(100 * LONG_S, 1), *[(0, 1)] * 9] * 20)
    assert not any(mixed)


def test_work_that_fails_is_timed_too() -> None:
    assert done((0, 1), (LONG_S, 1), (0, 1), fails=True) == [False, True, False]


def test_a_thread_is_timed_by_what_it_does_itself() -> None:
    """The default clock: a wait for another thread is not work."""

    async def run() -> bool:
        kind = ShortWork()
        await kind.done(lambda: threading.Event().wait(5 * SHORT_S), 1)
        return await kind.done(threading.get_ident, 1) == threading.get_ident()

    assert asyncio.run(run())
