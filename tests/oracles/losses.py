"""Losses, and what each item of a batch is to each query."""

import math
from collections.abc import Sequence

from oracles.vectors import Matrix, Vector, dot, entropy, sigmoid, softmax


def weighted_mean(numbers: Vector, weights: Vector) -> float:
    """sum_i w_i l_i / sum_i w_i; 0 if all weights are."""
    total = sum(weights)
    return sum(weight * number for number, weight in zip(numbers, weights, strict=True)) / total if total else 0.0


def mutual_information(gates: Matrix, weights: Vector | None = None) -> float:
    """-H(E[pi]) + E[H(pi | q, x)], of pairs by their weights; RAILS, Equation 3."""
    weights = [1.0] * len(gates) if weights is None else weights
    mean = [weighted_mean([line[p] for line in gates], weights) for p in range(len(gates[0]))]
    return -entropy(mean) + weighted_mean([entropy(line) for line in gates], weights)


def sampled_softmax(logits: Matrix, positive: Sequence[int], is_hidden: Sequence[Sequence[bool]]) -> float:
    """RAILS, Equation 4."""
    total = 0.0
    for line, column, hidden in zip(logits, positive, is_hidden, strict=True):
        among = [math.exp(logit) for logit, is_out in zip(line, hidden, strict=True) if not is_out]
        total -= math.log(math.exp(line[column]) / sum(among))
    return total / len(logits)


def beta_logit(score: float, tau_q: float) -> float:
    """log z / tau_q; pEBR, Section 2.4.2."""
    return math.log(max((1 + score) / 2, 1e-6)) / tau_q


def roles_among_copies(
    item_rows: Sequence[int], positive: Sequence[int], relevant: Sequence[Sequence[int]]
) -> tuple[list[list[bool]], list[list[bool]]]:
    """Which columns are relevant to each query, and which negative, where each item is met in one column."""
    all_relevant, all_negative = [], []
    for own, rows in zip(positive, relevant, strict=True):
        met = {row: column for column, row in reversed(list(enumerate(item_rows)))}  # the first column of each
        met[item_rows[own]] = own
        columns = [(met[row] == column, row in rows) for column, row in enumerate(item_rows)]
        all_relevant.append([is_met and is_relevant for is_met, is_relevant in columns])
        all_negative.append([is_met and not is_relevant for is_met, is_relevant in columns])
    return all_relevant, all_negative


def pointwise(logits: Matrix, positive: Sequence[int], is_hidden: Sequence[Sequence[bool]], offset: float) -> float:
    """pEBR, Section 2.2, with the sign of its negative term put right; relevant: the positive and what is hidden."""
    total = 0.0
    for line, column, hidden in zip(logits, positive, is_hidden, strict=True):
        relevant = [x for x in range(len(line)) if hidden[x] or x == column]
        others = [x for x in range(len(line)) if x not in relevant]
        total -= sum(math.log(sigmoid(line[x] + offset)) for x in relevant) / len(relevant)
        total -= sum(math.log(sigmoid(-(line[x] + offset))) for x in others)
    return total / len(logits)


def beta_log_density(score: float, alpha: float, beta: float) -> float:
    """pEBR, Section 2.4.2: the density of a Beta distribution that is stretched to [-1, 1]."""
    z = (1 + score) / 2
    scale = math.gamma(alpha + beta) / (2 * math.gamma(alpha) * math.gamma(beta))
    return math.log(scale * z ** (alpha - 1) * (1 - z) ** (beta - 1))


def maximum_likelihood(
    scores: Matrix,
    is_relevant: Sequence[Sequence[bool]],
    relevant: Sequence[tuple[float, float]],
    irrelevant: Sequence[tuple[float, float]],
) -> float:
    """pEBR, Section 2.3, with means over the relevant and over the irrelevant items; (alpha, beta) of each query."""
    total = 0.0
    for line, is_own, own, other in zip(scores, is_relevant, relevant, irrelevant, strict=True):
        f = [beta_log_density(score, *own) for score, yes in zip(line, is_own, strict=True) if yes]
        h = [beta_log_density(score, *other) for score, yes in zip(line, is_own, strict=True) if not yes]
        total -= sum(f) / len(f) + (sum(h) / len(h) if h else 0.0)
    return total / len(scores)


def glas(vectors: Matrix, item_rows: Sequence[int], relevant: Sequence[Sequence[int]]) -> float:
    """SOLAR, Appendix D, Equation 2, as a mean over pairs; the items that answer each training query."""

    def share(i: int, j: int) -> float:
        """p(i | j)."""
        among = [rows for rows in relevant if j in rows]
        return 1.0 if i == j else sum(i in rows for rows in among) / max(len(among), 1)

    total = 0.0
    for v_i, i in zip(vectors, item_rows, strict=True):
        for v_j, j in zip(vectors, item_rows, strict=True):
            total += (dot(v_i, v_j) - (share(i, j) + share(j, i)) / 2) ** 2
    return total / len(vectors) ** 2


def bucket_targets(relevant: Sequence[Sequence[int]], buckets: Sequence[int], num_buckets: int) -> list[list[int]]:
    """The OR of the codes of the items that answer each query, in one chunk."""
    return [[int(any(buckets[row] == b for row in rows)) for b in range(num_buckets)] for rows in relevant]


def binary_cross_entropy(logits: Vector, targets: Sequence[int]) -> float:
    """SOLAR, Section 3.2: the loss of a query, over all buckets."""
    return -sum(math.log(sigmoid(z if y else -z)) for z, y in zip(logits, targets, strict=True))


def distilled(estimated, relevance, temperature):
    known = [item for item, score in enumerate(relevance) if not math.isnan(score)]
    wanted = [math.exp(relevance[item] / temperature) for item in known]
    found = [math.exp(estimated[item] / temperature) for item in known]
    return -sum(one / sum(wanted) * math.log(other / sum(found)) for one, other in zip(wanted, found, strict=True))


def top_share(estimated: Vector, relevance: Vector, num_best: int) -> float:
    """RBE, Appendix C, with its sign put right."""
    least = sorted(relevance, reverse=True)[num_best - 1]
    return -sum(p * (1 if r >= least else -1) for p, r in zip(softmax(estimated), relevance, strict=True))
