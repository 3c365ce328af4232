"""The loops of `lookup_scan` and `postings` as numba compiles them; imported by way of `compiled` alone.

They take arrays of numpy, work on the lines first .. end - 1 and write into what they are given. Nothing is checked
here: an index beyond its array reads whatever lies there.

A key is a score and a number in 64 bits: the higher the score, the smaller the key, and for equal scores the lower the
number, the smaller the key. The smallest keys are therefore the best items under the tie rule of `top_k`.

Axes: B queries, X items, M parts of a code, L entries of a table, K chunks, R buckets, m buckets of a chunk.
"""

import os
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LANES = 32  # groups of a tile, whose largest values are found side by side
DEPTH = 32  # values of a group
TILE = LANES * DEPTH
LOW_HALF = np.uint64(0xFFFFFFFF)
SUMMED = 16  # items whose sums are held before they are written, a cache line of each query

compiled = numba.njit(nogil=True, cache="NUMBA_CACHE_DIR" in os.environ)


@compiled
def look_up(tables: Array, codes: Array, found: Array, first: int, end: int) -> None:
    """Sums of all parts, of four items side by side. tables [B, M, L], codes [X, M], found [B, X]."""
    whole = first + (end - first) // 4 * 4
    for query in range(tables.shape[0]):
        for x in range(first, whole, 4):
            total, second, third, fourth = 0.0, 0.0, 0.0, 0.0
            for part in range(codes.shape[1]):
                table = tables[query, part]
                total += table[codes[x, part]]
                second += table[codes[x + 1, part]]
                third += table[codes[x + 2, part]]
                fourth += table[codes[x + 3, part]]
            found[query, x], found[query, x + 1], found[query, x + 2], found[query, x + 3] = (
                total,
                second,
                third,
                fourth,
            )
        for x in range(whole, end):
            total = 0.0
            for part in range(codes.shape[1]):
                total += tables[query, part, codes[x, part]]
            found[query, x] = total


@compiled
def look_up_beside(tables: Array, codes: Array, found: Array, first: int, end: int) -> None:
    """Sum look-ups of many queries, an entry of all of them at once. tables [M, L, B], codes [X, M], found [B, X]."""
    num_queries = tables.shape[2]
    totals = np.empty((SUMMED, num_queries), np.float64)
    for start in range(first, end, SUMMED):
        num = min(SUMMED, end - start)
        for item in range(num):
            total = totals[item]
            total[:] = 0.0
            for part in range(codes.shape[1]):
                entries = tables[part, codes[start + item, part]]
                for query in range(num_queries):
                    total[query] += entries[query]
        for query in range(num_queries):
            for item in range(num):
                found[query, start + item] = totals[item, query]


@compiled
def look_up_own(tables: Array, codes: Array, found: Array, first: int, end: int) -> None:
    """Sum look-ups of each query's own items. tables [B, M, L], codes [B, C, M], found [B, C]."""
    for query in range(first, end):
        look_up(tables[query : query + 1], codes[query], found[query : query + 1], 0, codes.shape[1])


@compiled
def sort_by_bucket(codes: Array, first: int, end: int, starts: Array, rows: Array) -> None:
    """A counting sort of each chunk. codes [X, K], starts [K, R + 1] of zeros, rows [K, X]."""
    num_items, last = codes.shape[0], starts.shape[1] - 1
    for chunk in range(first, end):
        for x in range(num_items):
            starts[chunk, codes[x, chunk]] += 1
        before = 0
        for bucket in range(last + 1):
            num = starts[chunk, bucket]
            starts[chunk, bucket] = before
            before += num
        for x in range(num_items):  # a bucket's start moves to its end, which is the start of the next
            bucket = codes[x, chunk]
            rows[chunk, starts[chunk, bucket]] = x
            starts[chunk, bucket] += 1
        for bucket in range(last, 0, -1):
            starts[chunk, bucket] = starts[chunk, bucket - 1]
        starts[chunk, 0] = 0


@compiled
def key_of(bits: int, number: int) -> Any:
    """The key of a number and the bits of a float32 score; -0.0 counts as 0.0."""
    wide = np.uint64(bits)
    if wide >> np.uint64(31) == 0:
        wide ^= np.uint64(0x7FFFFFFF)
    elif wide == np.uint64(0x80000000):
        wide = np.uint64(0x7FFFFFFF)
    return (wide << np.uint64(32)) | np.uint64(number)


