"""Fill a relevance matrix with Ray Data: what a heavy ranker says of every item for some queries.

Tasks score blocks of a few queries against all items and write each block once: an interrupted run goes on with the
missing blocks. `storage.relevances` says what comes out: a data set that any recipe trains on.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.forms import FORMS
from rails_ray.data.queries import SPLITS
from rails_ray.data.relevance import splits_of
from rails_ray.data.sources import Sources
from rails_ray.errors import UnavailableError
from rails_ray.modules.encoders.pretrained import digest_of_files
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.progress import OnProgress, watch
from rails_ray.on_ray.task_runner import run_tasks
from rails_ray.reranking.rankers import TEXT, HeavyRanker, RankerCandidates
from rails_ray.reranking.rankers.calling import ScoredCandidates, ranker_of, score_all
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage import relevances
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ColumnDigest
from rails_ray.storage.relevances import Matrix
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.values import FILLED_TEXT, ID
from rails_ray.storage.values import TEXT as TEXT_COLUMN

NUM_PROBED = 16  # queries, and items, that show whether a ranker scores anything


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Part of a data set that a matrix holds.

    Args:
        num_items: items, drawn at random; 0 for all.
        num_queries: queries of each split, drawn at random; a split that is not named has all of its queries.
        seed: seeds the draws.
    """

    num_items: int = 0
    num_queries: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, number in (("num_items", self.num_items), ("seed", self.seed), *self.num_queries.items()):
            if number < 0:
                raise ValueError(f"{name} must be at least 0, got {number}")


