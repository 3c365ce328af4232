"""How long a router waits for a replica, and how many calls it may ask twice."""

import numpy as np

from rails_ray.on_ray.serving.transport import replicas as direct
from rails_ray.on_ray.serving.transport.replicas import Patience


def test_what_is_slow_is_told_by_the_last_calls() -> None:
    patience, took = Patience(), np.random.default_rng(0).uniform(size=3 * direct.NUM_REMEMBERED).tolist()
    for number, seconds in enumerate(took, start=1):
        patience.took(seconds)
        last = sorted(took[max(number - direct.NUM_REMEMBERED, 0) : number])
        if patience.second_s is not None:
            assert patience.second_s == last[int(direct.QUANTILE * len(last))]
    assert patience.second_s is not None


def test_no_more_than_a_twentieth_of_the_calls_is_asked_twice() -> None:
    patience = Patience()
    for _ in range(direct.FEWEST_KNOWN - 1):
        patience.took(0.01)
    assert patience.second_s is None, "too few calls to know what is long"
    num_twice = 0
    for number in range(10_000):
        patience.took(0.01 if number % 2 else 0.5)
        if patience.second_s is not None:
            patience.spend()
            num_twice += 1
    assert 450 <= num_twice <= 505
    assert Patience().second_s is None
    for _ in range(10_000):
        patience.took(0.01)
    saved = 0
    while patience.second_s is not None:
        patience.spend()
        saved += 1
    assert saved <= direct.MOST_SAVED, "a quiet night does not pay for a storm"
