"""One corpus in several parts by chunk: each part holds some of the K chunks of all items and gives partial sums.

    every item:     partial scores of each part, block by block  ->  their sum  ->  top-k
    inverted:       partial sums of each part over its postings  ->  candidates
                    partial scores of the candidates             ->  their sum  ->  top-k

A library, for batches of queries on several machines; what is served is cut by items. As parts share no chunk, each is
made and searched without any other (SOLAR, Section 3: no communication). The answer is that of one machine but for
rounding: partial scores are added in float64, so that a score is off by at most one float32 from what one machine
finds, and seldom is; partial sums over postings are those of float32, so that which of two items with nearly equal sums
is the last candidate may differ. Where tables hold numbers whose sums float32 holds exactly, nothing differs, ties
included.

What a part sends of a query is what its postings touch, some K' m X / R rows and sums, or a number for every item.

Source: SOLAR, Section 3 (independent chunks) and Section 4 (inference).

Axes: B queries, X items, C items that a part touches or candidates, K chunks of a part, R buckets of a chunk.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from rails_ray.indexes.inverted import InvertedIndex, check_probes
from rails_ray.indexes.lookup import check_codes, check_entries
from rails_ray.kernels import lookup_scan
from rails_ray.retrieval import Found
from rails_ray.retrieval.certificate import Certificate, all_scored
from rails_ray.retrieval.checks import check_width
from rails_ray.retrieval.look_up import Bounds, Posted, check_tables, left_out, num_left_of
from rails_ray.similarities.states import Codes, Tables, take
from rails_ray.top_k import Exclusions, Scan, TopK, check_k, select


@dataclass(frozen=True)
class Touched:
    """What the postings of a part touch.

    top_k: all these items by the sums of their weights in the part.
    bounds: what a sum says of the part's share in a score.
    """

    top_k: TopK
    bounds: Bounds


@dataclass(frozen=True)
class Candidates:
    """The best items by the sums of all parts.

    top_k: in float64; places that hold none as ever.
    bound: no other item scores above it.
    num_found: how many there are of each query.
    """

    top_k: TopK
    bound: Float[Tensor, " B"]
    num_found: Int[Tensor, " B"]


def partial_scores(query: Tables, items: Codes, size: int) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
    """(First item row, partial scores in float64) of each block of so many items; of a part.

    Raises:
        ValueError: if the query is not finite, or not of the part's chunks and buckets.
    """
    _check(query, items.codes)
    for first in range(0, len(items), size):
        yield first, lookup_scan.scores(query.tables, items.codes[first : first + size], torch.float64)


def merge_scores(
    parts: Sequence[Iterable[tuple[int, Float[Tensor, "B _"]]]], k: int, exclude: Exclusions | None = None
) -> Found:
    """The k best of all items, from the blocks of all parts.

    Raises:
        ValueError: unless 1 <= k <= X.
    """
    best, num_items = Scan(k, exclude), 0
    for blocks in zip(*parts, strict=True):
        scores = _total([block for _, block in blocks])
        best.add(blocks[0][0], scores)
        num_items += scores.shape[1]
    check_k(k, num_items)
    top_k = best.top_k().exactly_k()
    num_queries, device = len(top_k.scores), top_k.scores.device
    num_scored = torch.full((num_queries,), num_items, device=device)
    return Found(top_k, all_scored(num_queries, device), num_scored)


def partial_sums(query: Tables, index: InvertedIndex, num_probes: int, exclude: Exclusions | None = None) -> Touched:
    """All items in the best buckets of a part's chunks.

    Raises:
        ValueError: if the query is not finite, or not of the part's chunks, or `num_probes` is above the buckets.
    """
    check_tables(query, index.num_chunks)
    check_probes(num_probes, index.num_buckets)
    posted = Posted(query, num_probes)
    num_postings = index.num_postings(posted.buckets)
    most = max(int(num_postings.max()) if len(query) else 0, 1)
    found = index.candidates(posted.buckets, posted.weights, most, exclude)
    longest = int(found.num_touched.max()) if len(query) else 0
    return Touched(TopK(found.top_k.scores[:, :longest], found.top_k.item_rows[:, :longest]), posted.bounds)


def merge_sums(
    parts: Sequence[Touched], query: Tables, num_items: int, num_candidates: int, exclude: Exclusions | None = None
) -> Candidates:
    """The candidates of each query, from what the postings of all parts touch.

    Args:
        query, exclude: as one of the parts had them.
        num_items: of the corpus.
    """
    width = min(num_candidates, num_items) + 1  # one more, which bounds the others
    sums = torch.full((len(query), width), -torch.inf, dtype=torch.float64, device=query.tables.device)
    item_rows = torch.zeros(sums.shape, dtype=torch.int64, device=sums.device)
    for line in range(len(query)):
        best = _added([part.top_k for part in parts], line, width)
        sums[line, : best.k], item_rows[line, : best.k] = best.scores[0], best.item_rows[0]
    best = TopK(sums[:, :-1], item_rows[:, :-1])
    num_found = best.num_found()
    bounds = Bounds(
        torch.stack([part.bounds.least for part in parts]).sum(dim=0),
        torch.stack([part.bounds.sizes for part in parts]).sum(dim=0),
        sum(part.bounds.num_chunks for part in parts),
    )
    bound = bounds(left_out(sums, num_found, num_left_of(query, num_items, exclude)))[:, 0]
    return Candidates(best, bound, num_found)


def partial_candidate_scores(query: Tables, items: Codes, candidates: Candidates) -> Float[Tensor, "B C"]:
    """Partial scores in float64 of the candidates; of a part.

    Raises:
        ValueError: if the query is not finite, or not of the part's chunks and buckets.
    """
    codes = take(items, candidates.top_k.item_rows).codes
    _check(query, codes)
    return lookup_scan.scores(query.tables, codes, torch.float64)


def merge_candidate_scores(parts: Sequence[Float[Tensor, "B C"]], candidates: Candidates, k: int) -> Found:
    """The answer of `look_up.Inverted`, from the candidates' scores of all parts.

    Raises:
        ValueError: if k is above the candidates of a query.
    """
    by_sum = candidates.top_k
    check_width("num_candidates", by_sum.k, k, ", the k of the search")
    top_k = select(_total(parts).masked_fill(by_sum.scores == -torch.inf, -torch.inf), k, by_sum.item_rows)
    item_rows = top_k.item_rows.masked_fill(top_k.scores == -torch.inf, 0)
    return Found(TopK(top_k.scores, item_rows), Certificate(candidates.bound), candidates.num_found)


def _check(query: Tables, codes: Integer[Tensor, "*X K"]) -> None:
    """Raises:
    ValueError: if the query is not finite, or codes do not point into its tables.
    """
    check_tables(query, codes.shape[-1])
    check_entries(check_codes(codes), query.tables.shape[2])


def _added(parts: Sequence[TopK], line: int, num: int) -> TopK:
    """The best items of a query by the sums of all parts, in float64."""
    is_there = [part.scores[line] > -torch.inf for part in parts]
    rows = torch.cat([part.item_rows[line, own] for part, own in zip(parts, is_there, strict=True)])
    sums = torch.cat([part.scores[line, own] for part, own in zip(parts, is_there, strict=True)])
    rows, place = rows.unique(return_inverse=True)
    added = torch.zeros(len(rows), dtype=torch.float64, device=rows.device).index_add(0, place, sums.double())
    return select(added[None], num, rows[None])


def _total(parts: Sequence[Float[Tensor, "B _"]]) -> Float[Tensor, "B _"]:
    return torch.stack(list(parts)).sum(dim=0).float()
