import numpy as np
import pytest

from rails_ray.cutoffs.distributions import beta_threshold
from rails_ray.cutoffs.policies import MassCutoff, ScoreCutoff, TopKCutoff, cut

SCORES = np.array([[0.9, 0.8, 0.1], [0.3, 0.2, 0.1]])
TEMPERATURE = np.array([0.1, 0.5])


def test_score_keeps_what_reaches_it() -> None:
    done = cut(SCORES, TEMPERATURE, ScoreCutoff(0.2), num_searched=3)
    assert done.num_kept.tolist() == [2, 2]
    assert done.threshold.tolist() == [0.2, 0.2]
    assert done.is_truncated.tolist() == [False, False]


def test_mass_cuts_each_query_at_its_own_score() -> None:
    done = cut(SCORES, TEMPERATURE, MassCutoff(0.5), num_searched=3)
    expected = beta_threshold(0.5, TEMPERATURE)
    assert done.threshold.tolist() == expected.tolist()
    assert done.num_kept.tolist() == [int((line >= t).sum()) for line, t in zip(SCORES, expected, strict=True)]


def test_top_k_keeps_a_number() -> None:
    done = cut(SCORES, TEMPERATURE, TopKCutoff(2), num_searched=10)
    assert done.num_kept.tolist() == [2, 2]
    assert done.threshold.tolist() == [-np.inf, -np.inf]
    assert not done.is_truncated.any()


def test_a_list_that_ends_above_the_threshold_is_truncated() -> None:
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.1), num_searched=10).is_truncated.tolist() == [True, True]
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.1), num_searched=3).is_truncated.tolist() == [False, False]
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.1), np.array([3, 4])).is_truncated.tolist() == [False, True]
    assert cut(SCORES, TEMPERATURE, TopKCutoff(5), num_searched=10).is_truncated.tolist() == [True, True]
    assert cut(SCORES, TEMPERATURE, TopKCutoff(5), num_searched=3).is_truncated.tolist() == [False, False]


def test_nothing_may_be_kept() -> None:
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(1.0), num_searched=3).num_kept.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MassCutoff(1.0), "mass must be above 0 and below 1, got 1.0"),
        (lambda: ScoreCutoff(2.0), r"score must be in \[-1, 1\], got 2.0"),
        (lambda: TopKCutoff(0), "top_k must be at least 1, got 0"),
    ],
)
def test_out_of_range(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
