"""Items by sums of look-ups: score all of them, or those that stand in a query's best buckets.

    score(q, x) = sum_k T_k[code_k(x)]

Of each chunk k the m buckets with the largest entries are posted, t_k being the last of these entries. An item that is
not posted in chunk k has T_k[code_k(x)] <= t_k, so that

    U(q, x) = sum_k max(T_k[code_k(x)], t_k) = sum_k t_k + sum over the chunks that post x of (T_k[code_k(x)] - t_k)

is at least its score, be the entries probabilities or logits. The best items by U are candidates and get their whole
score; what is not scored scores no more than the largest U left, which is sum_k t_k of an item that no chunk posts.

Source: SOLAR, Section 4 (inference, Figure 2).
Differs from the source: candidates are ordered by U and then scored, which proves what was missed. The paper answers
with the sum over the chunks that post an item, in which the others count as 0 (weights T at `InvertedIndex`).

Axes: B queries, X items, C candidates, K chunks, R buckets of a chunk, M parts of a code, L entries of a table.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.above import Above, ScanAbove, check_above
from rails_ray.indexes.inverted import InvertedIndex, check_probes, top_buckets
from rails_ray.indexes.lookup import LookupIndex
from rails_ray.kernels import lookup_scan
from rails_ray.kernels.postings import exclude_of
from rails_ray.retrieval import Found, FoundAbove
from rails_ray.retrieval.certificate import Certificate, all_scored
from rails_ray.retrieval.checks import check_width
from rails_ray.similarities.states import Codes, Tables, take
from rails_ray.top_k import Exclusions, TopK, check_k, select

BLOCK_CODES = 2**20  # parts of candidates' codes that are gathered at once: with their numbers of entries 16 MB
BLOCK_TOUCHED = 2**22  # queries * items of a block, of which postings touch a part: at most some 100 MB


class FullLookUp:
    """Exact search that scores every item.

    Args:
        index: of the items' codes.
    """

    is_exact = True

    def __init__(self, items: Codes, index: LookupIndex) -> None:
        self.items = items
        self.index = index

    def scores(self, query: Tables) -> Float[Tensor, "B X"]:
        """The scores of all items; for evaluation, where a batch of queries is small."""
        return self.index.scores(query.tables)

    def search(self, query: Tables, k: int, exclude: Exclusions | None = None) -> Found:
        """The contract of `Retriever`."""
        check_k(k, len(self.items))
        check_tables(query, self.items.codes.shape[1])
        top_k = self.index.search(query.tables, k, exclude)
        return Found(top_k.exactly_k(), all_scored(len(query), query.tables.device), self._num_scored(query))

    def search_above(
        self,
        query: Tables,
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> FoundAbove:
        """The contract of `Retriever`."""
        check_above(len(query), threshold, cap, at_least)
        check_tables(query, self.items.codes.shape[1])
        above = self.index.search_above(query.tables, threshold, cap, exclude, at_least)
        return FoundAbove(above, all_scored(len(query), query.tables.device), self._num_scored(query))

    def _num_scored(self, query: Tables) -> Int[Tensor, " B"]:
        return torch.full((len(query),), len(self.items), device=query.tables.device)


class Inverted:
    """Search among the items that stand in a query's best buckets; the certificate says whether one was missed.

    Args:
        index: of the items' codes.
        num_probes: m, buckets of each chunk.
        num_candidates: items that get their whole score.
    """

    def __init__(self, items: Codes, index: InvertedIndex, num_probes: int, num_candidates: int) -> None:
        check_probes(num_probes, index.num_buckets)
        check_width("num_candidates", num_candidates, 1, "")
        shape = (index.num_items, index.num_chunks)
        if items.codes.shape != shape:
            raise ValueError(f"items must have the {shape} codes of the index, got {tuple(items.codes.shape)}")
        self.items = items
        self.index = index
        self.num_probes = num_probes
        self.num_candidates = num_candidates

    @property
    def is_exact(self) -> bool:
        """Where every bucket is posted and every item is a candidate."""
        return self.num_probes == self.index.num_buckets and self.num_candidates >= len(self.items)

    def search(self, query: Tables, k: int, exclude: Exclusions | None = None) -> Found:
        """The contract of `Retriever`, but that fewer than k items may be found: then the last places have score -inf.

        Raises:
            ValueError: also if k is above `num_candidates`.
        """
        check_k(k, len(self.items))
        self._check(query)
        check_width("num_candidates", self.num_candidates, k, ", the k of the search")
        num_left = num_left_of(query, len(self.items), exclude)
        fewest = int(num_left.min()) if len(query) else k
        if fewest < k:
            raise ValueError(f"k must be at most the {fewest} items left after exclusion, got {k}")
        posted = Posted(query, self.num_probes)
        touched = self.index.candidates(posted.buckets, posted.weights, self.num_candidates + 1, exclude)
        num_scored = touched.num_touched.clamp(max=self.num_candidates)
        bound = posted.bounds(left_out(touched.top_k.scores, num_scored, num_left))[:, 0]
        candidates = _first(touched.top_k, self.num_candidates)
        top_k = select(self._scores(query, candidates), k, candidates.item_rows)
        item_rows = top_k.item_rows.masked_fill(top_k.scores == -torch.inf, 0)
        return Found(TopK(top_k.scores, item_rows), Certificate(bound), num_scored)

    def search_above(
        self,
        query: Tables,
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> FoundAbove:
        """The contract of `Retriever`, of the items in posted buckets: all those with U at or above the threshold are
        scored, however many they are, so that an answer is exact where the threshold lies above sum_k t_k. Where
        `at_least` is given, the best `num_candidates` by U are scored in any case."""
        check_above(len(query), threshold, cap, at_least)
        self._check(query)
        num_left = num_left_of(query, len(self.items), exclude)
        least = max(self.num_candidates, at_least) if at_least else 0
        size = max(BLOCK_TOUCHED // max(len(self.items), 1), 1)
        parts = []
        for first in range(0, max(len(query), 1), size):
            block = slice(first, first + size)
            own = None if exclude is None else exclude_of(exclude, first, first + size)
            found = ScanAbove(threshold[block], cap, at_least)
            parts.append(self._above(take(query, block), num_left[block], threshold[block].float(), least, found, own))
        return _joined(parts)

    def _above(
        self,
        query: Tables,
        num_left: Int[Tensor, " B"],
        threshold: Float[Tensor, " B"],
        least: int,
        found: ScanAbove,
        exclude: Exclusions | None,
    ) -> FoundAbove:
        """Of some queries.

        Args:
            least: so many are scored in any case.
        """
        posted = Posted(query, self.num_probes)
        num_postings = self.index.num_postings(posted.buckets)
        most = max(int(num_postings.max()) if len(query) else 0, 1)  # they can touch
        touched = self.index.candidates(posted.buckets, posted.weights, most, exclude)
        sums = touched.top_k.scores
        num_scored = ((posted.bounds(sums) >= threshold[:, None]) & (sums > -torch.inf)).sum(dim=1)
        num_scored = torch.maximum(num_scored, touched.num_touched.clamp(max=least))
        candidates = _first(touched.top_k, int(num_scored.max()) if len(query) else 0)
        is_out = torch.arange(candidates.k, device=sums.device) >= num_scored[:, None]
        candidates = TopK(candidates.scores.masked_fill(is_out, -torch.inf), candidates.item_rows)
        item_rows, order = candidates.item_rows.sort(dim=1)  # as a scan takes them
        found.add(0, self._scores(query, candidates).gather(1, order))
        above = found.above()
        best = above.top_k
        best = TopK(best.scores, item_rows.gather(1, best.item_rows).masked_fill(best.scores == -torch.inf, 0))
        bound = posted.bounds(left_out(sums, num_scored, num_left))[:, 0]
        return FoundAbove(Above(best, above.is_truncated), Certificate(bound), num_scored)

    def _scores(self, query: Tables, candidates: TopK) -> Float[Tensor, "B C"]:
        """The score of each candidate; -inf at places that hold none."""
        size = max(BLOCK_CODES // max(candidates.k * self.index.num_chunks, 1), 1)
        scores = []
        for first in range(0, max(len(query), 1), size):
            block = slice(first, first + size)
            codes = take(self.items, candidates.item_rows[block]).codes
            scores.append(lookup_scan.scores(query.tables[block], codes))
        return torch.cat(scores).masked_fill(candidates.scores == -torch.inf, -torch.inf)

    def _check(self, query: Tables) -> None:
        check_tables(query, self.index.num_chunks)
        if query.tables.shape[2] != self.index.num_buckets:
            raise ValueError(
                f"tables must have an entry for each of the {self.index.num_buckets} buckets, "
                f"got {query.tables.shape[2]}"
            )


@dataclass(frozen=True)
class Bounds:
    """What follows of an item's score from the sum of its weights T - t.

    Weights and their sum are rounded in float32, by at most K + 1 roundings of 2^-24 relative, as all terms are at
    least 0; sum_k t_k and a score are added up in float64, by at most K roundings of 2^-53 of the entries' sizes. A
    score is then rounded to float32, which never turns an order round, so that the next float32 above what is bounded
    so exceeds it, ties included.

    least: sum_k t_k, in float64.
    sizes: sum_k of the largest and the last posted entry without their signs, in float64.
    num_chunks: K.
    """

    least: Float[Tensor, " B"]
    sizes: Float[Tensor, " B"]
    num_chunks: int

    def __call__(self, sums: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Scores that items with these sums of weights stay below; -inf where there is none."""
        most = self.least + self.num_chunks * 2.0**-50 * self.sizes
        roundings = 1 + (self.num_chunks + 2) * 2.0**-23
        upper = (most[:, None] + sums.double() * roundings).float()
        above = upper.nextafter(torch.full_like(upper, torch.inf))
        return above.masked_fill(sums == -torch.inf, -torch.inf)


