import numpy as np
import pytest

import oracles
from rails_ray.cutoffs.calibration import CANDIDATE_MASSES, best_mass, mean_f1
from rails_ray.cutoffs.distributions import beta_threshold


def test_mean_f1_equals_the_definition() -> None:
    generator = np.random.default_rng(0)
    is_relevant = generator.random((20, 8)) < 0.4
    num_kept = generator.integers(0, 9, 20)
    num_relevant = is_relevant.sum(1) + generator.integers(1, 4, 20)
    expected = [
        oracles.list_f1([i < kept for i in range(8)], line.tolist(), int(total))
        for kept, line, total in zip(num_kept, is_relevant, num_relevant, strict=True)
    ]
    assert mean_f1(num_kept, is_relevant, num_relevant) == pytest.approx(np.mean(expected))


def test_finds_the_mass_that_separates() -> None:
    """Relevant items lie just above, others just below the threshold of one mass, which differs by query."""
    mass = float(CANDIDATE_MASSES[30])
    temperature = np.array([0.01, 0.05, 0.1])
    threshold = beta_threshold(mass, temperature)[:, None]
    scores = np.concatenate([threshold + 0.01, threshold + 1e-6, threshold - 1e-6, threshold - 0.01], axis=1)
    is_relevant = np.array([[True, True, False, False]] * 3)
    found, f1 = best_mass(scores, is_relevant, np.array([2, 2, 2]), temperature)
    assert found == mass
    assert f1 == 1


def test_no_query() -> None:
    with pytest.raises(ValueError, match="at least 1 held-out query, got none"):
        best_mass(np.empty((0, 3)), np.empty((0, 3), dtype=bool), np.empty(0, dtype=int), np.empty(0))
