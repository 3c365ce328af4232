import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles.cutoffs
from rails_ray.cutoffs.segments import Segments

TAU = st.sampled_from([0.01, 0.05, 0.1, 0.2]) | st.floats(0.01, 0.3)  # with ties and without


@given(st.lists(TAU, max_size=40), st.lists(TAU, max_size=5), st.integers(1, 6), st.integers(1, 15))
def test_members_equal_those_of_the_bag(tau: list[float], new: list[float], num_segments: int, least: int) -> None:
    segments = Segments(np.array(tau), num_segments)
    asked = [*new, *tau, *(np.nextafter(t, end) for t in tau for end in (0, 1))]
    members = segments.members(least)[segments.place(np.array(asked))]
    for t, (start, stop) in zip(asked, members.tolist(), strict=True):
        expected = oracles.cutoffs.segment_members(tau, t, num_segments, least)
        assert sorted(segments.order[start:stop].tolist()) == expected


@given(st.lists(TAU, min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 10))
def test_the_order_of_queries_does_not_matter(tau: list[float], num_segments: int, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(tau)
    first, second = Segments(np.array(tau), num_segments), Segments(shuffled, num_segments)
    assert first.edges.tolist() == second.edges.tolist()
    assert first.members(3).tolist() == second.members(3).tolist()


def test_segments_without_ties_hold_equally_many() -> None:
    """Of 29 queries and a new one, 10 in each segment; the query at an edge belongs to neither side of a new one."""
    tau = np.arange(1, 30) / 100
    segments = Segments(tau, 3)
    assert segments.edges.tolist() == [0.10, 0.20]
    new = np.array([0.001, 0.095, 0.105, 0.195, 0.205, 1.0])
    assert segments.number(new).tolist() == [0, 0, 1, 1, 2, 2]
    members = segments.members(10)[segments.place(new)]
    assert members.tolist() == [[0, 9], [0, 9], [10, 19], [10, 19], [20, 29], [20, 29]]
    assert segments.members(11).tolist() == [[0, 29]] * 5, "one short segment makes all of them one"


@given(st.lists(TAU, min_size=1, max_size=40), st.integers(1, 6))
def test_every_segment_has_calibration_queries(tau: list[float], num_segments: int) -> None:
    segments = Segments(np.array(tau), num_segments)
    assert set(segments.number(np.array(tau)).tolist()) == set(range(len(segments.edges) + 1))


@pytest.mark.parametrize("tau", [[], [0.1], [0.1] * 50])
def test_queries_alike_have_no_edges(tau: list[float]) -> None:
    segments = Segments(np.array(tau), 3)
    assert segments.edges.tolist() == []
    assert segments.number(np.array([0.05, 0.1, 0.2])).tolist() == [0, 0, 0]
