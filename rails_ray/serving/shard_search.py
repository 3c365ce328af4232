"""One shard of a version: its items and the methods that search them.

Axes: B queries, X rows of the shard, P_Q / P_X components.
"""

import itertools
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.cutoffs.temperatures import tempered
from rails_ray.families.shards import Items, base_of, deltas_of
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.kernels.uploads import upload
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, map_tensors, on_device, take
from rails_ray.search.masks import Exclusions, Mask, Remaining
from rails_ray.search.methods import ExactSearch
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.searcher import Searcher
from rails_ray.search.sharded import of_corpus
from rails_ray.search.spec import SearchResult, joined, nothing
from rails_ray.search.zeros import NO_COSINE, with_zeros_last
from rails_ray.serving.kept_masks import KeptMasks, LeftRows
from rails_ray.serving.scope import EVERYTHING, Group, Scope, groups_of, of_each
from rails_ray.serving.segments import HeldItems, Segment
from rails_ray.serving.shard_messages import ShardExplanation, ShardItems, ShardRequest, ShardResponse
from rails_ray.stopwatch import noted
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.numbers import values_at

Value = TypeVar("Value")


@dataclass(frozen=True)
class _Gathered:
    """Some items of a shard, as if there were no others.

    rows: their rows of the shard, ascending, in the host's memory.
    mask: what each query excludes of them.
    """

    rows: Int[Tensor, " n"]
    scan: ExactSearch[Any]
    mask: Mask | None


