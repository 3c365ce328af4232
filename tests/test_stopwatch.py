"""Parts of work, noted for whoever wants to know."""

import threading
from time import perf_counter, sleep

from rails_ray.stopwatch import noted, part


@part("score")
def scored(seconds: float) -> str:
    with part("score"):  # inside itself
        sleep(seconds)
    return "scores"


def test_parts_are_added_up_by_name_and_once() -> None:
    began = perf_counter()
    with noted() as seconds:
        assert scored(0.01) == "scores"
        scored(0.01)
        with part("cut"):
            pass
    took = perf_counter() - began
    assert 0.02 <= seconds["score"] <= took
    assert seconds.keys() == {"score", "cut"}


def test_a_part_that_fails_is_noted_too() -> None:
    with noted() as seconds:
        try:
            with part("score"):
                raise ValueError
        except ValueError:
            pass
        scored(0.0)
    assert seconds.keys() == {"score"}


def test_nobody_else_hears_of_them() -> None:
    scored(0.0)
    with noted() as outer:
        with noted() as inner:
            scored(0.0)
        other = threading.Thread(target=scored, args=(0.0,))
        other.start()
        other.join()
    assert inner.keys() == {"score"}
    assert not outer
