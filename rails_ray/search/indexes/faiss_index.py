"""Inner-product search by FAISS: flat, ivf and hnsw, with vectors in 32, 16 or 8 bits.

`faiss_building` makes them. FAISS knows neither a threshold for each query, nor hidden items of each query, nor which
of equal scores comes first. So it is asked for the n best items, and for more until they hold what is wanted
(`grown_lists`). What no short list of flat holds, as where very many scores are equal, is found by our own scan of its
vectors; so is everything at or above a threshold where they are fp32, in half the time of a list of 500 or less.

What is rounded in storage (x' for x) moves a score by at most |q| |x - x'|, so that no item that was passed over scores
above its rounded score, at most the last of the list, plus |q| error, error = max_x |x - x'| and what float32 adds.

Differs from FAISS: no `range_search`. It has one threshold a call, returns every item above it, takes 100 times as long
as a list of 500 among 1,000,000 x 64 vectors in 8 bits, and in a graph it finds no more than the beam leads to.

Axes: B queries, X items, N vectors, d width of a vector, n places of a list.
"""

import threading
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.kernels.faiss_library import as_float32, faiss_library
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.equal_vectors import OfDistinct, linked_nodes
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.grown_lists import GrownLists, sort_equal
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.indexes.probing import Floats, KindSearch, Only, PreparedQueries, Rows
from rails_ray.search.spec import SearchResult, SearchSpec, needed, reasons_of

IndexConfig = FlatConfig | IvfConfig | HnswConfig

LONGEST_LIST = 2**13  # of flat: where more items tie or reach a threshold, it is scanned
MOST_PLACES = 2**23  # of the lists of one call, 100 MB
MOST_ON_GPU = 2048  # n; FAISS's limit
GPU_LOCK = threading.Lock()  # indexes on a GPU share the workspace, which is for one thread at a time
UNIT = 2.0**-24  # relative error of one rounded operation in float32


def first_vector(num_bytes: int, num_items: int, width: int) -> int:
    """The byte of a file at which flat or hnsw has its vectors in fp32: at the end. They are read where they lie,
    fastest at a multiple of 64. What follows those that a graph shares with the items is whole lines of 64 bytes."""
    return num_bytes - 4 * num_items * width