@compiled
def smallest_first(keys: Array, num_keys: int, num: int) -> None:
    """Brings the `num` smallest of the first `num_keys` keys to the front, in no order (Hoare's selection)."""
    low, high = 0, num_keys - 1
    while low < high:
        a, b, c = keys[low], keys[(low + high) // 2], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if num - 1 <= j:
            high = j
        elif num - 1 >= i:
            low = i
        else:
            return


@compiled
def largest_of_groups(values: Array, line: int, num_tiles: int, largest: Array) -> None:
    """Group g of a tile holds its entries g, g + LANES, ..: so that lanes run side by side."""
    for tile in range(num_tiles):
        for lane in range(LANES):
            best = values[line, tile * TILE + lane]
            for step in range(1, DEPTH):
                value = values[line, tile * TILE + step * LANES + lane]
                best = value if value > best else best
            largest[tile * LANES + lane] = best


@compiled
def top_entries(
    values: Array, bits: Array, first: int, end: int, num: int, largest: Array, keys: Array, found: Array
) -> None:
    """Keys of the `num` largest entries of each line, in no order. values [N, L], bits the same as integers, found
    [N, num]; largest [one per group], keys [L] to work in.

    At least num entries reach the num-th largest of the groups' largest: what lies below it is not wanted.
    """
    num_entries = values.shape[1]
    num_tiles = num_entries // TILE
    if num_tiles * LANES <= num:
        num_tiles = 0
    num_groups = num_tiles * LANES
    for line in range(first, end):
        least = np.float32(-np.inf)
        if num_groups:
            largest_of_groups(values, line, num_tiles, largest)
            bits_of_largest = largest.view(np.uint32)
            for group in range(num_groups):
                keys[group] = key_of(bits_of_largest[group], group)
            smallest_first(keys, num_groups, num)
            least = np.float32(np.inf)
            for place in range(num):
                least = min(least, largest[np.int64(keys[place] & LOW_HALF)])
        num_keys = 0
        for group in range(num_groups):
            if largest[group] >= least:
                number = group // LANES * TILE + group % LANES
                for _ in range(DEPTH):
                    if values[line, number] >= least:
                        keys[num_keys] = key_of(bits[line, number], number)
                        num_keys += 1
                    number += LANES
        for number in range(num_tiles * TILE, num_entries):
            if values[line, number] >= least:
                keys[num_keys] = key_of(bits[line, number], number)
                num_keys += 1
        smallest_first(keys, num_keys, num)
        for place in range(num):
            found[line, place] = keys[place]


@compiled
def add_block(
    rows: Array, ends: Array, weights: Array, first_row: int, end_row: int, places: Array, sums: Array, touched: Array
) -> int:
    """Adds the weights of a query's buckets to the items first_row .. end_row - 1 and says how many it touched.

    rows [K, X]; places, ends, weights [K, m]: where each bucket's postings go on and end. sums: -inf if nothing was
    added, inf at hidden items, which are never touched.
    """
    num_touched = 0
    for chunk in range(places.shape[0]):
        for number in range(places.shape[1]):
            weight = weights[chunk, number]
            place, end = places[chunk, number], ends[chunk, number]
            while place < end and rows[chunk, place] < end_row:
                x = rows[chunk, place] - first_row
                if sums[x] == -np.inf:
                    touched[num_touched] = x
                    num_touched += 1
                    sums[x] = weight
                else:
                    sums[x] += weight
                place += 1
            places[chunk, number] = place
    return num_touched


@compiled
def best_sums(
    starts: Array,
    rows: Array,
    buckets: Array,
    weights: Array,
    hidden_starts: Array,
    hidden_ends: Array,
    hidden_rows: Array,
    first: int,
    end: int,
    places: Array,
    ends: Array,
    sums: Array,
    touched: Array,
    keys: Array,
    found: Array,
    num_found: Array,
) -> None:
    """Keys of the best items of each query, at most [.., num] of found [B, num], in no order, and how many items were
    touched. starts [K, R + 1], rows [K, X], buckets and weights [B, K, m]; hidden_rows ascending from
    hidden_starts to hidden_ends [B]. To work in: places, ends [K, m]; sums, touched [items of a block], all sums -inf;
    keys [more than num]."""
    num_items, num = rows.shape[1], found.shape[1]
    bits = sums.view(np.uint32)
    for query in range(first, end):
        for chunk in range(buckets.shape[1]):
            for number in range(buckets.shape[2]):
                bucket = buckets[query, chunk, number]
                places[chunk, number] = starts[chunk, bucket]
                ends[chunk, number] = starts[chunk, bucket + 1]
        num_keys, total = 0, 0
        worst = np.uint64(0xFFFFFFFFFFFFFFFF)  # of the best num so far
        hidden = hidden_starts[query]
        for first_row in range(0, num_items, len(sums)):
            end_row = min(first_row + len(sums), num_items)
            here = hidden
            while hidden < hidden_ends[query] and hidden_rows[hidden] < end_row:
                sums[hidden_rows[hidden] - first_row] = np.inf
                hidden += 1
            num_touched = add_block(rows, ends, weights[query], first_row, end_row, places, sums, touched)
            for number in range(num_touched):
                x = touched[number]
                key = key_of(bits[x], x + first_row)
                sums[x] = -np.inf
                if key < worst:
                    keys[num_keys] = key
                    num_keys += 1
                    if num_keys == len(keys):
                        smallest_first(keys, num_keys, num)
                        num_keys = num
                        worst = keys[0]
                        for place in range(num):
                            worst = max(worst, keys[place])
            for place in range(here, hidden):
                sums[hidden_rows[place] - first_row] = -np.inf
            total += num_touched
        if num_keys > num:
            smallest_first(keys, num_keys, num)
        for place in range(min(num_keys, num)):
            found[query, place] = keys[place]
        num_found[query] = total