class ShardSearch:
    """Searches one shard of a version.

    Args:
        former: the search of this shard of another version, whose base is shared if both have the same.

    Raises:
        DamagedError: if a file of the version differs from its manifest.
        UnsupportedError: if the version has an index and FAISS is not installed.
        ValueError: if there is no such shard.
    """

    def __init__(self, version: Version, shard: int, device: str = "cpu", former: "ShardSearch | None" = None) -> None:
        similarity: Any = version.similarity.to(device)
        self.cutoff_support = version.family.cutoff_support
        self.device = device
        self._family, self._similarity = version.family, similarity
        self._attributes = version.described.attributes or {}
        self.masks: KeptMasks = KeptMasks() if former is None else former.masks
        num_components, self.base_files = similarity.num_components[1], base_files(version, shard)
        if former is not None and former.base_files == self.base_files:
            base = former.held.segments[0].hiding(version.described.first_row(shard), version.hidden(shard))
        else:
            items, indexes = version.base(shard, num_components), version.indexes(shard, device)
            base = Segment.of(version, similarity, items, indexes, device, self.base_files)
        later = version.later(shard, num_components)
        of_deltas = []
        if later is not None:
            files = _files_of_deltas(version, shard)
            of_deltas = [Segment.of(version, similarity, later, device=device, files=files)]
        self.held: HeldItems = HeldItems([base, *of_deltas])

    @property
    def items(self) -> Items:
        """The items of the base."""
        return self.held.base

    @property
    def item_ids(self) -> ItemIds:
        """The ids of all rows, hidden ones too."""
        return self.held.item_ids

    @property
    def searcher(self) -> Searcher[Any]:
        """The searcher of all rows."""
        return self.held.searcher

    @property
    def gpu_scan(self) -> str | None:
        """Scan that a GPU makes of the base: "fused", or why it is not by the fused kernel; None if it has none to make
        of such items, and on a CPU."""
        exact = getattr(self.held.segments[0].searcher, "exact", None)
        return exact.kernel if isinstance(exact, GpuScan) else None

    @property
    def indexes_on_cpu(self) -> frozenset[str]:
        """Why indexes of the base are searched on the CPU though a GPU searches; empty if none is, and on a CPU."""
        stages = getattr(self.held.segments[0].searcher, "first_stages", ())
        reasons = (getattr(index, "on_cpu", None) for stage in stages for index in stage.indexes.values())
        return frozenset(reason for reason in reasons if reason is not None)

    def of_rows(self, rows: NDArray[np.int64]) -> "ShardSearch":
        """The search of some of the shard's items, one at least, as if there were no others, without its indexes."""
        found = copy(self)
        found.held = HeldItems([self._segment_of(self.held.items(rows))])
        return found

    def _segment_of(self, items: Items) -> Segment:
        items.item_ids.prepare()
        return Segment(items, self._searcher_of(items.state), self._family.zero_rows(items.state).numpy())

    def _searcher_of(self, state: AnyItems) -> Searcher[Any]:
        return self._family.searcher(self._similarity, on_device(state, self.device))

    def __len__(self) -> int:
        """Number of items that are not hidden."""
        return self.held.num_live

    def search(self, query: AnyQuery, request: ShardRequest, exclude: Sequence[Sequence[ItemId]]) -> ShardResponse:
        """The wanted items of the shard for each query; fewer if the scope or exclusion leaves fewer.

        Raises:
            ValueError: if the items lack the method, or a filter does not fit their attributes.
        """
        held, excluded = self.held, self._rows_of(exclude)
        began = time.perf_counter()
        with noted() as stages:
            groups = self._groups(request.scope, len(excluded))
            found = self._of_groups(query, request, excluded, groups)
        seconds, scoring = time.perf_counter() - began, stages.get("score", 0.0)
        is_there = found.scores.numpy() > -np.inf
        rows, lengths = found.item_rows.numpy()[is_there], is_there.sum(axis=1).tolist()
        return ShardResponse(
            found=of_corpus(found, held.base.first_row) if held.base.first_row else found,
            item_ids=_lines(self.item_ids.take(rows), lengths),
            titles=_strings(held.titles, rows, lengths),
            num_searched=of_each([own.num_searched(len(held), excluded) for own in groups], groups),
            num_excluded=np.array([len(own) for own in excluded], np.int64),
            num_included=of_each([np.full(len(own.numbers), own.num_included) for own in groups], groups),
            texts=_strings(held.texts, rows, lengths) if request.for_ranker else None,
            vectors=self._vectors(rows, lengths) if request.with_vectors else None,
            fields=_lines(held.fields(request.fields, rows), lengths) if request.fields else None,
            seconds={"candidates": seconds - scoring, "score": scoring},
        )

    def _groups(self, scope: Scope, num_queries: int) -> list[Group]:
        """The queries by what they may find, but for what each excludes.

        Raises:
            ValueError: if a filter does not fit the items' attributes.
        """
        return groups_of(self.held, scope, num_queries, self._attributes, self.masks)

    def _of_groups(
        self, query: AnyQuery, request: ShardRequest, excluded: Sequence[Sequence[int]], groups: Sequence[Group]
    ) -> SearchResult:
        """The results of all queries, by rows of the shard."""
        if len(groups) == 1:
            return self._of_group(query, request, excluded, groups[0].left)
        parts = [
            self._of_group(
                take(query, torch.tensor(own.numbers)),
                request.of_queries(own.numbers),
                [excluded[number] for number in own.numbers],
                own.left,
            )
            for own in groups
        ]
        return joined(parts, torch.tensor([number for own in groups for number in own.numbers]))

    def _of_group(
        self, query: AnyQuery, request: ShardRequest, excluded: Sequence[Sequence[int]], left: LeftRows | None
    ) -> SearchResult:
        """The results of queries that may find the same rows, in the host's memory."""
        found = self._found(self._here(query), request, excluded, left)
        found = found if self.device == "cpu" else found.on("cpu")
        if self.cutoff_support.has_bounded_scores and not request.with_vectors:  # whose queries may be corrected
            found = found.as_cosines()
        zeros = self.held.zeros if left is None else self.held.zeros[left.has(self.held.zeros)]
        return with_zeros_last(found, request.spec(), zeros.tolist(), excluded) if len(zeros) else found

    def _found(
        self, query: AnyQuery, request: ShardRequest, excluded: Sequence[Sequence[int]], left: LeftRows | None
    ) -> SearchResult:
        """The results among items that have a direction."""
        searcher = self.held.searcher
        # What an approximate method finds must not depend on the queries beside.
        num = len(query) if left is None or searcher.retriever(request.method, request.params).is_exact else 1
        if left is None or not searcher.gathers(left.num, num, request.method, request.params):
            spec = request.spec(self._mask_of(excluded, left), self.device)
            return searcher.search(query, spec, request.method, request.params)
        gathered = self._gathered(left, excluded)
        if gathered is None:
            return nothing(len(query))
        found = gathered.scan.search(query, request.spec(gathered.mask, self.device)).on("cpu")
        is_there = found.scores > -torch.inf
        return replace(found, item_rows=torch.where(is_there, gathered.rows[found.item_rows], 0))

    def _gathered(self, left: LeftRows, excluded: Sequence[Sequence[int]]) -> "_Gathered | None":
        """The items that are left and have a direction, as if there were no others; None if there are none."""
        rows = left.without(self.held.zeros).rows
        if not len(rows):
            return None
        mask = None
        if any(excluded):
            mask = Exclusions.of([_places_of(own, rows) for own in excluded])
        places = torch.from_numpy(rows)
        return _Gathered(places, self.held.searcher.some(places), mask)

    def _vectors(self, rows: NDArray[np.int64], lengths: Sequence[int]) -> list[NDArray[np.float32]]:
        """The only component of the items of each query."""
        state: Any = self.held.state(rows)
        taken = state.components[:, 0].float().numpy(force=True)
        return np.split(taken, np.cumsum(lengths)[:-1])

    def log_sum_exp(
        self, query: AnyQuery, exclude: Sequence[Sequence[ItemId]], factor: float = 1.0, scope: Scope = EVERYTHING
    ) -> NDArray[np.float64]:
        """Log sum exp of the training logits over `factor`, over the shard's items that a search may find [B]; -inf if
        there are none.

        Raises:
            ValueError: if a filter does not fit the items' attributes.
        """
        logit, excluded = tempered(self.cutoff_support.logit, factor), self._rows_of(exclude)
        groups = self._groups(scope, len(excluded))
        sums = [
            self._sum_of_group(
                query if len(groups) == 1 else take(query, torch.tensor(own.numbers)),
                logit,
                [excluded[number] for number in own.numbers],
                own.left,
            )
            for own in groups
        ]
        return of_each(sums, groups)

    def _sum_of_group(
        self, query: AnyQuery, logit: ScoreLogit, excluded: Sequence[Sequence[int]], left: LeftRows | None
    ) -> NDArray[np.float64]:
        """The log sum exp of queries that may find the same rows."""
        scan: Searcher[Any] | ExactSearch[Any] = self.held.searcher
        if left is None or not self.held.searcher.gathers(left.num, len(excluded)):
            mask = self._mask_of(excluded, left)
        elif (gathered := self._gathered(left, excluded)) is not None:
            scan, mask = gathered.scan, gathered.mask
        else:
            return np.full(len(excluded), -np.inf)
        found: NDArray[np.float64] = scan.log_sum_exp(self._here(query), logit, mask).numpy(force=True)
        return found

    def describe(self, item_ids: Sequence[ItemId], scope: Scope, fields: Sequence[str]) -> ShardItems:
        """Those of some items that the shard holds and a search may find, with some of their attributes.

        Raises:
            ValueError: if a filter does not fit the items' attributes.
        """
        rows, [group] = self.held.rows(item_ids), self._groups(scope, 1)
        rows = rows[rows >= 0]
        rows = rows if group.left is None else rows[group.left.has(rows)]
        return ShardItems(self.item_ids.take(rows), self.held.fields(fields, rows) if fields else None)

    def explain(self, query: AnyQuery, item_ids: Sequence[ItemId]) -> ShardExplanation:
        """Explain the scores of one query with the requested items that the shard holds."""
        found = self.held.rows(item_ids)
        rows, zeros = found[found >= 0], set(self.held.zeros.tolist())
        explained = self.searcher.explain(self._here(query), rows.tolist())
        most = 1.0 if self.cutoff_support.has_bounded_scores else float("inf")
        scores = explained.scores[0].clamp(-most, most).tolist()
        most_of_pair = float("inf") if self.cutoff_support.width is None else most
        return ShardExplanation(
            items=self.item_ids.take(rows),
            titles=self.held.strings(self.held.titles, rows),
            scores=[NO_COSINE if row in zeros else score for row, score in zip(rows, scores, strict=True)],
            cosines=explained.cosines[0].clamp(-most_of_pair, most_of_pair).tolist(),
            gates=explained.gates[0].tolist(),
        )

    def _here(self, query: AnyQuery) -> AnyQuery:
        if self.device == "cpu" or query.stays_on_host:
            return query
        return map_tensors(lambda tensor: upload(tensor, self.device), query)

    def _mask_of(self, excluded: Sequence[Sequence[int]], left: LeftRows | None) -> Mask | None:
        """The mask of excluded rows, of those that are not left, and of items without a direction; None if there are
        none."""
        zeros = self.held.zeros
        if left is None:
            return Exclusions.of(excluded, zeros.tolist()) if len(zeros) or any(excluded) else None
        return Remaining.of(left.without(zeros).is_left, excluded)

    def _rows_of(self, exclude: Sequence[Sequence[ItemId]]) -> list[list[int]]:
        """The shard's rows of the excluded items that it holds."""
        if not any(exclude):
            return [[] for _ in exclude]
        found = self.held.rows(list(itertools.chain.from_iterable(exclude))).tolist()
        return [[row for row in own if row >= 0] for own in _lines(found, list(map(len, exclude)))]


def _places_of(excluded: Sequence[int], rows: NDArray[np.int64]) -> list[int]:
    """The places among `rows`, which ascend and are one at least, of the excluded rows that are there."""
    own = np.asarray(excluded, np.int64)
    places = np.searchsorted(rows, own).clip(max=len(rows) - 1)
    found: list[int] = places[rows[places] == own].tolist()
    return found


def base_files(version: Version, shard: int) -> tuple[str, ...]:
    """The files that the base of a shard is made of, and the version whose model scores it."""
    described = version.described
    parts, indexes = base_of(described, shard), (entry for entry in described.indexes if entry.shard == shard)
    return described.home, *(entry.path for entry in (*parts, *indexes))


def _files_of_deltas(version: Version, shard: int) -> tuple[str, ...]:
    """The files that say which live items the deltas of a shard have."""
    parts = deltas_of(version.described, shard)
    return tuple(entry.path for part in parts for entry in (part, part.hidden) if entry is not None)


def _strings(column: pa.ChunkedArray | None, rows: NDArray[np.int64], lengths: Sequence[int]) -> list[list[str]] | None:
    """The strings of a column for all queries, one after the other, as a list for each; None if there is no column."""
    return None if column is None else _lines(values_at(column, rows), lengths)


def _lines(values: list[Value], lengths: Sequence[int]) -> list[list[Value]]:
    """Values of all queries, one after the other, as a list for each."""
    if len(lengths) == 1:
        return [values]
    rest = iter(values)
    return [list(itertools.islice(rest, length)) for length in lengths]