class Posted:
    """The best buckets of each query, with weights T - t."""

    def __init__(self, query: Tables, num_probes: int) -> None:
        posted = top_buckets(query.tables, num_probes)
        first, last = posted.values[:, :, 0].double(), posted.values[:, :, -1].double()
        self.buckets = posted.buckets
        self.weights = posted.values - posted.values[:, :, -1:]
        self.bounds = Bounds(last.sum(dim=1), (first.abs() + last.abs()).sum(dim=1), posted.buckets.shape[1])


def check_tables(query: Tables, num_parts: int) -> None:
    """Raises:
    ValueError: if the query is not finite or has not one table for each part of a code.
    """
    tables = query.tables
    if tables.shape[1] != num_parts:
        raise ValueError(f"tables must have the {num_parts} parts of the codes, got {tables.shape[1]}")
    if not tables.sum().isfinite():  # a sum reads as fast as memory can, and only where all are finite it may be finite
        is_finite = tables.isfinite().flatten(start_dim=1).all(dim=1)
        if not is_finite.all():
            line = int((~is_finite).nonzero()[0])
            raise ValueError(f"query tables must be finite, got NaN or infinity in query {line}")


def num_left_of(query: Tables, num_items: int, exclude: Exclusions | None) -> Int[Tensor, " B"]:
    """Items that are not excluded."""
    num_left = torch.full((len(query),), num_items, device=query.tables.device)
    if exclude is not None:
        line, row = exclude.pairs.to(num_left.device).unique(dim=0).unbind(1)
        num_left -= line[(row >= 0) & (row < num_items)].bincount(minlength=len(query))
    return num_left


def left_out(
    sums: Float[Tensor, "B C"], num_scored: Int[Tensor, " B"], num_left: Int[Tensor, " B"]
) -> Float[Tensor, "B 1"]:
    """The largest sum of an item that was not scored: the next in line, 0 where it stands in no bucket that is posted,
    and -inf where there is none."""
    following = F.pad(sums, (0, 1), value=-torch.inf).gather(1, num_scored[:, None])
    is_untouched = (following == -torch.inf) & (num_scored < num_left)[:, None]
    return following.masked_fill(is_untouched, 0.0)


def _first(top_k: TopK, num: int) -> TopK:
    return TopK(top_k.scores[:, :num], top_k.item_rows[:, :num])


def _joined(parts: list[FoundAbove]) -> FoundAbove:
    """The answers of a batch from those of its blocks."""
    longest = max(part.above.top_k.k for part in parts)
    scores, item_rows, bounds = [], [], []
    for part in parts:
        more = (0, longest - part.above.top_k.k)
        scores.append(F.pad(part.above.top_k.scores, more, value=-torch.inf))
        item_rows.append(F.pad(part.above.top_k.item_rows, more))
        assert part.certificate.bound is not None
        bounds.append(part.certificate.bound)
    above = Above(TopK(torch.cat(scores), torch.cat(item_rows)), torch.cat([part.above.is_truncated for part in parts]))
    return FoundAbove(above, Certificate(torch.cat(bounds)), torch.cat([part.num_scored for part in parts]))