def fill(
    storage: str,
    name: str,
    folder: str,
    ranker: RankerConfig,
    *,
    sampling: Sampling = Sampling(),
    num_relevant: int = 10,
    block_queries: int = 8,
    max_holes_fraction: float = 0.05,
    timeout_s: float | None = None,
    num_workers: int = 2,
    num_gpus: float = 0,
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> Matrix:
    """Score the items of a data set of texts for its queries, and store the matrix. Call it again with the same name to
    resume: only the missing blocks are scored.

    Where a call fails, its items are tried in halves down to single ones. What still fails is a hole, and is counted,
    as is each item of a call that takes too long.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        folder: data set with tables of items and queries; it needs no relevance.
        num_relevant: best items of a query that the new data set calls relevant.
        block_queries: queries of a block, and so the most work that a crash can lose of each worker.
        max_holes_fraction: most holes to accept, as a share of all pairs.
        timeout_s: limit for a call of up to 256 items; None for none.
        num_workers: blocks that are scored at the same time.
        num_gpus: GPUs, or part of one, that each worker reserves.
        allow_code: as in `local.open`, for what the ranker reads from storage; the ranker itself is allowed.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says, there is no such ranker, another matrix has the name, or a
            node does not find a local folder.
        UnavailableError: if the ranker fails at every item of a block, or at too many of all.
    """
    for what, number in (
        ("num_relevant", num_relevant),
        ("block_queries", block_queries),
        ("num_workers", num_workers),
    ):
        if number < 1:
            raise ValueError(f"{what} must be at least 1, got {number}")
    if not 0 <= max_holes_fraction <= 1:
        raise ValueError(f"max_holes_fraction must be in [0, 1], got {max_holes_fraction}")
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s must be above 0, got {timeout_s:g}")
    store = Storage(storage)
    store.check_conditional()
    ranker = ranker.at_absolute_folder()
    allowed = AllowedCode.given(allow_code).also(ranker.path)
    ranker_of(ranker, allowed)  # raises before anything is stored
    check_shared(str(store), [folder, ranker.folder])
    items, queries = _sampled(folder, sampling)
    made_from: dict[str, Any] = {
        "ranker": asdict(ranker),
        "items": _digest(items),
        "queries": _digest(queries),
        "block_queries": block_queries,
        "num_relevant": num_relevant,
    }
    if ranker.folder and Path(ranker.folder).is_dir():
        made_from["ranker_files"] = digest_of_files(ranker.folder)
    relevances.begin(store, name, made_from, items, queries)
    matrix, num_blocks = relevances.read_finished(store, name), -(-queries.num_rows // block_queries)
    missing = sorted(set(range(num_blocks)) - relevances.blocks_written(store, name))
    if matrix is None or missing:  # or somebody has deleted blocks
        work = MatrixWork(str(store), name, ranker, allowed, block_queries, missing, timeout_s, uuid4().hex)
        _score(work, num_blocks, num_workers, num_gpus, on_progress)
        matrix = relevances.finish(store, name, num_blocks, num_relevant)
    most = max_holes_fraction * matrix.num_items * matrix.num_queries
    if matrix.num_holes > most:
        raise UnavailableError(
            f"the heavy ranker must leave at most {max_holes_fraction:g} of the pairs without a score, got "
            f"{matrix.num_holes} of {matrix.num_items} x {matrix.num_queries}: mend it and choose another --name, or "
            "raise --max-holes"
        )
    return matrix


def _score(
    work: "MatrixWork", num_blocks: int, num_workers: int, num_gpus: float, on_progress: OnProgress | None
) -> None:
    """Score the missing blocks."""
    do = partial(run_tasks, work, len(work.missing), num_workers, num_gpus)

    def blocks_done() -> tuple[int, int, str]:
        done = len(relevances.blocks_written(Storage(work.storage), work.name))
        return done, num_blocks, f"blocks of {work.block_queries} queries"

    if work.missing and on_progress is not None:
        watch(do, blocks_done, on_progress)
    elif work.missing:
        do()


@dataclass(frozen=True)
class MatrixWork:
    """
    allowed: code that may be carried out.
    missing: the numbers of the blocks to score.
    timeout_s: limit for a call; None for none.
    attempt: names the call of `fill`: what a process keeps from one block to the next serves no other call.
    """

    storage: str
    name: str
    ranker: RankerConfig
    allowed: AllowedCode
    block_queries: int
    missing: list[int]
    timeout_s: float | None
    attempt: str

    def __call__(self, number: int) -> None:
        """Score a block and write it, unless it is there."""
        store, block = Storage(self.storage), self.missing[number]
        if relevances.has_block(store, self.name, block):
            return
        started = time.monotonic()
        ranker = _ranker(self.ranker, self.allowed, self.attempt)
        items = _items(self.storage, self.name, self.attempt)
        queries = relevances.read_table(store, self.name, "queries").slice(
            block * self.block_queries, self.block_queries
        )
        scored = [self._score(ranker, text, items) for text in queries["text"].to_pylist()]
        calls = [own.num_calls for own in scored]
        if all(np.isnan(own.scores).all() for own in scored):
            if not self._scores_any(ranker, items, block):
                reason = scored[0].reason
                raise UnavailableError(f"the heavy ranker must score some item of block {block}, got none: {reason}")
            scored = [self._score(ranker, text, items) for text in queries["text"].to_pylist()]
            calls = [before + own.num_calls for before, own in zip(calls, scored, strict=True)]
        scores = np.stack([own.scores for own in scored])
        relevances.write_block(store, self.name, block, queries["query_id"], scores, calls, time.monotonic() - started)

    def _score(self, ranker: HeavyRanker, text: Any, items: Any) -> ScoredCandidates:
        return score_all(ranker, {TEXT: text}, items, timeout_s=self.timeout_s)

    def _scores_any(self, ranker: HeavyRanker, items: RankerCandidates, block: int) -> bool:
        """Return whether the ranker scores an item for some query of another block. If so, this block's queries are at
        fault, or the ranker failed for a while: the block is scored once more."""
        texts = relevances.read_table(Storage(self.storage), self.name, "queries")["text"].to_pylist()
        del texts[block * self.block_queries : (block + 1) * self.block_queries]
        others, some = (every[:: max(len(every) // NUM_PROBED, 1)] for every in (texts, items))
        return any(np.isfinite(self._score(ranker, text, some).scores).any() for text in others)


@lru_cache(maxsize=1)
def _ranker(ranker: RankerConfig, allowed: AllowedCode, attempt: str) -> HeavyRanker:
    """The ranker, made once per worker process."""
    return ranker_of(ranker, allowed)


@lru_cache(maxsize=1)
def _items(storage: str, name: str, attempt: str) -> RankerCandidates:
    """The items, read once per worker process. Each query gets new objects, which a ranker may change."""
    items = FORMS["text"].corpus(Sources(f"{storage}/{relevances.folder_of(name)}")).items.read()
    return RankerCandidates(items["item_id"].to_pylist(), items["input"].to_pylist())


def _sampled(folder: str, sampling: Sampling) -> tuple[pa.Table, pa.Table]:
    """The tables of items and queries of a matrix."""
    sources, draws = Sources(folder), np.random.default_rng(sampling.seed)
    items = sources.read("items", {"item_id": ID, "text": FILLED_TEXT}, {"title": FILLED_TEXT})
    queries = sources.read("queries", {"query_id": ID, "text": FILLED_TEXT, "split": TEXT_COLUMN})
    check_distinct(items, "item_id")
    check_distinct(queries, "query_id")
    kept = np.arange(len(items))
    if sampling.num_items:
        if sampling.num_items > len(items):
            raise ValueError(f"num_items must be at most the {len(items)} of {sources}, got {sampling.num_items}")
        kept = np.sort(draws.permutation(len(items))[: sampling.num_items])
    sampled = list[int]()
    split_of = splits_of(queries)
    for place, split in enumerate(SPLITS):
        rows = np.flatnonzero(split_of == place)
        num = sampling.num_queries.get(split, len(rows))
        if num > len(rows):
            raise ValueError(f"num_queries of {split} must be at most the {len(rows)} of {sources}, got {num}")
        sampled += np.sort(draws.permutation(rows)[:num]).tolist()
    if not sampled:
        raise ValueError(f"{sources} must hold a query of split {', '.join(SPLITS)}, got none")
    return items.table.take(pa.array(kept)), queries.table.take(pa.array(sampled))


def _digest(table: pa.Table) -> str:
    """The sha256 of all columns of a table."""
    found = hashlib.sha256()
    for name in table.column_names:
        column = ColumnDigest()
        column.add(table[name])
        found.update(f"{name} {column.hexdigest()}|".encode())
    return found.hexdigest()
