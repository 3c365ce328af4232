"""RBE: which items stand for all."""

from collections.abc import Sequence

import numpy as np

from oracles.vectors import Matrix, Vector


def error_of_supports(relevance: np.ndarray, supports: Sequence[int]) -> float:
    """The squared error of all rows as linear combinations of some; RBE, Equation 3."""
    combinations = np.linalg.lstsq(relevance[list(supports)].T, relevance.T, rcond=None)[0]
    return float(((relevance.T - relevance[list(supports)].T @ combinations) ** 2).sum())


def l2_greedy(relevance: np.ndarray, num_supports: int) -> list[int]:
    """RBE, Appendix B: each time the row with which the error is least."""
    chosen: list[int] = []
    for _ in range(num_supports):
        left = [row for row in range(len(relevance)) if row not in chosen]
        chosen.append(min(left, key=lambda row: error_of_supports(relevance, [*chosen, row])))
    return chosen


def most_diverse(relevance: Matrix, num_supports: int) -> list[int]:
    """RBE, Section 3.4: the row furthest from the centre, then those whose nearest chosen row is furthest."""

    def distance(a: Vector, b: Vector) -> float:
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    centre = [sum(column) / len(relevance) for column in zip(*relevance, strict=True)]
    chosen = [max(range(len(relevance)), key=lambda row: distance(relevance[row], centre))]
    while len(chosen) < num_supports:
        left = [row for row in range(len(relevance)) if row not in chosen]
        chosen.append(max(left, key=lambda row: min(distance(relevance[row], relevance[own]) for own in chosen)))
    return chosen
