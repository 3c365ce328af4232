"""Scores of a query and an item."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oracles.vectors import Matrix, Vector, dot, sigmoid, softmax


def mixture_of_logits(
    f: Matrix, g: Matrix, u: Vector, v: Vector, w: Callable[[Vector], Vector], tau: float
) -> tuple[float, list[float]]:
    """(tau * phi(q, x), gates); RAILS, Equation 2 with its temperature. f [P_Q, d], g [P_X, d], u and v [P]."""
    logits = [dot(f_p, g_p) / tau for f_p in f for g_p in g]
    z = [u_p * v_p + w_p for u_p, v_p, w_p in zip(u, v, w(logits), strict=True)]
    gates = softmax([z_p * sigmoid(z_p) for z_p in z])
    phi = sum(pi * logit for pi, logit in zip(gates, logits, strict=True))
    return tau * phi, gates


def look_up(tables: Matrix, code: Sequence[int]) -> float:
    """SOLAR's score, and a product quantizer's: what each part of a code is worth, added up."""
    return sum(table[entry] for table, entry in zip(tables, code, strict=True))


def sum_over_shared_terms(counts: Mapping[Any, float], weights: Mapping[Any, float]) -> float:
    """n_q(t) w(t, x), over the terms t of both."""
    return sum(count * weights[term] for term, count in counts.items() if term in weights)


def bm25_weight(term: str, item: Sequence[str], items: Sequence[Sequence[str]], k1: float, b: float) -> float:
    """w(t, x) of a word in an item, of which the run has `items`; Robertson and Zaragoza, Section 3."""
    holding = sum(1 for other in items if term in other)
    idf = math.log(1 + (len(items) - holding + 0.5) / (holding + 0.5))
    mean_length = sum(len(other) for other in items) / len(items)
    count = sum(1 for word in item if word == term)
    return idf * count * (k1 + 1) / (count + k1 * (1 - b + b * len(item) / mean_length))


def bm25(query: Sequence[str], item: Sequence[str], items: Sequence[Sequence[str]], k1: float, b: float) -> float:
    """The score of an item, both as their words."""
    return sum(bm25_weight(word, item, items, k1, b) for word in query if word in item)
