"""Relevant items that lie in the history of their own query, as in a session that comes back to an item.

An answer that excludes what was seen never holds them, so that a figure over such answers is bounded by their share.
Where it is large, and nobody chose, a report has both figures.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rails_ray.data.queries import Queries
from rails_ray.training.evaluation.metrics import ListQuality

MOST_UNSAID = 0.02  # share of relevant items: so much of a hit rate may be lost without a word
EXCLUDED, ALLOWED = "seen items excluded", "seen items allowed"


@dataclass(frozen=True)
class Figures:
    """
    hit_rate: by k.
    lists: what the cut-off keeps; None if there is none.
    """

    hit_rate: dict[int, float]
    mrr: float
    lists: ListQuality | None = None


@dataclass(frozen=True)
class SeenItems:
    """Part of a report about the items of its queries' histories.

    is_excluded: whether its answers exclude them.
    num_seen: relevant items that lie in the history of their own query; of `num_relevant`.
    allowed: figures of answers that may hold them; None if somebody chose, or there are few.
    """

    is_excluded: bool
    num_seen: int
    num_relevant: int
    allowed: Figures | None = None

    @staticmethod
    def of(queries: Queries, allowed: Figures | None = None) -> "SeenItems | None":
        """None for queries without histories."""
        if queries.seen is None:
            return None
        is_excluded = queries.excluded is not None
        return SeenItems(is_excluded, queries.num_seen_relevant, len(queries.relevant.rows), allowed)

    @property
    def are_many(self) -> bool:
        """True if so many of them are relevant that figures must say how they count."""
        return self.num_seen > MOST_UNSAID * self.num_relevant

    @property
    def label(self) -> str:
        """Name of the first figure."""
        return EXCLUDED if self.is_excluded else ALLOWED

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the hit rates by the name of their k."""
        found = asdict(self)
        if self.allowed is not None:
            found["allowed"]["hit_rate"] = {str(k): rate for k, rate in self.allowed.hit_rate.items()}
        return found


def has_both_figures(queries: Queries) -> bool:
    """Decide if a report needs both figures: nobody chose, and many seen items are relevant."""
    found = SeenItems.of(queries)
    return queries.exclude_seen is None and found is not None and found.are_many


def labelled(report: Mapping[str, Any]) -> list[tuple[str | None, Mapping[str, Any]]]:
    """The figures of a report as JSON, one or both, each with its label; without one if little was seen."""
    seen: Mapping[str, Any] | None = report.get("seen_items")  # a report of an earlier release has none
    if seen is None:
        return [(None, report)]
    own = SeenItems(seen["is_excluded"], seen["num_seen"], seen["num_relevant"])
    allowed = [] if seen["allowed"] is None else [(ALLOWED, seen["allowed"])]
    return [(own.label if own.are_many else None, report), *allowed]


def remark(seen_items: Mapping[str, Any], split: str) -> str:
    """The sentence beside both figures.

    Args:
        seen_items: of a report, as JSON.
    """
    share = _share(seen_items["num_seen"], seen_items["num_relevant"], split)
    return (
        f"{share}: answers leave them out in the first figure, as requests do by default, and may hold them in the "
        "second: choose one with --exclude-seen or --no-exclude-seen"
    )


def left_out(queries: Queries, split: str) -> list[str]:
    """A sentence on relevant items that no cut-off can keep; none if somebody chose, or there are few."""
    if not has_both_figures(queries):
        return []
    share = _share(queries.num_seen_relevant, len(queries.relevant.rows), split)
    return [
        f"{share}: requests exclude such items by default, so that no cut-off keeps them: choose with "
        "--exclude-seen or --no-exclude-seen"
    ]


def _share(num_seen: int, num_relevant: int, split: str) -> str:
    of_all = f"{num_seen:,} of the {num_relevant:,} relevant items of split {split}"
    return f"{of_all} ({num_seen / num_relevant:.1%}) are in the history of their own query"
