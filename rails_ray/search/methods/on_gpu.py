"""The exact scan on a GPU: all scores at once in the arithmetic that is fast there, then the best again in float32.

    1. s'(x) of every item, by `kernels.fused_scan`, off by e; the best by s', more than are wanted
    2. s(x) of these in float32; the k best by s are the answer if the k-th is above max s' of the others + e

e is taken from what was seen: several times the largest |s' - s| of a query's own candidates. Where an answer cannot be
closed so, more candidates are taken, and then every item is scored in float32, as `brute_force` does it. Some items
alone are scored by a list of their rows, and their states stay where they are.

That is an estimate and no proof: an item whose own error is larger may be missed. The host looks once at what was
computed, at the end. What a batch of a size runs is recorded as a CUDA graph, as a hundred small operators take the
host longer to start than a GPU to run.

Source: RAILS, Section 3 (brute force).

Axes: B queries, X items, C candidates.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.kernels.fused_scan import FusedScan, fused_scan, select
from rails_ray.kernels.top_k import TopK, merge, select_by_tiles
from rails_ray.kernels.uploads import upload
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities.mol import PreparedMixture
from rails_ray.modules.similarities.states import ItemState, QueryState, map_tensors, take
from rails_ray.search.candidates import Candidates
from rails_ray.search.checks import check_finite, check_shapes
from rails_ray.search.gpu_scan import unread_scan
from rails_ray.search.masks import Mask
from rails_ray.search.methods.brute_force import BLOCK_QUERIES, BruteForce
from rails_ray.search.rescore import candidate_scores
from rails_ray.search.selected import Selected
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.started import Started, finished
from rails_ray.stopwatch import part

BLOCK_SCORES = 2**28  # of all queries and a block of items: 1 GB
SPARE = 32  # candidates beside twice as many as are wanted
WIDER = 8  # times as many, where an answer stays open
SAFETY = 4.0  # times the largest error seen
LEAST_ERROR = 1e-6
MOST_RECORDED = 32  # queries of a batch whose search is recorded
MOST_GRAPHS = 16
WARMED_K = (10, 100)
WARMED_ROWS = (1_000, 20_000)  # of lists: the best of few scores are selected in fewer steps, each a kernel of its own
RECORDING = threading.Lock()  # CUDA records one graph of a process at a time

# of all items, or of those in a list of rows
FastScores = Callable[[QueryState, ItemState, Int[Tensor, " n"] | None], Tensor]


class Answer(NamedTuple):
    """The k best, and what the host looks at.

    flags: whether the answer may lack an item, and whether the query is finite.
    """

    scores: Float[Tensor, "B k"]
    item_rows: Int[Tensor, "B k"]
    is_truncated: Bool[Tensor, " B"]
    flags: Bool[Tensor, "2"]


class StartedScan(NamedTuple):
    """Scan that has started on the GPU, and whose flags the host has not read.

    flags: those of `Answer`, and how many places the longest list needs.
    """

    scan: "GpuScan"
    query: QueryState
    spec: SearchSpec
    found: SearchResult
    flags: Int[Tensor, "3"]

    def closed(self, is_open: int, is_finite: int, longest: int) -> SearchResult | None:
        """The answer, by its flags; None if more candidates must be taken."""
        if not is_finite:
            check_finite(self.query)
        if is_open:
            return None
        return self.found if self.spec.threshold is None else self.found.first(longest)

    def finish(self, flags: Sequence[int]) -> SearchResult:
        """The answer; where it stays open, that of more candidates, or at last of every item's score in float32."""
        found = self.closed(*flags)
        if found is None:
            wider = self.scan.start(self.query, self.spec, WIDER)
            found = wider.closed(*wider.flags.tolist())
        return self.scan.scan.search(self.query, self.spec) if found is None else found


