"""The calibration of a version: held-out positives, which give the threshold for any coverage.

It lies beside the version's files but is not part of the manifest: a published, immutable version may be calibrated
again on newer queries. Each calibration has its own file, named by its sha256; `calibration.json` names the current one
and is written last. A calibration over the items that a filter passes has a pointer of its own, named by the filter.

    calibration-*.parquet     one row per pair: query (int64), share (float64), temperature (float64, of the query);
                              the rest as JSON in the metadata of the schema
    calibrations/*.json       the current calibration under a filter, by the sha256 of the filter's text
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.cutoffs.calibration import Positives
from rails_ray.cutoffs.distributions import Background
from rails_ray.cutoffs.segments import Segments
from rails_ray.cutoffs.temperatures import AS_TRAINED, Factor, Factors
from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import parquet
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import folder_of, point_to, pointed_file

CURRENT, OF_FILTERS, FACTS = "calibration.json", "calibrations", b"rails_ray"
AGAIN = "calibrate the version again"


@dataclass(frozen=True)
class StoredCalibration:
    """
    positives: positives of the calibration queries.
    num_segments: number of groups of queries by tau_q, equal in size.
    background_name, background: name and parameters of the background behind the shares.
    fitted: the background fitted to the version's own scores, even if another was chosen; None if none fits.
    split, created_at: the split of the queries, and when the calibration was made.
    factors: temperatures fitted on the calibration queries; none in a calibration that is older than they are.
    held_out: the background fitted to the relevant items' scores; None if none fits.
    mass: the best mass by F1 on these queries at the fitted temperature; None where the version's own applies.
    filter: text of the filter (`schema.filters.canonical`) whose items it measured; None for all items.
    num_items: items of the version that it was made for; None in a calibration that is older than this number.
    num_changed: items added, replaced and deleted since, summed over the versions that inherited it.
    """

    positives: Positives
    num_segments: int
    background_name: str
    background: Background
    fitted: Background | None
    split: str
    created_at: str
    factors: Factors = AS_TRAINED
    held_out: Background | None = None
    mass: float | None = None
    filter: str | None = None
    num_items: int | None = None
    num_changed: int = 0

    @property
    def changed_fraction(self) -> float:
        """Items changed since it was made, per item of the version then; above 1 if some changed again and again."""
        return self.num_changed / self.num_items if self.num_items else 0.0

    def summary(self) -> dict[str, object]:
        """The facts that a client may see."""
        return {
            "created_at": self.created_at,
            "split": self.split,
            "num_queries": self.positives.num_queries,
            "num_segments": len(Segments(self.positives.temperature, self.num_segments).edges) + 1,
            "background": self.background_name,
            "factors": _facts_of(self.factors),
        }


def write(storage: Storage, version: str, calibration: StoredCalibration) -> None:
    """Make this the current calibration of a version, of all items or under its filter."""
    own = calibration.positives
    facts = {
        "split": calibration.split,
        "created_at": calibration.created_at,
        "num_segments": calibration.num_segments,
        "background_name": calibration.background_name,
        "background": asdict(calibration.background),
        "fitted": None if calibration.fitted is None else asdict(calibration.fitted),
        "factors": _facts_of(calibration.factors),
        "held_out": None if calibration.held_out is None else asdict(calibration.held_out),
        "mass": calibration.mass,
        "filter": calibration.filter,
        "num_items": calibration.num_items,
        "num_changed": calibration.num_changed,
    }
    table = pa.table({"query": own.query, "share": own.share, "temperature": own.temperature[own.query]})
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({FACTS: json.dumps(facts)}), sink, compression="zstd")
    name = f"calibration-{hashlib.sha256(sink.getvalue()).hexdigest()}.parquet"
    storage.write(f"{folder_of(version)}/{name}", sink.getvalue())
    point_to(storage, _pointer(version, calibration.filter), name)


def _pointer(version: str, filter: str | None) -> str:
    """Path of the file that names the current calibration, over all items or under a filter."""
    if filter is None:
        return f"{folder_of(version)}/{CURRENT}"
    return f"{folder_of(version)}/{OF_FILTERS}/{hashlib.sha256(filter.encode()).hexdigest()}.json"


def current(storage: Storage, version: str) -> str | None:
    """The file of the current calibration of a version over all items; None if it has none.

    Raises:
        DamagedError: if `calibration.json` cannot be read.
    """
    return pointed_file(storage, _pointer(version, None), AGAIN)


def of_filters(storage: Storage, version: str) -> tuple[str, ...]:
    """The files of the current calibrations of a version under filters.

    Raises:
        DamagedError: if a file that names one cannot be read.
    """
    folder = f"{folder_of(version)}/{OF_FILTERS}"
    named = (pointed_file(storage, f"{folder}/{name}", AGAIN) for name in storage.list(folder))
    return tuple(sorted(name for name in named if name is not None))


def read_all(storage: Storage, version: str) -> list[StoredCalibration]:
    """The current calibrations of a version, of all items and under filters; raises what `of_filters` and `read` do."""
    names = current(storage, version), *of_filters(storage, version)
    return [read(storage, version, name) for name in names if name is not None]


def read(storage: Storage, version: str, name: str) -> StoredCalibration:
    """A calibration of a version, by its file.

    Raises:
        DamagedError: if the file is missing or its bytes have changed.
    """
    path = f"{folder_of(version)}/{name}"
    try:
        data = storage.read(path)
        if f"calibration-{hashlib.sha256(data).hexdigest()}.parquet" != name:
            raise ValueError("others than its name says")
        table = parquet.read_plain(io.BytesIO(data))
        facts = json.loads(table.schema.metadata[FACTS])
        query = table["query"].to_numpy()
        temperature = np.empty(int(query.max()) + 1)
        temperature[query] = table["temperature"].to_numpy()
        return StoredCalibration(
            positives=Positives(query, table["share"].to_numpy(), temperature),
            num_segments=facts["num_segments"],
            background_name=facts["background_name"],
            background=Background(**facts["background"]),
            fitted=None if facts["fitted"] is None else Background(**facts["fitted"]),
            split=facts["split"],
            created_at=facts["created_at"],
            factors=_factors(facts.get("factors", {"mass": {}, "softmax": None})),
            held_out=None if facts.get("held_out") is None else Background(**facts["held_out"]),
            mass=facts.get("mass"),
            filter=facts.get("filter"),
            num_items=facts.get("num_items"),
            num_changed=facts.get("num_changed", 0),
        )
    except (NotFoundError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{storage}/{path} must hold the bytes that `rails-ray calibrate` wrote, got: {error}: calibrate the "
            "version again"
        ) from None


def read_current(storage: Storage, version: str) -> StoredCalibration | None:
    """The current calibration of a version, if it has one; raises what `current` and `read` do."""
    name = current(storage, version)
    return None if name is None else read(storage, version, name)


def inherit(storage: Storage, parent: Encoded, version: str, num_changed: int = 0) -> None:
    """Give a version the current calibrations of its parent; raises what `read_all` does.

    Args:
        num_changed: items that it has added, replaced and deleted.
    """
    for own in read_all(storage, parent.version):
        num_items = parent.num_live if own.num_items is None else own.num_items
        write(storage, version, replace(own, num_items=num_items, num_changed=own.num_changed + num_changed))


def _facts_of(factors: Factors) -> dict[str, Any]:
    return {
        "mass": {name: asdict(own) for name, own in factors.mass.items()},
        "softmax": None if factors.softmax is None else asdict(factors.softmax),
    }


def _factors(facts: Mapping[str, Any]) -> Factors:
    softmax = facts["softmax"]
    mass = {name: Factor(**own) for name, own in facts["mass"].items()}
    return Factors(mass, None if softmax is None else Factor(**softmax))
