"""Held-out positives that are drawn, and a calibration of some of them."""

import numpy as np

from rails_ray.cutoffs.calibration import Positives
from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution
from rails_ray.families.calibrations import StoredCalibration

BETA = BetaDistribution(UNIFORM)


def drawn(num_queries: int, seed: int, is_alike: bool = False) -> Positives:
    """Queries with 1 to 5 positives; those of a large tau_q score lower than the model believes."""
    generator = np.random.default_rng(seed)
    temperature = np.full(num_queries, 0.1) if is_alike else generator.uniform(0.02, 0.3, num_queries)
    query = np.repeat(np.arange(num_queries), generator.integers(1, 6, num_queries))
    true_tau = temperature[query] * (1 + 5 * temperature[query])
    score = 2 * generator.beta(1 + 1 / true_tau, 1) - 1
    return Positives.of(query, score, temperature, BETA)


POSITIVES = drawn(90, 0)
STORED = StoredCalibration(
    positives=POSITIVES,
    num_segments=3,
    background_name="uniform",
    background=UNIFORM,
    fitted=Background(20.5, 21.25),
    split="valid",
    created_at="2026-01-01T00:00:00Z",
)
