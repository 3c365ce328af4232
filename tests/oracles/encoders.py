"""Encoders, and how a text becomes numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oracles.vectors import Matrix, Vector, add, dot, linear, softmax
from rails_ray.schema.times import UNKNOWN_TIME


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


def layer_norm(weight: Vector, bias: Vector, x: Vector) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [w * (value - mean) / math.sqrt(variance + 1e-5) + b for w, b, value in zip(weight, bias, x, strict=True)]


def gated(out: list[float], of: Mapping[str, Any], gate: str, by: list[float]) -> list[float]:
    """LiGR: each number times the sigmoid of a linear map of `by`; as it is in a block without gates."""
    if f"{gate}.weight" not in of:
        return out
    logits = linear(of[f"{gate}.weight"], of[f"{gate}.bias"], by)
    return [x / (1 + math.exp(-z)) for x, z in zip(out, logits, strict=True)]


def transformer_block(
    hidden: Matrix, of: Mapping[str, Any], block: str, num_heads: int, is_causal: bool, act: Callable[[float], float]
) -> list[list[float]]:
    """Attention and network with their norms before them. `of`: weights by their names in the module."""
    size = len(hidden[0]) // num_heads
    width = size * num_heads
    norms = [layer_norm(of[f"{block}attention_norm.weight"], of[f"{block}attention_norm.bias"], h) for h in hidden]
    parts = [linear(of[f"{block}attention_in.weight"], of[f"{block}attention_in.bias"], norm) for norm in norms]
    made = []
    for t in range(len(hidden)):
        attended = []
        for first in range(0, width, size):  # of a head
            query = parts[t][first : first + size]
            seen = parts[: t + 1] if is_causal else parts
            keys = [part[width + first : width + first + size] for part in seen]
            values = [part[2 * width + first : 2 * width + first + size] for part in seen]
            shares = softmax([dot(query, key) / math.sqrt(size) for key in keys])
            attended += [dot(shares, column) for column in zip(*values, strict=True)]
        out = linear(of[f"{block}attention_out.weight"], of[f"{block}attention_out.bias"], attended)
        own = add(hidden[t], gated(out, of, f"{block}attention_gate", hidden[t]))
        norm = layer_norm(of[f"{block}network_norm.weight"], of[f"{block}network_norm.bias"], own)
        if f"{block}network.into.weight" in of:
            halves = [dot(line, norm) for line in of[f"{block}network.into.weight"]]
            half = len(halves) // 2
            inner = [silu(a) * b for a, b in zip(halves[:half], halves[half:], strict=True)]
            out = [dot(line, inner) for line in of[f"{block}network.out.weight"]]
            made.append(add(own, gated(out, of, f"{block}network_gate", own)))
            continue
        inner = [act(x) for x in linear(of[f"{block}network.0.weight"], of[f"{block}network.0.bias"], norm)]
        made.append(add(own, linear(of[f"{block}network.2.weight"], of[f"{block}network.2.bias"], inner)))
    return made


def embedded(history: Sequence[int], of: Mapping[str, Any], newest: bool) -> list[list[float]]:
    """Each item of a history and its position, counted from 0 at the oldest item or at the newest."""
    width = len(of["norm.weight"])
    return [
        add(
            [math.sqrt(width) * value for value in of["embeddings.weight"][row]],
            of["positions.weight"][len(history) - 1 - t if newest else t],
        )
        for t, row in enumerate(history)
    ]


def sasrec(
    history: Sequence[int], of: Mapping[str, Any], num_blocks: int, num_heads: int, newest: bool = False
) -> list[list[float]]:
    """The representation after each item of a history; Kang and McAuley. `of`: weights by their names in the module."""
    hidden = embedded(history, of, newest)
    for number in range(num_blocks):
        hidden = transformer_block(hidden, of, f"blocks.{number}.", num_heads, True, lambda x: max(x, 0.0))
    return [layer_norm(of["norm.weight"], of["norm.bias"], h) for h in hidden]


def hstu(
    history: Sequence[int],
    of: Mapping[str, Any],
    num_heads: int,
    longest: int,
    times: Sequence[int] | None = None,
    newest: bool = False,
) -> list[list[float]]:
    """The same by pointwise attention; Zhai et al., Equations 2 and 3. times: of each item, or `UNKNOWN_TIME`."""
    width = len(of["norm.weight"])
    size = width // num_heads
    hidden = embedded(history, of, newest)
    for number in range(sum(name.endswith(".position_bias") for name in of)):
        block = f"blocks.{number}."
        norms = [layer_norm(of[f"{block}norm.weight"], of[f"{block}norm.bias"], h) for h in hidden]
        parts = [
            [silu(x) for x in linear(of[f"{block}project.weight"], of[f"{block}project.bias"], norm)] for norm in norms
        ]
        u, values, queries, keys = ([part[k * width : (k + 1) * width] for part in parts] for k in range(4))
        made = []
        for i in range(len(hidden)):
            attended = []
            for first in range(0, width, size):
                head = slice(first, first + size)
                total = [0.0] * size
                for j in range(i + 1):
                    bias = of[f"{block}position_bias"][i - j]
                    if times is not None and UNKNOWN_TIME not in (times[i], times[j]):
                        buckets = of[f"{block}time_bias"]
                        bias += buckets[min(int(math.log2(max(times[i] - times[j], 1))), len(buckets) - 1)]
                    weight = silu(dot(queries[i][head], keys[j][head]) + bias) / longest
                    total = [old + weight * value for old, value in zip(total, values[j][head], strict=True)]
                attended += total
            norm = layer_norm(of[f"{block}attended_norm.weight"], of[f"{block}attended_norm.bias"], attended)
            gated = [a * b for a, b in zip(norm, u[i], strict=True)]
            made.append(add(hidden[i], linear(of[f"{block}out.weight"], of[f"{block}out.bias"], gated)))
        hidden = made
    return [layer_norm(of["norm.weight"], of["norm.bias"], h) for h in hidden]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def text_transformer(ids: Sequence[int], of: Mapping[str, Any], num_heads: int, side: str) -> list[float]:
    """The representation of a text; RAILS, Appendix A.2.2, where a side ("query", "item") has aggregation tokens."""
    tokens = of.get(f"{side}_pooling.tokens", [])
    hidden = [*tokens, *(add(of["embeddings.weight"][i], of["positions.weight"][t]) for t, i in enumerate(ids))]
    for number in range(sum(name.endswith("attention_norm.weight") for name in of)):
        hidden = transformer_block(hidden, of, f"blocks.{number}.", num_heads, False, gelu)
    hidden = [layer_norm(of["norm.weight"], of["norm.bias"], h) for h in hidden]
    if not tokens:
        return [sum(column) / len(hidden) for column in zip(*hidden, strict=True)]
    logits = linear(of[f"{side}_pooling.weigh.weight"], of[f"{side}_pooling.weigh.bias"], hidden[0])
    num_positions = len(logits) // len(tokens)
    pooled = []
    for p in range(len(tokens)):
        shares = softmax(logits[p * num_positions : p * num_positions + len(hidden)])
        pooled += [dot(shares, column) for column in zip(*hidden, strict=True)]
    return pooled


def hashed_place(token: int, seed: int, num_inputs: int) -> int:
    """Where a token of a chunk falls: MurmurHash3's 64-bit finaliser in plain integers, less its topmost bit."""
    mask = 2**64 - 1
    value = (token + seed * 0x9E3779B97F4A7C15) & mask
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = ((value ^ (value >> 33)) * factor) & mask
    return ((value ^ (value >> 33)) & (2**63 - 1)) % num_inputs


def chunk_logits(bag: Sequence[tuple[int, float]], of: Mapping[str, Any]) -> list[float]:
    """SOLAR, Section 3.2: a bag of (place, weight), made of length 1. `of`: weights by their names in the module."""
    length = math.sqrt(sum(weight * weight for _, weight in bag))
    hidden = of["hidden_bias"]
    for place, weight in bag:
        hidden = add(hidden, [weight / length * value for value in of["input.weight"][place]])
    return linear(of["output.weight"], of["output.bias"], [max(value, 0.0) for value in hidden])