class GpuScan:
    """Exact search on a GPU.

    Args:
        scan: scores in float32.
        fast: scores [B, X] that are a little off, and inf where a score is unknown, of all items or [B, n] of a list of
            rows; None if those of `scan` are as fast.
        select: returns the k best of each row, in any order.
        kernel: "fused", or why a mixture is scanned without the fused kernel; None for other similarities.
    """

    is_exact = True

    def __init__(
        self,
        scan: BruteForce,
        fast: FastScores | None,
        select: Callable[[Tensor, int], TopK] = select_by_tiles,
        kernel: str | None = None,
    ) -> None:
        self.scan = scan
        self.fast = fast
        self.select = select
        self.kernel = kernel
        self.graphs = _Graphs()

    @classmethod
    def of(cls, scan: BruteForce) -> "GpuScan":
        """Compile the fused kernel for a mixture, and compare it with the plain version. A first query then waits for
        little to be compiled or loaded."""
        items, similarity = scan.items, scan.similarity
        made = cls(scan, None)
        if isinstance(similarity, PreparedMixture):
            found = fused_scan(similarity.gate, similarity.num_components, items.width, items.dtype)
            if isinstance(found, FusedScan):
                made = cls(scan, partial(_fused, found), select, "fused")
            else:
                made = cls(scan, None, kernel=found)
        made.warm_up()
        return made

    @property
    def device(self) -> torch.device:
        """The items' device."""
        return self.scan.items.taken(slice(0, 1)).components.device

    @property
    def reads_by_row(self) -> bool:
        """Return whether scores of some items read their states where they are, with no copy made of them."""
        return self.fast is not None and self.scan.items.in_place is not None

    def of_rows(self, rows: Int[Tensor, " N"]) -> "GpuScan":
        """The scan of some items, as if there were no others. As it serves one request, nothing of it is recorded.

        Args:
            rows: ascending.
        """
        rows = upload(rows, self.device)
        some = BruteForce(self.scan.similarity, Selected(self.scan.items, rows))
        return GpuScan(some, self.fast, self.select, self.kernel)

    def log_sum_exp(self, query: QueryState, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """The contract of `ExactSearch`, in float32."""
        return self.scan.log_sum_exp(query, logit, mask)

    def warm_up(self) -> None:
        """Search for one query and for several, at random, unrecorded; by lists of rows too."""
        num_query_components, num_item_components = self.scan.similarity.num_components
        device = self.device
        if not len(self.scan.items):
            return
        for num in (1, MOST_RECORDED):
            # Drawn in the host's memory: a GPU's own generator refuses while another thread records a graph.
            components = torch.randn(num, num_query_components, self.scan.items.width).to(device)
            gate = torch.zeros(num, num_query_components * num_item_components, device=device)
            query = QueryState(
                F.normalize(components, dim=2), gate if self.scan.items.has_gate else None, gate.new_ones(num)
            )
            for k in WARMED_K:
                self._top(query, k=k, width=min(self._width(k), len(self.scan.items)))
        if self.reads_by_row:
            for num in WARMED_ROWS:
                self.of_rows(torch.arange(min(num, len(self.scan.items)), device=device)).warm_up()

    @part("score")
    @torch.no_grad()
    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`."""
        begun = self.begin(query, spec)
        return self.scan.search(query, spec) if begun is None else finished([begun])[0]

    def begin(self, query: QueryState, spec: SearchSpec) -> list[Started] | None:
        """The contract of `Starts`."""
        return [self.start(*block) for block in self.query_blocks(query, spec)] or None

    def query_blocks(self, query: QueryState, spec: SearchSpec) -> list[tuple[QueryState, SearchSpec]]:
        """The queries in blocks, checked; none if there is nothing to scan."""
        check_shapes(query, self.scan.similarity, self.scan.items)
        spec.check_queries(len(query))
        if not len(query) or not len(self.scan.items):
            return []
        if len(query) <= BLOCK_QUERIES:
            return [(query, spec)]
        blocks = torch.arange(len(query)).split(BLOCK_QUERIES)  # a mask has its lines in the host's memory
        return [(take(query, slice(int(own[0]), int(own[-1]) + 1)), spec.of_queries(own)) for own in blocks]

    def start(self, query: QueryState, spec: SearchSpec, times: int = 1) -> StartedScan:
        """Start a scan, with so many times as many candidates as are taken first."""
        width = min(times * self._width(spec.k), len(self.scan.items))
        return StartedScan(self, query, spec, *self._answer(query, spec, width))

    def _width(self, k: int) -> int:
        """How many candidates are taken first."""
        return k + 1 if self.fast is None else 2 * (k + 1) + SPARE

    def _answer(self, query: QueryState, spec: SearchSpec, width: int) -> tuple[SearchResult, Int[Tensor, "3"]]:
        """The answer of so many candidates, and the flags of `StartedScan`."""
        num_items, device = len(self.scan.items), query.components.device
        num_scored = torch.full((len(query),), num_items, device=device)
        nothing = torch.full((len(query),), -torch.inf, device=device)
        if spec.threshold is None:
            top = partial(self._top, k=spec.k, width=width)
            if query.components.is_cuda and spec.mask is None and len(query) <= MOST_RECORDED:
                scores, rows, is_truncated, flags = self.graphs.run(top, query, (spec.k, width))
            else:
                scores, rows, is_truncated, flags = top(query, spec.mask)
            flags = F.pad(flags.long(), (0, 1), value=scores.shape[1])
            return SearchResult(scores, rows, nothing, is_truncated, num_scored, [None] * len(query)), flags
        candidates, outside = self._candidates(query, spec.mask, width)
        rows, order = candidates.item_rows.sort(dim=1)  # as a scan takes them
        num_left = spec.num_left(len(query), num_items, device)
        blocks = [(0, candidates.scores.gather(1, order))]
        unmasked = spec if spec.mask is None else replace(spec, mask=None)
        found, longest = unread_scan(blocks, unmasked, num_scored, num_left, rows)
        is_open = (replace(found, bound=outside).gap(spec) > 0).any()
        return found, torch.stack([is_open.long(), _is_finite(query).long(), longest])

    def _top(self, query: QueryState, mask: Mask | None = None, *, k: int, width: int) -> Answer:
        """The k best, without a look."""
        candidates, outside = self._candidates(query, mask, width)
        best = select_by_tiles(candidates.scores, min(k + 1, candidates.k), candidates.item_rows)
        is_truncated = best.num_found() > k
        scores, rows = best.scores[:, :k].contiguous(), best.item_rows[:, :k]
        is_open = (outside > scores[:, -1]).any()
        return Answer(
            scores, rows.masked_fill(scores == -torch.inf, 0), is_truncated, torch.stack([is_open, _is_finite(query)])
        )

    def _candidates(self, query: QueryState, mask: Mask | None, width: int) -> tuple[TopK, Float[Tensor, " B"]]:
        """So many items with their scores in float32, and a score that no other item exceeds."""
        best = self._best(query, mask, width)
        outside = torch.full_like(best.scores[:, 0], -torch.inf)
        if self.fast is None:
            if width < len(self.scan.items):
                outside = best.scores.amin(dim=1)
            return best, outside
        nothing = torch.empty_like(outside)
        is_there = best.scores > -torch.inf
        found = Candidates(best.item_rows, is_there, nothing, nothing.bool(), nothing.bool(), [None] * len(query))
        scores = candidate_scores(self.scan.similarity, self.scan.items, query, found).float()
        error = (scores - best.scores).abs()
        error = SAFETY * torch.where(error.isfinite(), error, 0.0).amax(dim=1) + LEAST_ERROR
        if width < len(self.scan.items):
            outside = best.scores.amin(dim=1) + error  # -inf if the list holds all that is not hidden
        return TopK(scores, best.item_rows), outside

    def _best(self, query: QueryState, mask: Mask | None, width: int) -> TopK:
        parts = []
        for first, items, rows in self._blocks(max(BLOCK_SCORES // len(query), 1)):
            if self.fast is None:
                scores = self.scan.similarity.scores(query, items).float()
            else:
                scores = self.fast(query, items, rows).float()
            if mask is not None:
                scores = mask.hide(scores, first)
            own = self.select(scores, min(width, scores.shape[1]))
            parts.append(TopK(own.scores, own.item_rows + first) if first else own)
        return merge(parts, width) if len(parts) > 1 else parts[0]

    def _blocks(self, most: int) -> Iterator[tuple[int, ItemState, Int[Tensor, " n"] | None]]:
        """(First place, items, which of these rows; None for all) of each block of at most so many."""
        own = self.scan.items
        if self.fast is not None and isinstance(own, Selected) and (whole := own.items.in_place) is not None:
            for first in range(0, len(own), most):
                yield first, whole, own.rows[first : first + most]
        else:
            for first, items in self.scan.blocks(most):
                yield first, items, None


class _Graphs:
    """Recordings of what batches of a size run, made the second time that it is needed, so that what comes once costs
    nothing. Sizes are powers of two, filled up with a batch's first query."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # of threads that use one stream
        self.kept: OrderedDict[tuple[int, ...], _Graph | None] = OrderedDict()
        self.pool: Any = None  # memory that all graphs share, as no two of them run at a time

    def run(self, function: Callable[[QueryState], Answer], query: QueryState, key: tuple[int, ...]) -> Answer:
        size = 1 << (len(query) - 1).bit_length()
        key = (size, *key)
        with self.lock:
            if key not in self.kept:
                self.kept[key] = None
                while len(self.kept) > MOST_GRAPHS:
                    self.kept.popitem(last=False)
                return function(query)
            self.kept.move_to_end(key)
            with torch.cuda.device_of(query.components):
                graph = self.kept[key]
                if graph is None:
                    with RECORDING:
                        graph = self.kept[key] = _Graph(function, query, size, self.pool)
                    self.pool = graph.graph.pool()
                return graph.run(query)


class _Graph:
    def __init__(self, function: Callable[[QueryState], Answer], query: QueryState, size: int, pool: Any) -> None:
        with torch.inference_mode(False):
            self.query = map_tensors(lambda own: own.new_ones(size, *own.shape[1:]), query)
        self.fill(query)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once before it is recorded, as libraries set themselves up
            function(self.query)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
            self.answer = function(self.query)

    def fill(self, query: QueryState) -> None:
        for own, given in ((self.query.components, query.components), (self.query.gate, query.gate)):
            if own is not None and given is not None:
                own[: len(given)] = given
                if len(given) < len(own):
                    own[len(given) :] = given[:1]

    def run(self, query: QueryState) -> Answer:
        self.fill(query)
        self.graph.replay()
        scores, item_rows, is_truncated = (own[: len(query)].clone() for own in self.answer[:3])
        return Answer(scores, item_rows, is_truncated, self.answer.flags.clone())


def _is_finite(query: QueryState) -> Bool[Tensor, ""]:
    largest = query.components.abs().amax()
    return (largest if query.gate is None else largest + query.gate.abs().amax()).isfinite()  # also of NaN


def _fused(
    kernel: FusedScan, query: QueryState, items: ItemState, rows: Int[Tensor, " n"] | None
) -> Float[Tensor, "B _"]:
    assert query.gate is not None
    assert items.gate is not None
    return kernel.scores(query.components, query.gate, items.components, items.gate, rows)
