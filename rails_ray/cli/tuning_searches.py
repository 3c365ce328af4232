"""Try the searches of a stored version: which is the fastest that finds the share of the best items that is wanted?"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rails_ray.allowed_code import AllowedCode
from rails_ray.cli.tuning import TUNED_ON
from rails_ray.errors import NotFoundError
from rails_ray.families import default_searches
from rails_ray.families.config import DataConfig
from rails_ray.families.default_searches import DefaultSearch
from rails_ray.families.version import Version
from rails_ray.families.version_queries import VersionQueries
from rails_ray.search.measured import SearchChoice, SearchFigures, choose
from rails_ray.serving.measuring import (
    SampledQueries,
    SearchMeasuring,
    check_k,
    measure_all,
    of_items,
    of_split,
    steps_of,
)
from rails_ray.serving.running_means import Z
from rails_ray.serving.search_defaults import USUAL
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import versions
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage

MOST_QUERIES = 2000  # whose recalls of 1 show a recall of 0.998


@dataclass(frozen=True)
class SearchTuning:
    """
    tuned: name of the version.
    is_published: whether a server can open it.
    queries: number and kind of the queries that measured, in words.
    num_queries: their number.
    why_items: why they are items of the version, in a sentence; None if they are queries of its data.
    target_recall, k: the recall@k that was wanted.
    measured: all searches that were tried.
    choice: the fastest that reaches it, and the nearest of the others.
    left_out: a sentence for each method that the version takes with none of the parameters tried.
    chosen: the default search that `choice` makes; None if no search reaches the recall.
    """

    tuned: str
    is_published: bool
    queries: str
    num_queries: int
    why_items: str | None
    target_recall: float
    k: int
    measured: list[SearchFigures]
    choice: SearchChoice
    left_out: list[str]
    chosen: DefaultSearch | None

    @property
    def num_needed(self) -> int:
        """Queries of recall 1 whose interval would begin at the target; 0 for a target of 1, which none show."""
        missing = 1 - self.target_recall
        return math.ceil(Z**2 * self.target_recall / missing) if missing else 0

    @property
    def remarks(self) -> list[str]:
        """Sentences on what was not reached."""
        found, nearest = list[str](), self.choice.nearest
        if nearest is not None and (self.chosen is None or self.chosen.method == USUAL):
            none = "no search reaches" if self.chosen is None else "no search faster than brute_force reaches"
            found.append(
                f"{none} a recall of {self.target_recall:g} by the lower end of its interval; nearest: "
                f"{described(nearest)}, recall {nearest.recall:.4f} ({nearest.low:.4f} to {nearest.high:.4f})"
            )
            if self.num_queries < self.num_needed:
                found.append(
                    f"at least {self.num_needed:,} queries must be measured to show a recall of "
                    f"{self.target_recall:g} of a method that may miss an item, got {self.num_queries:,}: lower "
                    "--target-recall, or take more queries"
                )
        return found


def described(search: SearchFigures | DefaultSearch) -> str:
    """The method and its parameters, in words."""
    return " ".join([search.method, *(f"{name} {value}" for name, value in search.params.items())])


def tune_search(
    store: Storage,
    *,
    target_recall: float,
    k: int = 10,
    version: str | None = None,
    split: str = "valid",
    data: DataConfig | None = None,
    allow_code: Sequence[str] = (),
    dry_run: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> SearchTuning:
    """Measure a ladder of searches of each method that a version offers, published or not, and make the fastest that
    reaches a recall the version's default search.

    Args:
        target_recall: recall@k against brute force that the lower end of the interval must reach.
        version: by default the current one.
        split: queries that choose; if the data have none, a sample of the items' vectors does.
        data: by default the data in the version's config.
        allow_code: as in `local.open`.
        dry_run: store nothing.
        clock: seconds, of any origin.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if a file differs from what was written.
        ValueError: if the target is not above 0 and at most 1, k is below 1 or above the number of items, the split
            cannot be, or the data that are named have no such queries.
        UnsupportedError: if there are neither queries nor items that can be queries.
    """
    if not 0 < target_recall <= 1:
        raise ValueError(f"--target-recall must be above 0 and at most 1, got {target_recall:g}")
    if split not in TUNED_ON:
        raise ValueError(f"split must be valid or train, got {split!r}: test queries measure what others have chosen")
    opened = Version.encoded(store, version, AllowedCode.given(allow_code))
    if not opened.described.num_live:
        raise ValueError(f"version {opened.name} must have items to measure its searches, got none")
    check_k(k, opened.described.num_live)
    shards = [ShardSearch(opened, shard) for shard in range(opened.num_shards)]
    sample, why_items = _sampled(store, opened, shards, split, data)
    measuring = SearchMeasuring(shards, sample, k, clock)
    measured, left_out = measure_all(measuring, steps_of(opened, shards[0].searcher.methods, k))
    choice = choose(measured, target_recall)
    chosen = None if choice.best is None else _default(choice.best, target_recall, str(sample))
    if chosen is not None and not dry_run:
        default_searches.write(store, opened.name, chosen)
        versions.announce(store, opened.name)
    return SearchTuning(
        tuned=opened.name,
        is_published=isinstance(opened.described, Manifest),
        queries=str(sample),
        num_queries=len(sample),
        why_items=why_items,
        target_recall=target_recall,
        k=k,
        measured=measured,
        choice=choice,
        left_out=left_out,
        chosen=chosen,
    )


def _sampled(
    store: Storage, opened: Version, shards: Sequence[ShardSearch], split: str, data: DataConfig | None
) -> tuple[SampledQueries, str | None]:
    """The queries of the split; where the version's own data have none, items, and why."""
    model = opened.model  # what is wrong with it says nothing about the data
    try:
        queries = VersionQueries.read(store, opened.name, data, [split], opened.allowed).queries(split)
        return of_split(queries, model, shards, split, MOST_QUERIES), None
    except (NotFoundError, ValueError) as error:
        if data is not None and data.folder is not None:
            raise
        return of_items(opened, MOST_QUERIES), str(error)


def _default(best: SearchFigures, target_recall: float, queries: str) -> DefaultSearch:
    return DefaultSearch(
        method=best.method,
        params=best.params,
        k=best.k,
        target_recall=target_recall,
        recall=best.recall,
        low=best.low,
        ms=best.ms,
        queries=queries,
        created_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )
