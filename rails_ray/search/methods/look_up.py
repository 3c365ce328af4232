"""Items by sums of look-ups: score all of them, or those that stand in a query's best buckets.

    score(q, x) = sum_k T_k[code_k(x)]

Each chunk k posts the m buckets with its largest entries; t_k is the last of these entries. An item that is not posted
in chunk k has T_k[code_k(x)] <= t_k, so that

    U(q, x) = sum_k max(T_k[code_k(x)], t_k) = sum_k t_k + sum over the chunks that post x of (T_k[code_k(x)] - t_k)

is at least its score, be the entries probabilities or logits. The best items by U are candidates and get their whole
score; what is not scored scores no more than the largest U left, which is sum_k t_k of an item that no chunk posts.

Source: SOLAR, Section 4 (inference, Figure 2).
Differs from the source: candidates are ordered by U and then scored, which proves what was missed. The paper answers
with the sum over the chunks that post an item; the others count as 0 (weights T at `InvertedIndex`).

Axes: B queries, X items, C candidates, K chunks, R buckets of a chunk, M parts of a code, L entries of a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels import lookup_scan
from rails_ray.kernels.postings import Summed
from rails_ray.kernels.top_k import TopK
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities.states import Codes, Tables, take
from rails_ray.search.checks import OF_K, check_width
from rails_ray.search.gpu_scan import Unread, unread_scan
from rails_ray.search.indexes.inverted import InvertedIndex, check_probes, top_buckets
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.masks import Mask
from rails_ray.search.methods.brute_force import log_sum_exp
from rails_ray.search.scan import Scan
from rails_ray.search.spec import SearchResult, SearchSpec, joined
from rails_ray.search.started import Started, finished
from rails_ray.stopwatch import part

BLOCK_CODES = 2**20  # parts of candidates' codes that are gathered at once: with their numbers of entries 16 MB
BLOCK_TOUCHED = 2**22  # queries * items of a block, of which postings touch a part: at most some 100 MB


class FullLookUp:
    """Exact search that scores every item.

    Args:
        index: index of the items' codes.
    """

    is_exact = True

    def __init__(self, items: Codes, index: LookupIndex) -> None:
        self.items = items
        self.index = index

    def scores(self, query: Tables) -> Float[Tensor, "B X"]:
        """The scores of all items; for evaluation, where a batch of queries is small."""
        return self.index.scores(query.tables)

    @part("score")
    def search(self, query: Tables, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`."""
        begun = self.begin(query, spec)
        if begun is not None:
            return finished([begun])[0]
        check_tables(query, self.items.codes.shape[1])
        return self.index.search(query.tables, spec)

    def begin(self, query: Tables, spec: SearchSpec) -> list[Started] | None:
        """The contract of `Starts`."""
        return [self.start(query, spec)] if query.tables.is_cuda else None

    def start(self, query: Tables, spec: SearchSpec) -> Started:
        """Start a search, whose end also tells whether the query is finite."""
        tables, device = query.tables, query.tables.device
        check_num_parts(tables, self.items.codes.shape[1])
        spec.check_queries(len(tables))
        num_scored = torch.full((len(tables),), len(self.items), device=device)
        num_left = spec.num_left(len(tables), len(self.items), device)
        unread = unread_scan(self.index.blocks(tables), spec, num_scored, num_left)
        flags = torch.stack([tables.isfinite().all().long(), unread.longest])
        return _StartedLookUp(query, spec, unread, flags)

    def log_sum_exp(self, query: Tables, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """As in `BruteForce`."""
        check_tables(query, self.items.codes.shape[1])
        return log_sum_exp(self.index.blocks(query.tables), query.temperature, logit, mask)


class _StartedLookUp(NamedTuple):
    """The contract of `Started`."""

    query: Tables
    spec: SearchSpec
    unread: Unread
    flags: Int[Tensor, "2"]

    def finish(self, flags: Sequence[int]) -> SearchResult:
        is_finite, longest = flags
        if not is_finite:
            check_tables(self.query, self.query.tables.shape[1])
        return self.unread.read(self.spec, longest)


class Inverted:
    """Search among the items that stand in a query's best buckets; the bound says whether one was missed.

    Args:
        index: index of the items' codes.
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
        """Return whether every bucket is posted and every item is a candidate."""
        return self.num_probes == self.index.num_buckets and self.num_candidates >= len(self.items)

    def search(self, query: Tables, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`, among the items in posted buckets. The k best are found among the
        `num_candidates` best by U. With a threshold all items with U at or above it are scored, however many they are,
        so that an answer is exact if the threshold lies above sum_k t_k; with `at_least` the `num_candidates` best by U
        are scored too.

        Raises:
            ValueError: also if k is above `num_candidates`, unless a threshold is given.
        """
        self._check(query)
        spec.check_queries(len(query))
        num_left = spec.num_left(len(query), len(self.items), query.tables.device)
        size = max(len(query), 1)
        if spec.threshold is None:
            least = min(spec.k, len(self.items)) if len(query) else 0
            check_width("num_candidates", self.num_candidates, least, OF_K)
        else:  # in blocks, as a query may have any number of candidates
            size = max(BLOCK_TOUCHED // max(len(self.items), 1), 1)
        parts = []
        for first in range(0, max(len(query), 1), size):
            block = slice(first, first + size)
            own = spec if size >= len(query) else spec.of_queries(torch.arange(first, min(first + size, len(query))))
            parts.append(self._search(take(query, block), own, num_left[block]))
        return parts[0] if len(parts) == 1 else joined(parts)

    def _search(self, query: Tables, spec: SearchSpec, num_left: Int[Tensor, " B"]) -> SearchResult:
        """The answer for all queries at once."""
        posted = Posted(query, self.num_probes)
        touched = self._touched(posted, spec)
        sums = touched.top_k.scores
        num_scored, most = self._num_scored(posted, touched, spec)
        is_out = torch.arange(sums.shape[1], device=sums.device) >= num_scored[:, None]
        candidates = TopK(sums.masked_fill(is_out, -torch.inf)[:, :most], touched.top_k.item_rows[:, :most])
        item_rows, order = candidates.item_rows.sort(dim=1)  # as a scan takes them
        running = Scan(replace(spec, mask=None))
        running.add(0, self._scores(query, candidates).gather(1, order))
        bound = posted.bounds(left_out(sums, num_scored, num_left))[:, 0]
        return running.found(num_scored, num_left, bound=bound, item_rows=item_rows)

    def _touched(self, posted: "Posted", spec: SearchSpec) -> Summed:
        """Items of posted buckets: with a threshold all of them, else the candidates and the next in line."""
        most = self.num_candidates + 1
        if spec.threshold is not None:
            num_postings = self.index.num_postings(posted.buckets)
            most = max(int(num_postings.max()) if len(num_postings) else 0, 1)  # items that they can touch
        return self.index.candidates(posted.buckets, posted.weights, most, spec.mask)

    def _num_scored(self, posted: "Posted", touched: Summed, spec: SearchSpec) -> tuple[Int[Tensor, " B"], int]:
        """How many of the best items by U are candidates of each query, and an upper bound for all queries."""
        if spec.threshold is None:
            return touched.num_touched.clamp(max=self.num_candidates), self.num_candidates
        sums = touched.top_k.scores
        is_reaching = posted.bounds(sums) >= spec.threshold.float()[:, None]
        least = max(self.num_candidates, spec.at_least) if spec.at_least else 0
        num = torch.maximum((is_reaching & (sums > -torch.inf)).sum(dim=1), touched.num_touched.clamp(max=least))
        return num, int(num.max()) if len(num) else 0

    @part("score")
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
    """Return what the sum of an item's weights T - t says about its score.

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
        """Scores that items with these sums of weights stay below; -inf for a sum of -inf, which is no item."""
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
    ValueError: if the query is not finite or does not have one table for each part of a code.
    """
    tables = query.tables
    check_num_parts(tables, num_parts)
    if not tables.sum().isfinite():  # a sum is as fast as memory, and finite only if all are
        is_finite = tables.isfinite().flatten(start_dim=1).all(dim=1)
        if not is_finite.all():
            line = int((~is_finite).nonzero()[0])
            raise ValueError(f"query tables must be finite, got NaN or infinity in query {line}")


def check_num_parts(tables: Float[Tensor, "B M L"], num_parts: int) -> None:
    """Raises:
    ValueError: if there is not one table for each part of a code.
    """
    if tables.shape[1] != num_parts:
        raise ValueError(f"tables must have the {num_parts} parts of the codes, got {tables.shape[1]}")


def left_out(
    sums: Float[Tensor, "B C"], num_scored: Int[Tensor, " B"], num_left: Int[Tensor, " B"]
) -> Float[Tensor, "B 1"]:
    """The largest sum of an item that was not scored: the next in line, 0 if that stands in no posted bucket, -inf if
    there is no such item."""
    following = F.pad(sums, (0, 1), value=-torch.inf).gather(1, num_scored[:, None])
    is_untouched = (following == -torch.inf) & (num_scored < num_left)[:, None]
    return following.masked_fill(is_untouched, 0.0)
