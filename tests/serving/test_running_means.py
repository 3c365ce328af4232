"""The interval of a mean of shares."""

import numpy as np
import pytest

from rails_ray.serving.running_means import RunningMean


def test_the_interval_is_wilsons_and_covers_the_mean_19_times_in_20() -> None:
    tally = RunningMean(100, 81.0)  # Wilson, by statsmodels: proportion_confint(81, 100, method="wilson")
    assert (tally.mean, tally.low, tally.high) == pytest.approx((0.81, 0.7222, 0.8749), abs=1e-4)
    assert RunningMean(7, 7.0).high == 1
    assert RunningMean(7, 7.0).low == pytest.approx(1 / (1 + 1.959964**2 / 7))
    random = np.random.default_rng(0)
    shares = random.beta(9, 1, size=(2000, 50))
    bounds = [RunningMean(50, total) for total in shares.sum(axis=1)]
    ends = [(own.low or 0.0, own.high or 0.0) for own in bounds]
    assert np.mean([low <= 0.9 <= high for low, high in ends]) > 0.95
