"""Compare two versions of a storage: their items, what they are made of, and what they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from rich.filesize import decimal
from rich.table import Table

from rails_ray.allowed_code import AllowedCode
from rails_ray.families import calibrations, default_searches
from rails_ray.families.calibrations import StoredCalibration
from rails_ray.families.version import Version
from rails_ray.serving.churn import COVERAGE, KS, AnswersDiff, compare_answers
from rails_ray.serving.search_defaults import USUAL
from rails_ray.storage.comparing import ItemsDiff, compare_items, shared_bytes
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.usage import size_of

FORMAT = 1  # of the JSON
SHOWN = 5  # ids of each kind


@dataclass(frozen=True)
class ComparedVersion:
    """
    version: its name.
    num_items, size_bytes: items, and bytes of all of its files.
    index: kind and numbers of the index, such as `hnsw fp32`; None if the family builds none.
    search: method and search parameters of requests that name none.
    calibrated_at: when it was calibrated; None if it was not.
    """

    version: str
    num_items: int
    size_bytes: int
    index: str | None
    search: Mapping[str, Any]
    calibrated_at: str | None


@dataclass(frozen=True)
class VersionsDiff:
    """
    first, second: the versions.
    items: their items.
    shared_bytes: bytes of the objects that both name.
    same_model: whether the files of their weights are equal.
    same_calibration: whether both are calibrated alike, or neither is.
    answers: what they answer.
    """

    first: ComparedVersion
    second: ComparedVersion
    items: ItemsDiff
    shared_bytes: int
    same_model: bool
    same_calibration: bool
    answers: AnswersDiff

    @property
    def examples(self) -> dict[str, list[Any]]:
        """Return some ids of added, removed and changed items."""
        return {name: [*getattr(self.items, name)[:SHOWN]] for name in ("added", "removed", "changed")}

    def to_dict(self) -> dict[str, Any]:
        """The JSON that docs/indexes.md documents."""
        counts = {name: len(getattr(self.items, name)) for name in ("added", "removed", "changed")}
        answers = asdict(self.answers)
        for name in ("churn", "churn_of_common"):
            if answers[name] is not None:
                answers[name] = {str(k): value for k, value in answers[name].items()}
        return {
            "format": FORMAT,
            "first": asdict(self.first),
            "second": asdict(self.second),
            "items": {"common": self.items.num_common, **counts, "examples": self.examples},
            "shared_bytes": self.shared_bytes,
            "same_model": self.same_model,
            "same_calibration": self.same_calibration,
            "answers": {**answers, "coverage": COVERAGE, "mean_kept": list(self.answers.mean_kept)},
        }


def diff_versions(
    store: Storage, first: str, second: str | None = None, *, k: int = 10, allow_code: Sequence[str] = ()
) -> VersionsDiff:
    """Compare two versions, published or not.

    Args:
        second: by default the current one.
        k: length of the lists that are compared beside those of 10 and 100.
        allow_code: as in `local.open`.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if a file differs from what was written.
        ValueError: if k is below 1, or a config names code that is not allowed.
    """
    if k < 1:
        raise ValueError(f"--k must be at least 1, got {k}")
    allowed = AllowedCode.given(allow_code)
    one, other = (Version.encoded(store, name, allowed) for name in (first, second))
    stored = [calibrations.read_current(store, version.name) for version in (one, other)]
    items = compare_items(store, one.described, other.described)
    return VersionsDiff(
        first=_compared(one, stored[0]),
        second=_compared(other, stored[1]),
        items=items,
        shared_bytes=shared_bytes(one.described, other.described),
        same_model=_weights(one) == _weights(other),
        same_calibration=_are_alike(*stored),
        answers=compare_answers(one, other, sorted({*KS, k}), items),
    )


def _compared(version: Version, calibration: StoredCalibration | None) -> ComparedVersion:
    index, search = version.family.index_config, default_searches.read_current(version.storage, version.name)
    return ComparedVersion(
        version=version.name,
        num_items=version.described.num_live,
        size_bytes=size_of(version.described),
        index=None if index is None else f"{index.kind} {getattr(index, 'storage', 'fp32')}",
        search={"method": USUAL} if search is None else {"method": search.method, **search.params},
        calibrated_at=None if calibration is None else calibration.created_at,
    )


def _weights(version: Version) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in version.described.weights}


def _are_alike(one: StoredCalibration | None, other: StoredCalibration | None) -> bool:
    """Return whether calibrations are equal but for their time and the items that have changed since."""
    if one is None or other is None:
        return one is other
    pairs = [(getattr(one.positives, own.name), getattr(other.positives, own.name)) for own in fields(one.positives)]
    if not all(np.array_equal(*pair) for pair in pairs):
        return False
    same = {name: getattr(other, name) for name in ("positives", "created_at", "num_items", "num_changed")}
    return replace(one, **same) == other


def facts_table(found: VersionsDiff) -> Table:
    """A table of two versions, one beside the other."""
    both = found.first, found.second
    table = Table("", *(own.version for own in both), title_justify="left")
    table.add_row("items", *(f"{own.num_items:,}" for own in both))
    table.add_row("size", *(decimal(own.size_bytes) for own in both))
    table.add_row("index", *(own.index or "none" for own in both))
    table.add_row("default search", *(" ".join(map(str, own.search.values())) for own in both))
    table.add_row("calibrated", *(own.calibrated_at or "not" for own in both))
    kept = ("unknown" if mean is None else f"{mean:.1f}" for mean in found.answers.mean_kept)
    table.add_row(f"kept at coverage {COVERAGE:g}", *kept)
    return table


def differences(found: VersionsDiff) -> list[str]:
    """Say what two versions have in common and what not, a line each."""
    answers, lines = found.answers, [f"items in both: {found.items.num_common:,}"]
    for name, examples in found.examples.items():
        num = len(getattr(found.items, name))
        more = ", .." if num > len(examples) else ""
        lines.append(f"{name}: {num:,}" + (f" ({', '.join(map(str, examples))}{more})" if num else ""))
    lines.append(f"bytes that both share: {decimal(found.shared_bytes)}")
    for name, is_same in (("models", found.same_model), ("calibrations", found.same_calibration)):
        lines.append(f"{name}: {'equal' if is_same else 'not equal'}")
    if answers.churn is None:
        return [*lines, f"churn: unknown: {answers.reason}"]
    lines.append(f"queries: {answers.queries}{'' if answers.reason is None else f': {answers.reason}'}")
    for k, churn in answers.churn.items():
        common = "" if answers.churn_of_common is None else f", of items in both {answers.churn_of_common[k]:.4f}"
        lines.append(f"churn@{k}: {churn:.4f}{common}")
    if answers.mean_score_change is not None:
        largest = f"at most {answers.largest_score_change:.3g}"
        lines.append(f"change of a score: mean {answers.mean_score_change:.3g}, {largest}")
    return lines
