"""Codes of items: SOLAR's buckets, MoPQ's codewords."""

import math
from collections.abc import Sequence

from oracles.vectors import Matrix, Vector, dot


def posting_lengths(codes: Sequence[Sequence[int]], num_chunks: int, num_buckets: int) -> list[list[int]]:
    return [[sum(code[k] == bucket for code in codes) for bucket in range(num_buckets)] for k in range(num_chunks)]


def added_codes(
    codes: Sequence[Sequence[int]],
    choices: Sequence[Sequence[Sequence[int]]],
    num_buckets: int,
    max_load_ratio: float | None = None,
) -> list[list[int]]:
    """Items one by one: the first choice that stays light enough, else the first of the least loaded."""
    there = [list(code) for code in codes]
    for item in choices:
        new = []
        for chunk, among in enumerate(item):
            load = [1 + sum(code[chunk] == bucket for code in there) for bucket in among]
            most = None if max_load_ratio is None else max_load_ratio * (len(there) + 1) / num_buckets
            light = [place for place in range(len(among)) if most is not None and load[place] <= most]
            new.append(among[light[0] if light else load.index(min(load))])
        there.append(new)
    return there[len(codes) :]


def postings(codes: Sequence[Sequence[int]], num_chunks: int, num_buckets: int) -> list[list[list[int]]]:
    """The items of each bucket of each chunk; SOLAR, Figure 2."""
    return [
        [[row for row, code in enumerate(codes) if code[chunk] == bucket] for bucket in range(num_buckets)]
        for chunk in range(num_chunks)
    ]


def posted_sums(
    codes: Sequence[Sequence[int]],
    buckets: Sequence[Sequence[int]],
    weights: Matrix,
    excluded: Sequence[int] = (),
) -> dict[int, float]:
    """Of each item that stands in one of these buckets: the weights of those in which it does, added up."""
    sums = {}
    for row, code in enumerate(codes):
        for own, posted, weight in zip(code, buckets, weights, strict=True):
            if own in posted and row not in excluded:
                sums[row] = sums.get(row, 0.0) + weight[list(posted).index(own)]
    return sums


def upper_bound(tables: Matrix, buckets: Sequence[Sequence[int]], code: Sequence[int]) -> float:
    """U(q, x): an item's score if no entry counted less than the least of those that are posted."""
    least = [min(table[bucket] for bucket in posted) for table, posted in zip(tables, buckets, strict=True)]
    return sum(max(table[own], t) for table, own, t in zip(tables, code, least, strict=True))


def turn(rotation: Matrix, x: Vector) -> list[float]:
    """R x."""
    return [dot(line, x) for line in rotation]


def cut(x: Vector, num_parts: int) -> list[list[float]]:
    """A vector's parts, of equal length."""
    width = len(x) // num_parts
    return [list(x[part * width : (part + 1) * width]) for part in range(num_parts)]


def codeword_scores(selection: str, part: Vector, codebook: Matrix, bilinear: Matrix = ()) -> list[float]:
    """How well each codeword suits a part of a vector; MoPQ, Section 4.1."""
    if selection == "l2":
        return [-sum((y - c) ** 2 for y, c in zip(part, codeword, strict=True)) for codeword in codebook]
    if selection == "cosine":
        return [dot(part, codeword) / math.sqrt(dot(codeword, codeword)) for codeword in codebook]
    if selection == "inner_product":
        return [dot(part, codeword) for codeword in codebook]
    return [sum(y * dot(line, codeword) for y, line in zip(part, bilinear, strict=True)) for codeword in codebook]


def read_back(code: Sequence[int], codebooks: Sequence[Matrix], rotation: Matrix) -> list[float]:
    """R^T [c_1 ... c_M]: what a code stands for."""
    joined = [number for codebook, entry in zip(codebooks, code, strict=True) for number in codebook[entry]]
    return turn(list(zip(*rotation, strict=True)), joined)
