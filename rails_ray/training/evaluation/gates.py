"""Gates: whether a version is good enough to be published: its hit rate against a floor, and against the current
version, and how far its answers may differ from the current version's.

Both reports must be on the same queries.
"""

from dataclasses import dataclass

from rails_ray.training.evaluation.report import HIT_RATES, Report


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Gates that a version must pass before it is published.

    Args:
        k: length of the lists whose hit rate decides: 1, 10, 50 or 200.
        min_hit_rate: hit rate@k that the version must have, whatever the current version has.
        max_drop: how far its hit rate@k may lie below the current version's; None to ignore the current version.
        max_churn: largest share of a query's k best items that may differ from the current version's, on average
            over validation queries; None for any.
    """

    k: int = 10
    min_hit_rate: float = 0.0
    max_drop: float | None = 0.01  # twice the standard error of a hit rate of .95 on 2,000 queries
    max_churn: float | None = None

    def __post_init__(self) -> None:
        if self.k not in HIT_RATES:
            raise ValueError(f"k must be one of {', '.join(map(str, HIT_RATES))}, got {self.k}")
        for name in ("min_hit_rate", "max_drop", "max_churn"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {value:g}")


def objection(gates: Gates, report: Report, current: Report | None) -> str | None:
    """Why the version of `report` may not be published, in a sentence; None if it may.

    Args:
        current: the report of the current version; None if there is none.
    """
    assert current is None or current.num_queries == report.num_queries
    floor, why = gates.min_hit_rate, "min_hit_rate"
    if current is not None and gates.max_drop is not None and current.hit_rate[gates.k] - gates.max_drop > floor:
        floor = current.hit_rate[gates.k] - gates.max_drop
        why = f"the current version's {current.hit_rate[gates.k]:.4f} less max_drop {gates.max_drop:g}"
    if report.hit_rate[gates.k] >= floor:
        return None
    return f"hit rate@{gates.k} must be at least {floor:.4f} ({why}), got {report.hit_rate[gates.k]:.4f}"


def churn_objection(max_churn: float, k: int, churn: float | None, reason: str | None) -> str | None:
    """Why a version of this churn@k may not be published, in a sentence; None if it may.

    Args:
        churn: None if nothing could measure it.
        reason: why it could not be measured.
    """
    if churn is None:
        return f"churn@{k} must be at most {max_churn:g}, got none, as it could not be measured: {reason}"
    return None if churn <= max_churn else f"churn@{k} must be at most {max_churn:g}, got {churn:.4f}"
