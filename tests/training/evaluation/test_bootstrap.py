"""The paired bootstrap: resamples are of queries, and p is what the module says."""

import numpy as np
import pytest

from rails_ray.training.evaluation.bootstrap import RESAMPLES, difference, resampled_means


def test_means_are_those_of_queries_drawn_with_replacement() -> None:
    values = np.random.default_rng(1).random((30, 2))
    found = resampled_means(values, seed=3)
    assert found.shape == (RESAMPLES, 2)
    drawn = np.random.default_rng(3).integers(30, size=(100, 30))
    np.testing.assert_allclose(found[:100], [values[rows].mean(axis=0) for rows in drawn])


def test_a_difference_equals_the_loops() -> None:
    first, second = np.random.default_rng(2).random((2, 20))
    found, drawn = difference(first, second), np.random.default_rng(0)
    means = list[tuple[float, float]]()
    for _ in range(RESAMPLES // 100):
        for rows in drawn.integers(20, size=(100, 20)):
            means.append((first[rows].mean(), second[rows].mean()))
    assert found.mean == pytest.approx(first.mean() - second.mean())
    assert found.p == pytest.approx((1 + sum(one <= other for one, other in means)) / (1 + RESAMPLES), abs=2e-4)
    ratios = sorted(one / other - 1 for one, other in means)
    assert found.relative == pytest.approx(first.mean() / second.mean() - 1)
    assert found.relative_low == pytest.approx(np.quantile(ratios, 0.025))
    assert found.relative_high == pytest.approx(np.quantile(ratios, 0.975))


def test_what_is_certain_and_what_is_not() -> None:
    ones, zeros = np.ones(50), np.zeros(50)
    assert difference(ones, zeros).p == 1 / (RESAMPLES + 1)
    assert difference(ones, ones).p == difference(zeros, ones).p == 1.0
    assert np.isnan(difference(zeros, zeros).relative)
