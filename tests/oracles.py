"""Every equation as naive loops: short, obviously right, slow. Lists and floats in, lists and floats out.

The letters are those of `rails_ray/__init__.py`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mpmath
import numpy as np

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


def rank_of_best(scores: Vector, relevant: Sequence[int], excluded: Sequence[int] = ()) -> int:
    """The rank, from 1, of the first relevant item in the order of `top_k`."""
    return 1 + min(top_k(scores, len(scores), excluded).index(row) for row in relevant)


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


def nucleus(weights: Sequence[float], share: float) -> int:
    """How many of these weights, largest first, it takes to hold a share of their sum."""
    held = 0.0
    for number, weight in enumerate(weights, start=1):
        held += weight
        if held >= share * sum(weights):
            return number
    return len(weights)


def conformal_share(shares: Sequence[Sequence[float]], coverage: float) -> float:
    """The largest observed share v with (sum of the queries' missed fractions + 1) / (n + 1) <= 1 - coverage."""
    allowed = []
    for v in {share for line in shares for share in line}:
        missed = sum(sum(share < v for share in line) / len(line) for line in shares)
        if (missed + 1) / (len(shares) + 1) <= 1 - coverage + 1e-9:
            allowed.append(v)
    return max(allowed)


def segment_members(tau: Sequence[float], new: float, num_segments: int, least: int) -> list[int]:
    """The calibration queries in the segment of a new one: put it into the bag, sort, cut, pool if one is short."""
    bag = sorted([*tau, new])
    edges = []
    for s in range(1, num_segments):
        rank = round(s * len(bag) / num_segments)
        if rank > 0:
            edges.append(bag[rank - 1])

    def segment(t: float) -> int:
        return sum(edge < t for edge in edges)

    sizes = {number: sum(segment(t) == number for t in bag) for number in map(segment, bag)}
    if min(sizes.values()) < least:
        return list(range(len(tau)))
    return [row for row, t in enumerate(tau) if segment(t) == segment(new)]


def calibrated_share(
    shares: Sequence[Sequence[float]], tau: Sequence[float], new: float, num_segments: int, coverage: float
) -> float:
    """v_c for a new query of tau_q `new`."""
    needed = next(n for n in range(1, 10**6) if 1 / (n + 1) <= 1 - coverage + 1e-12)
    members = segment_members(tau, new, num_segments, needed + 1)
    return conformal_share([shares[row] for row in members], coverage)


def coverage(queries: Sequence[tuple[Sequence[float], float]]) -> float:
    """The mean over queries, given as the shares of their positives and v_c, of what is covered."""
    each = [sum(share >= v for share in line) / len(line) for line, v in queries]
    return sum(each) / len(each)


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


def add(a: Vector, b: Vector) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def layer_norm(weight: Vector, bias: Vector, x: Vector) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [w * (value - mean) / math.sqrt(variance + 1e-5) + b for w, b, value in zip(weight, bias, x, strict=True)]


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
        own = add(hidden[t], out)
        norm = layer_norm(of[f"{block}network_norm.weight"], of[f"{block}network_norm.bias"], own)
        inner = [act(x) for x in linear(of[f"{block}network.0.weight"], of[f"{block}network.0.bias"], norm)]
        made.append(add(own, linear(of[f"{block}network.2.weight"], of[f"{block}network.2.bias"], inner)))
    return made


def sasrec(history: Sequence[int], of: Mapping[str, Any], num_blocks: int, num_heads: int) -> list[list[float]]:
    """The representation after each item of a history; Kang and McAuley. `of`: weights by their names in the module."""
    width = len(of["norm.weight"])
    hidden = [
        add([math.sqrt(width) * value for value in of["embeddings.weight"][row]], of["positions.weight"][t])
        for t, row in enumerate(history)
    ]
    for number in range(num_blocks):
        hidden = transformer_block(hidden, of, f"blocks.{number}.", num_heads, True, lambda x: max(x, 0.0))
    return [layer_norm(of["norm.weight"], of["norm.bias"], h) for h in hidden]


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


def histories(interactions: Sequence[tuple[Any, Any, int]]) -> dict[Any, list[Any]]:
    """The items of each user, from (user, item, position), equal positions as they come."""
    found: dict[Any, list[Any]] = {}
    for user, item, _ in sorted(interactions, key=lambda interaction: interaction[2]):
        found.setdefault(user, []).append(item)
    return found


def leave_one_out(history: Sequence[Any]) -> dict[str, tuple[Sequence[Any], Any]]:
    """(items before, item asked for) in each split that a user is in."""
    training = history[:-2] if len(history) >= 3 else history
    asked = {"train": (training[:-1], training[-1])} if len(training) >= 2 else {}
    if len(history) >= 3:
        asked |= {"valid": (history[:-2], history[-2]), "test": (history[:-1], history[-1])}
    return asked


def items_above(
    scores: Vector, threshold: float, cap: int, at_least: int = 0, excluded: Sequence[int] = ()
) -> tuple[list[int], bool]:
    """Item rows of `top_k` that reach the threshold, or the first `at_least`; whether the cap left one out."""
    rows = top_k(scores, len(scores), excluded)
    above = [row for row in rows if scores[row] >= threshold]
    return rows[: max(min(len(above), cap), at_least)], len(above) > cap


def beta_mass_below(threshold: float, tau_q: float, a: float, b: float) -> mpmath.mpf:
    """P(score < threshold) after BetaNCE over Beta(a, b); pEBR, Appendix A, with alpha = 1 + 1/tau_q."""
    with mpmath.workdps(40):
        z = (1 + mpmath.mpf(threshold)) / 2
        return mpmath.betainc(a + 1 / mpmath.mpf(tau_q), b, 0, z, regularized=True)


def exp_mass_below(threshold: float, tau_q: float, a: float, b: float) -> mpmath.mpf:
    """P(score < threshold) after ExpNCE over Beta(a, b), a and b at least 1; pEBR, Equation 3.

    Integrated in pieces that end around the mode and the threshold.
    """

    def log_density(z: float) -> float:
        return 2 * z / tau_q + (a - 1) * math.log(z) + (b - 1) * math.log(1 - z)

    mode = max(((step + 0.5) / 2000 for step in range(2000)), key=log_density)
    with mpmath.workdps(30):
        z, one = (1 + mpmath.mpf(threshold)) / 2, mpmath.mpf(1)
        ends = {mpmath.mpf(0), z, one} | {z * (1 - mpmath.mpf(10) ** -k) for k in (1, 2, 3)}
        ends |= {end for k in (1, 2, 3) for end in (mode - mpmath.mpf(10) ** -k, mode + mpmath.mpf(10) ** -k)}
        ends = sorted(end for end in ends if 0 <= end <= 1)

        def density(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(2 * (x - 1) / mpmath.mpf(tau_q)) * x ** mpmath.mpf(a - 1) * (1 - x) ** mpmath.mpf(b - 1)

        def integral(ends: Sequence[mpmath.mpf]) -> mpmath.mpf:
            highest = max(density(end) for end in ends)  # the tolerance of quad is absolute
            return highest * mpmath.quad(lambda x: density(x) / highest, ends)

        below, above = integral(ends[: ends.index(z) + 1]), integral(ends[ends.index(z) :])
        return below / (below + above)


def printed_beta_threshold(mass: float, tau_q: float) -> float:
    """The score with P(score >= t) = mass as pEBR prints it: Equation 2's alpha = 1/tau_q is one too low."""
    return 2 * (1 - mass) ** tau_q - 1


def printed_exp_mass_below(threshold: float, tau_q: float) -> float:
    """pEBR, Section 2.4.1, as printed, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        at_threshold, at_1, at_minus_1 = np.exp(np.array([threshold, 1, -1], dtype=np.float32) / np.float32(tau_q))
        return float((at_threshold - at_minus_1) / (at_1 - at_minus_1))


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


def shares_of_lists(is_relevant: Sequence[Sequence[bool]], num_relevant: Sequence[int], k: int) -> dict[str, float]:
    """Means over queries of the hits among the first k over k, over min(relevant, k) and over the relevant."""
    hits = [sum(1 for rank, hit in enumerate(line, start=1) if hit and rank <= k) for line in is_relevant]
    pairs = list(zip(hits, num_relevant, strict=True))
    return {
        "precision": sum(hit / k for hit, _ in pairs) / len(pairs),
        "attainable precision": sum(hit / min(count, k) for hit, count in pairs) / len(pairs),
        "recall of relevant": sum(hit / count for hit, count in pairs) / len(pairs),
    }


def look_up(tables: Matrix, code: Sequence[int]) -> float:
    """SOLAR's score, and a product quantizer's: what each part of a code is worth, added up."""
    return sum(table[entry] for table, entry in zip(tables, code, strict=True))


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


def bucket_targets(relevant: Sequence[Sequence[int]], buckets: Sequence[int], num_buckets: int) -> list[list[int]]:
    """The OR of the codes of the items that answer each query, in one chunk."""
    return [[int(any(buckets[row] == b for row in rows)) for b in range(num_buckets)] for rows in relevant]


def binary_cross_entropy(logits: Vector, targets: Sequence[int]) -> float:
    """SOLAR, Section 3.2: the loss of a query, over all buckets."""
    return -sum(math.log(sigmoid(z if y else -z)) for z, y in zip(logits, targets, strict=True))


def bucket_recall(logits: Matrix, targets: Sequence[Sequence[int]], m: int) -> float:
    """The share of a query's positive buckets among the m with the largest logits, mean over queries."""
    shares = [sum(line[b] for b in top_k(z, m)) / sum(line) for z, line in zip(logits, targets, strict=True)]
    return sum(shares) / len(shares)


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


# MoPQ


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


# RBE


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


def top_share(estimated: Vector, relevance: Vector, num_best: int) -> float:
    """RBE, Appendix C, with its sign put right."""
    least = sorted(relevance, reverse=True)[num_best - 1]
    return -sum(p * (1 if r >= least else -1) for p, r in zip(softmax(estimated), relevance, strict=True))
