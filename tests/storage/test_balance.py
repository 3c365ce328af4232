import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.storage.balance import NOTHING, added, balance_of, removed

keys = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=30)


def of(numbers: list[int]) -> str:
    return balance_of(np.array(numbers, np.int64))


@given(keys, st.randoms(use_true_random=False), st.integers(0, 30))
def test_it_adds_up_in_any_order(numbers: list[int], random: object, at: int) -> None:
    shuffled = numbers[::-1]
    assert of(shuffled) == of(numbers)
    assert added(of(numbers[:at]), of(numbers[at:])) == of(numbers)
    assert removed(of(numbers), of(numbers[:at])) == of(numbers[at:])


@given(keys, st.integers(0, 29))
def test_an_item_that_is_lost_or_there_twice_shows(numbers: list[int], at: int) -> None:
    if at < len(numbers):
        assert of(numbers) != of([*numbers[:at], *numbers[at + 1 :]])
        assert of(numbers) != added(of(numbers), of([numbers[at]]))
        for row in range(64):
            other = int(np.int64(np.uint64(np.int64(numbers[at])) ^ np.uint64(1 << row)))
            assert of([other]) != of([numbers[at]])


def test_nothing() -> None:
    assert of([]) == NOTHING
    assert len(of([1])) == 32
