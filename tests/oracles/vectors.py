"""Vectors as lists of floats: what the equations are made of."""

import math
from collections.abc import Sequence

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


def two_layers(
    first: tuple[Matrix, Vector], second: tuple[Matrix, Vector], x: Vector, activation: str = "silu"
) -> list[float]:
    """Linear, SiLU or ReLU, linear."""
    hidden = [max(h, 0.0) if activation == "relu" else h * sigmoid(h) for h in linear(*first, x)]
    return linear(*second, hidden)


def entropy(p: Vector) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def add(a: Vector, b: Vector) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]
