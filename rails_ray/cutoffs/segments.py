"""Segments of queries by tau_q, each of which is calibrated on its own.

A new query counts among the n calibration queries when segments are cut, so that all n + 1 are treated alike. They are
S groups of equal size. Edge s is the b_s-th smallest of all n + 1 tau_q and depends on the new query's, t, by

    edge_s(t) = clip(t, tau_(b_s - 1), tau_(b_s))        tau_(i): the i-th smallest of the calibration queries
    b_s       = round(s (n + 1) / S)

The number of edges below a query's tau_q is the number of its segment, so queries at an edge belong below it.
If a segment that is not empty holds too few queries, all n + 1 form one segment.

Axes: Q calibration queries, B new queries, S segments, E <= S - 1 edges.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class Segments:
    """The calibration queries that share a segment with a new query.

    They depend only on the new query's place among the distinct values of tau_(b_s): place 2 i + 1 is at the i-th of
    them, place 2 i is below it and above the one before.
    """

    def __init__(self, temperature: NDArray[np.floating], num_segments: int) -> None:
        """Args:
        temperature: tau_q of the calibration queries [Q].
        """
        self.order = np.argsort(temperature, kind="stable")
        self._tau = np.asarray(temperature, dtype=np.float64)[self.order]
        num_queries = len(self._tau)
        ranks = np.unique(np.round(np.arange(1, num_segments) * (num_queries + 1) / num_segments).astype(np.int64))
        ranks = ranks[(ranks > 0) & (ranks <= num_queries)]  # any other leaves one of its sides empty
        self._low = np.concatenate([[-np.inf], self._tau])[ranks - 1]  # [E]
        self._high = self._tau[ranks - 1]  # [E]
        self._points = np.unique(self._high)

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """The tau_q between segments, ascending and distinct, that have calibration queries on both sides."""
        return self._points[self._points < self._tau[-1:]]

    def number(self, temperature: NDArray[np.floating]) -> NDArray[np.int64]:
        """The segment of each new query [B], from 0 to len(edges)."""
        return np.searchsorted(self.edges, np.asarray(temperature, dtype=np.float64), side="left")

    def place(self, temperature: NDArray[np.floating]) -> NDArray[np.int64]:
        """The place of each new query [B]."""
        t = np.asarray(temperature, dtype=np.float64)
        return np.searchsorted(self._points, t, side="left") + np.searchsorted(self._points, t, side="right")

    def members(self, least: int) -> NDArray[np.int64]:
        """For a new query at each place, where the members of its segment start and stop in `order` [places, 2].

        Args:
            least: queries that a segment must hold, the new one included; otherwise all queries are members.
        """
        num_queries = len(self._tau)
        place = np.arange(2 * len(self._points) + 1)
        at = 2 * np.searchsorted(self._points, self._high) + 1  # [E]
        # No calibration query lies strictly between low and high, so an edge there cuts them as low does.
        cuts_low, cuts_high = (np.searchsorted(self._tau, ends, side="right") for ends in (self._low, self._high))
        cuts = np.where(place[:, None] >= at, cuts_high, cuts_low)  # [places, E]
        bounds = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, num_queries)))  # [places, E + 2]
        own = (place[:, None] > at).sum(axis=1)
        sizes = np.diff(bounds)  # [places, E + 1]
        sizes[place, own] += 1
        is_short = ((sizes > 0) & (sizes < least)).any(axis=1)
        start = np.where(is_short, 0, bounds[place, own])
        stop = np.where(is_short, num_queries, bounds[place, own + 1])
        return np.stack([start, stop], axis=1)
