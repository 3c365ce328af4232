"""One model on one split: the numbers that a table shows and a JSON file keeps."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rails_ray.cutoffs.calibration import Calibration, best_mass
from rails_ray.cutoffs.distributions import ScoreDistribution
from rails_ray.cutoffs.measuring import Measured, measure
from rails_ray.data.batch import FeatureRows
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import Queries
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.search.measured import SearchFigures
from rails_ray.training.evaluation.calibrating import positives_of
from rails_ray.training.evaluation.metrics import ListQuality, hit_rate, list_quality, mean_reciprocal_rank
from rails_ray.training.evaluation.ranking import Ranking, rank_all, rank_both
from rails_ray.training.evaluation.seen import ALLOWED, Figures, SeenItems, has_both_figures

LONGEST_LIST = 1000  # items of a list that a cut-off may keep
HIT_RATES = (1, 10, 50, 200)


@dataclass(frozen=True)
class Report:
    """
    hit_rate: the hit rate by k; empty without queries, of which mrr is 0.
    cutoff_mass, lists: the per-query cut-off and what it keeps; None if the model has no trained tau_q.
    coverage: what the version's calibration keeps of the relevant on this split; None if there is no calibration.
    searches: recall and time of the version's methods with their usual parameters; None if they were not measured.
    seen_items: what became of the items of the queries' histories; None if queries have none.
    """

    split: str
    num_queries: int
    num_items: int
    hit_rate: dict[int, float]
    mrr: float
    cutoff_mass: float | None
    lists: ListQuality | None
    coverage: list[Measured] | None = None
    seen_items: SeenItems | None = None
    searches: list[SearchFigures] | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def by_name(self, name: str) -> list[tuple[str, "Report"]]:
        """The lines of a table: the report, and a second one if there are figures with seen items allowed too."""
        seen = self.seen_items
        if seen is None or not seen.are_many:
            return [(name, self)]
        lines, allowed = [(f"{name}, {seen.label}", self)], seen.allowed
        if allowed is not None:
            other = dataclasses.replace(self, hit_rate=allowed.hit_rate, mrr=allowed.mrr, lists=allowed.lists)
            lines.append((f"{name}, {ALLOWED}", other))
        return lines


def validate(
    model: Model, encoded: Callable[[], AnyItems], queries: Queries, distribution: ScoreDistribution | None
) -> Report:
    """The report on the validation split, with the mass that keeps the best lists there.

    Args:
        encoded: gives all items; not called if there is no query.
        distribution: the distribution of a relevant item's score; None if the model has no trained tau_q.
    """
    if not len(queries):
        return Report(split="valid", num_queries=0, num_items=0, hit_rate={}, mrr=0.0, cutoff_mass=None, lists=None)
    items = encoded()
    ranking, allowed = _ranked(model, items, queries)
    mass = None
    if distribution is not None:
        found = ranking.scores, ranking.is_relevant, ranking.num_relevant, ranking.temperature
        mass, _ = best_mass(*found, distribution)
    return _report("valid", len(items), queries, ranking, allowed, mass, distribution)


def validation_mrr(model: Model, item_features: FeatureRows, queries: Queries) -> float:
    """A glance at the validation split while training goes on: MRR, which moves with every rank."""
    ranking = rank_all(model, encode_items(model, item_features), queries, 1)
    return mean_reciprocal_rank(ranking.best_rank)


def evaluate(
    model: Model,
    items: AnyItems,
    queries: Queries,
    split: str,
    cutoff_mass: float | None,
    distribution: ScoreDistribution | None,
    calibration: Calibration | None = None,
) -> Report:
    """The report on a split with a given mass of `distribution`, and with the coverage of a calibration."""
    ranking, allowed = _ranked(model, items, queries)
    report = _report(split, len(items), queries, ranking, allowed, cutoff_mass, distribution)
    if calibration is None:
        return report
    measured = measure(calibration, positives_of(ranking, calibration.distribution))
    return dataclasses.replace(report, coverage=measured)


def _ranked(model: Model, items: AnyItems, queries: Queries) -> tuple[Ranking, Ranking | None]:
    """The ranking of a split, and the one with seen items allowed if both are worth having."""
    k = min(LONGEST_LIST, len(items))
    if has_both_figures(queries):
        return rank_both(model, items, queries, k)
    return rank_all(model, items, queries, k), None


def _report(
    split: str,
    num_items: int,
    queries: Queries,
    ranking: Ranking,
    allowed: Ranking | None,
    mass: float | None,
    distribution: ScoreDistribution | None,
) -> Report:
    own = _figures(ranking, mass, distribution)
    return Report(
        split=split,
        num_queries=len(ranking.best_rank),
        num_items=num_items,
        hit_rate=own.hit_rate,
        mrr=own.mrr,
        cutoff_mass=mass,
        lists=own.lists,
        seen_items=SeenItems.of(queries, None if allowed is None else _figures(allowed, mass, distribution)),
    )


def _figures(ranking: Ranking, mass: float | None, distribution: ScoreDistribution | None) -> Figures:
    lists = None
    if mass is not None:
        assert distribution is not None
        threshold = distribution.quantile(1 - mass, ranking.temperature)
        kept = (ranking.scores >= threshold[:, None]).sum(axis=1)
        lists = list_quality(kept, ranking.is_relevant, ranking.num_relevant)
    rates = {k: hit_rate(ranking.best_rank, k) for k in HIT_RATES}
    return Figures(rates, mean_reciprocal_rank(ranking.best_rank), lists)