class FaissIndex:
    """The contract of `Index`, by an index of FAISS with inner products as scores, of kind flat, ivf or hnsw.

    `search` may be called by many threads at once. FAISS uses its own OpenMP threads for a batch: as many as
    OMP_NUM_THREADS says, or the machine has cores; torch.set_num_threads does not count.

    Args:
        error: as `faiss_building.Built` has it.
        node_of: the linked node of each item in a graph [X], if equal vectors are one; None for one an item.

    Raises:
        ValueError: if the index is of another kind or metric.
    """

    def __init__(self, index: Any, error: float, node_of: Rows | None = None) -> None:
        faiss = faiss_library()
        self.index = index
        self.error = error
        rounded = faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer | faiss.IndexIVFPQ
        self.is_rounded = isinstance(index, rounded)
        stored = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index
        self.knows_scores = not isinstance(stored, rounded)
        self.kind = _kind(index)
        self.num_items = int(index.ntotal)
        if node_of is not None:
            self.kind, self.num_items = OfDistinct(self.kind, node_of, self.num_items), len(node_of)
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"metric_type must be METRIC_INNER_PRODUCT, 0, got {index.metric_type}")
        self.data: Any = None
        self.clone: Any = None  # a copy on a GPU, by `faiss_on_gpu`
        self.on_cpu: str | None = None  # why it has none where a GPU searches

    @classmethod
    def read(cls, data: bytes | memoryview | NDArray[np.uint8], error: float) -> "FaissIndex":
        """The index that `faiss_building.build` made, or FAISS wrote. It lies in the memory of `data`, which is not
        copied and must stay as it is. FAISS finds out that bytes are missing, but hardly that they are others: compare
        checksums first.

        Raises:
            DamagedError: if FAISS cannot read it.
            ValueError: if the index is of another kind or metric.
            UnsupportedError: without FAISS.
        """
        faiss = faiss_library()
        array = np.frombuffer(data, np.uint8)
        reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(array), array.size)
        try:
            index = faiss.read_index(reader)
        except (RuntimeError, MemoryError) as damage:
            raise unreadable(array.size) from damage
        end, node_of = reader.rp_, None
        num_more = array.size - end  # below 0 where FAISS takes a last number for whole by one of its bytes
        if num_more < 0 or num_more % 8 or (num_more and not isinstance(index, faiss.IndexHNSW)):
            raise unreadable(array.size)
        if num_more and (node_of := linked_nodes(array[end:].view(np.int64), index.ntotal)) is None:
            raise unreadable(array.size)
        opened = cls(index, error, node_of)
        opened.data = array[:end]
        return opened

    @property
    def width(self) -> int:
        """d."""
        return int(self.index.d)

    @property
    def vectors(self) -> Float[Tensor, "X d"] | None:
        """The vectors of an index that was read from a file, in its memory, which stays as long as they do; None if it
        keeps them rounded, or equal ones once."""
        faiss = faiss_library()
        stored = faiss.downcast_index(self.index.storage) if isinstance(self.index, faiss.IndexHNSW) else self.index
        if self.data is None or not isinstance(stored, faiss.IndexFlat) or stored.ntotal != self.num_items:
            return None
        first = first_vector(len(self.data), self.num_items, self.width)
        return torch.from_numpy(self.data[first:].view(np.float32)).view(-1, self.width)

    @property
    def is_exact(self) -> bool:
        """Return whether no better item can have been missed: by flat in fp32."""
        return self.kind.name == "flat" and not self.is_rounded

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `Index`. Among equal scores at the end of a list, hnsw may leave out a lower row.

        Raises:
            ValueError: unless there is a threshold for each query, or none; if queries are not as wide as the vectors,
                or `params` asks for more lists than there are.
        """
        spec.check_queries(len(queries))
        check_width(queries, self.index.d, "queries")
        prepared = self.kind.ask(as_float32(queries), params or SearchParams())
        if spec.threshold is None and spec.mask is None and (at_once := self._at_once(prepared, spec)) is not None:
            return at_once if queries.is_cpu else at_once.on(queries.device)
        lists = GrownLists(spec, len(queries), self.num_items, self.kind.growth)
        self._fill(prepared, lists, spec, np.arange(len(queries)))
        wider, num_scored = prepared, prepared.num_scored
        is_exhausted = np.full(len(queries), prepared.is_exhaustive)
        while wider.wider is not None and len(short := self._short(lists, spec)):
            wider = wider.wider()
            self._fill(wider, lists, spec, short)
            is_exhausted[short] = wider.is_exhaustive
            if num_scored is not None and wider.num_scored is not None:
                num_scored[short] = wider.num_scored[short]
        return self._found(prepared, lists, spec, queries, is_exhausted)

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        """The contract of `VectorIndex`."""
        return self.kind.num_products(num_left, params)

    def _at_once(self, prepared: PreparedQueries, spec: SearchSpec) -> SearchResult | None:
        """The k best, as a rule: where for every query k + 1 items in a list show that they are. None otherwise."""
        num, k = len(prepared.queries), spec.k
        if not num or k >= min(self.num_items, LONGEST_LIST) or num * (k + 1) > MOST_PLACES:
            return None
        scores, item_rows = self._best(prepared, np.arange(num), k + 1, None)
        descends = scores[:, 1:] < scores[:, :-1]
        if item_rows[:, k].min() < 0 or not (self.kind.growth.is_loose or descends[:, k - 1].all()):
            return None
        if not descends.all():
            sort_equal(scores, item_rows)
        is_truncated = np.ones(num, np.bool_)
        bound, reason = np.full(num, -np.inf, np.float32), None
        if not prepared.is_exhaustive:
            bound[:], reason = np.inf, self._reason
        elif self.is_rounded:
            bound = self._highest(prepared, scores[:, :k], spec, is_truncated)
        num_scored = np.full(num, k + 1) if prepared.num_scored is None else prepared.num_scored
        return SearchResult(
            torch.from_numpy(np.ascontiguousarray(scores[:, :k])),
            torch.from_numpy(np.ascontiguousarray(item_rows[:, :k])),
            torch.from_numpy(bound),
            torch.from_numpy(is_truncated),
            torch.from_numpy(num_scored),
            [reason] * num,
        )

    @property
    def _reason(self) -> str:
        return f"candidates by an {self.kind.name} index, which may pass over any item"

    def _fill(self, prepared: PreparedQueries, lists: GrownLists, spec: SearchSpec, asked: Rows) -> None:
        """Ask for lists of some lines until they hold the answer."""
        longest = 0 if spec.threshold is not None and self.is_exact and self.clone is None else LONGEST_LIST
        for every, n, left, has_hidden in lists.calls():
            lines = every[np.isin(every, asked)]
            only = None if left is None or not len(lines) else Only.of(left)
            while len(lines):
                if prepared.scan is not None and n > longest:
                    lists.replace(lines, prepared.scan(lines, spec.of_queries(torch.from_numpy(lines))))
                    break
                lines = self._ask(prepared, lists, lines, n, only, has_hidden)
                n = lists.longer(n)

    def _short(self, lists: GrownLists, spec: SearchSpec) -> Rows:
        """The lines that found fewer items than `at_least`, of those that are left."""
        num = len(lists.num_found)
        num_left = spec.num_left(num, self.num_items).numpy(force=True)
        return np.flatnonzero(lists.num_found < np.minimum(spec.at_least, num_left))

    def _ask(
        self, prepared: PreparedQueries, lists: GrownLists, lines: Rows, n: int, only: Only | None, has_hidden: bool
    ) -> Rows:
        """The lines whose lists of n items do not hold the answer."""
        if len(lines) * n > MOST_PLACES and len(lines) > 1:
            half = len(lines) // 2
            parts = (self._ask(prepared, lists, part, n, only, has_hidden) for part in (lines[:half], lines[half:]))
            return np.concatenate([*parts])
        is_complete: NDArray[np.bool_] = lists.add(lines, *self._best(prepared, lines, n, only), has_hidden=has_hidden)
        return lines[~is_complete]

    def _best(self, prepared: PreparedQueries, lines: Rows, n: int, only: Only | None) -> tuple[Floats, Rows]:
        is_graph = self.kind.name == "hnsw"
        is_scan = is_graph and prepared.is_exhaustive  # which a graph cannot stand for
        if self.clone is None or only is not None or n > MOST_ON_GPU or is_scan:
            return prepared.best(lines, n, only)
        with GPU_LOCK:
            found: tuple[Floats, Rows] = self.clone.search(prepared.queries[lines], n, params=prepared.parameters)
        if is_graph and (is_short := found[1][:, min(n, self.num_items) - 1] < 0).any():
            found[0][is_short], found[1][is_short] = prepared.best(lines[is_short], n, None)
        return found

    def _found(
        self,
        prepared: PreparedQueries,
        lists: GrownLists,
        spec: SearchSpec,
        queries: Float[Tensor, "B d"],
        is_exhausted: NDArray[np.bool_],
    ) -> SearchResult:
        """In numpy, of which little is needed: after a scan, code that is not in the cache takes longest.

        Args:
            is_exhausted: the queries for which every item was looked at.
        """
        scores, item_rows = lists.found()
        num_left: Any = self.num_items
        if spec.mask is not None:
            num_left = spec.num_left(len(queries), self.num_items).numpy(force=True)
        is_truncated = lists.num_above > spec.k
        if spec.threshold is None:
            is_truncated = (lists.num_found == spec.k) & (num_left > spec.k)
        bound, is_missing = np.full(len(queries), -np.inf, np.float32), lists.num_found < num_left
        if not self.knows_scores and is_exhausted.any():
            bound = np.where(is_missing, self._highest(prepared, scores, spec, is_truncated), bound)
        bound[is_missing & ~is_exhausted] = np.inf
        num_scored = lists.num_seen if prepared.num_scored is None else prepared.num_scored

        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array) if queries.is_cpu else torch.from_numpy(array).to(queries.device)

        reasons = reasons_of(torch.from_numpy(bound), self._reason)
        return SearchResult(
            tensor(scores), tensor(item_rows), tensor(bound), tensor(is_truncated), tensor(num_scored), reasons
        )

    def _highest(
        self, prepared: PreparedQueries, scores: Floats, spec: SearchSpec, is_truncated: NDArray[np.bool_]
    ) -> Floats:
        """Return what an item that was passed over scores at most."""
        last = np.where(scores > -np.inf, scores, np.inf).min(axis=1, initial=np.inf)
        if spec.threshold is not None:
            tensors = torch.from_numpy(last), spec.threshold.float().cpu(), torch.from_numpy(is_truncated)
            last = needed(*tensors).numpy()
        lengths = np.linalg.norm(prepared.queries, axis=1)
        highest: Floats = (last + lengths * self.error).astype(np.float32)
        return np.where(last == np.inf, -np.inf, highest).astype(np.float32)  # nothing reaches a threshold of inf


def _kind(index: Any) -> KindSearch:
    for config in get_args(IndexConfig):
        opened: KindSearch | None = config.opened(index)
        if opened is not None:
            return opened
    *first, last = (config.kind for config in get_args(IndexConfig))
    raise ValueError(
        f"an index must be {', '.join(first)} or {last} in fp32, fp16 or sq8, got an {type(index).__name__}"
    )


def unreadable(num_bytes: int) -> DamagedError:
    """The error for bytes that FAISS cannot read."""
    return DamagedError(f"an index must be what FAISS wrote, got {num_bytes} bytes that it cannot read")


def check_width(vectors: Float[Tensor, "N _"], width: int, what: str) -> None:
    """Raises:
    ValueError: if vectors are not as wide as those of an index.
    """
    if vectors.shape[1] != width:
        raise ValueError(f"{what} must have the {width} numbers of an indexed vector, got {vectors.shape[1]}")
