"""Every equation as naive loops: short, obviously right, slow. Lists and floats in, lists and floats out.

The letters are those of `rails_ray/__init__.py`.
"""

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]
Matrix = Sequence[Vector]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def normalise(a: Vector, eps: float = 1e-6) -> list[float]:
    length = max(math.sqrt(dot(a, a)), eps)
    return [x / length for x in a]


def softmax(z: Vector) -> list[float]:
    largest = max(z)
    powers = [math.exp(x - largest) for x in z]
    return [power / sum(powers) for power in powers]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def linear(weight: Matrix, bias: Vector, x: Vector) -> list[float]:
    return [dot(line, x) + b for line, b in zip(weight, bias, strict=True)]


def two_layers(first: tuple[Matrix, Vector], second: tuple[Matrix, Vector], x: Vector) -> list[float]:
    """Linear, SiLU, linear."""
    hidden = [h * sigmoid(h) for h in linear(*first, x)]
    return linear(*second, hidden)


def mixture_of_logits(
    f: Matrix, g: Matrix, u: Vector, v: Vector, w: Callable[[Vector], Vector], tau: float
) -> tuple[float, list[float]]:
    """(tau * phi(q, x), gates); RAILS, Equation 2 with its temperature. f [P_Q, d], g [P_X, d], u and v [P]."""
    logits = [dot(f_p, g_p) / tau for f_p in f for g_p in g]
    z = [u_p * v_p + w_p for u_p, v_p, w_p in zip(u, v, w(logits), strict=True)]
    gates = softmax([z_p * sigmoid(z_p) for z_p in z])
    phi = sum(pi * logit for pi, logit in zip(gates, logits, strict=True))
    return tau * phi, gates


def entropy(p: Vector) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def mutual_information(gates: Matrix) -> float:
    """-H(E[pi]) + E[H(pi | q, x)]; RAILS, Equation 3."""
    mean = [sum(line[p] for line in gates) / len(gates) for p in range(len(gates[0]))]
    return -entropy(mean) + sum(entropy(line) for line in gates) / len(gates)


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


def top_k(scores: Vector, k: int, excluded: Sequence[int] = ()) -> list[int]:
    """Item rows by score descending, equal scores by row."""
    rows = [row for row in range(len(scores)) if row not in set(excluded)]
    return sorted(rows, key=lambda row: (-scores[row], row))[:k]


def hidden_items(
    item_rows: Sequence[int], positive: Sequence[int], relevant: Sequence[Sequence[int]]
) -> list[list[bool]]:
    """Items of the batch that are relevant to a query and not its positive column."""
    return [
        [row in rows and column != own for column, row in enumerate(item_rows)]
        for own, rows in zip(positive, relevant, strict=True)
    ]


def rank_of_best(scores: Vector, relevant: Sequence[int]) -> int:
    """The rank, from 1, of the first relevant item in the order of `top_k`."""
    return 1 + min(top_k(scores, len(scores)).index(row) for row in relevant)


def buckets(pieces: Sequence[str], base: int, num_buckets: int) -> set[int]:
    """The hashed buckets of some pieces of text, in plain integers."""
    mask = 2**64 - 1
    found = set()
    for piece in pieces:
        value = sum(ord(character) * pow(base, i, 2**64) for i, character in enumerate(piece)) & mask
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            value = ((value ^ (value >> 33)) * factor) & mask
        found.add((value ^ (value >> 33)) % num_buckets)
    return found


def pieces(words: Sequence[str], sizes: Sequence[int]) -> set[str]:
    """Framed words and their character n-grams."""
    found = set()
    for word in words:
        framed = f" {word} "
        found.add(framed)
        for size in sizes:
            found.update(framed[first : first + size] for first in range(len(framed) - size + 1))
    return found


def list_f1(kept: Sequence[bool], is_relevant: Sequence[bool], num_relevant: int) -> float:
    """The harmonic mean of precision and recall of a kept list."""
    hits = sum(a and b for a, b in zip(kept, is_relevant, strict=True))
    if not hits:
        return 0.0
    precision, recall = hits / sum(kept), hits / num_relevant
    return 2 * precision * recall / (precision + recall)


def pointwise(logits: Matrix, positive: Sequence[int], is_hidden: Sequence[Sequence[bool]], offset: float) -> float:
    """pEBR, Section 2.2, with the sign of its negative term put right; relevant: the positive and what is hidden."""
    total = 0.0
    for line, column, hidden in zip(logits, positive, is_hidden, strict=True):
        relevant = [x for x in range(len(line)) if hidden[x] or x == column]
        others = [x for x in range(len(line)) if x not in relevant]
        total -= sum(math.log(sigmoid(line[x] + offset)) for x in relevant) / len(relevant)
        total -= sum(math.log(sigmoid(-(line[x] + offset))) for x in others)
    return total / len(logits)
