"""The calibration of a version: held-out positives, from which the threshold of any coverage follows.

It lies beside the version's files and is no part of its manifest, because a version that is published and immutable may
be calibrated anew, on newer queries. `calibration.json` names the file of the positives with its checksum and is
written after it, so that a reader finds one calibration or the other, whole.

    calibration-*.parquet    one row per pair: query (int64), share (float64), temperature (float64, of the query)
"""

import io
import json
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rails_ray.cutoffs.calibration import Positives
from rails_ray.cutoffs.distributions import Background
from rails_ray.errors import DamagedError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import FileEntry, describe, folder_of, read_file, read_json

FACTS = "calibration.json"


@dataclass(frozen=True)
class StoredCalibration:
    """
    positives: of the calibration queries.
    edges: tau_q between segments, ascending.
    background: of the distribution that the shares are of, by its name and its parameters.
    fitted: the background of the version's own scores, whichever one was taken.
    split, created_at: of the queries, and when.
    """

    positives: Positives
    edges: NDArray[np.float64]
    background_name: str
    background: Background
    fitted: Background
    split: str
    created_at: str

    def summary(self) -> dict[str, object]:
        """What a client may know of it."""
        return {
            "created_at": self.created_at,
            "split": self.split,
            "num_queries": self.positives.num_queries,
            "num_segments": len(self.edges) + 1,
            "background": self.background_name,
        }


def write(storage: Storage, version: str, calibration: StoredCalibration) -> None:
    """Make it the calibration of a version, in place of the one before."""
    own = calibration.positives
    table = pa.table({"query": own.query, "share": own.share, "temperature": own.temperature[own.query]})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    entry = describe("", sink.getvalue())
    entry = describe(f"calibration-{entry.sha256[:12]}.parquet", sink.getvalue())
    storage.write(f"{folder_of(version)}/{entry.path}", sink.getvalue())
    facts = {
        "split": calibration.split,
        "created_at": calibration.created_at,
        "edges": calibration.edges.tolist(),
        "background_name": calibration.background_name,
        "background": asdict(calibration.background),
        "fitted": asdict(calibration.fitted),
        "file": asdict(entry),
    }
    storage.write(f"{folder_of(version)}/{FACTS}", json.dumps(facts, indent=1).encode())


def read(storage: Storage, version: str) -> StoredCalibration | None:
    """The calibration of a version; None if it has none.

    Raises:
        DamagedError: if its bytes are not those that were written.
    """
    path = f"{folder_of(version)}/{FACTS}"
    if not storage.exists(path):
        return None
    facts = read_json(storage, path)
    try:
        table = pq.read_table(io.BytesIO(read_file(storage, version, FileEntry(**facts["file"]))))
        query = table["query"].to_numpy()
        temperature = np.empty(int(query.max()) + 1 if len(query) else 0)
        temperature[query] = table["temperature"].to_numpy()
        return StoredCalibration(
            positives=Positives(query, table["share"].to_numpy(), temperature),
            edges=np.array(facts["edges"], dtype=np.float64),
            background_name=facts["background_name"],
            background=Background(**facts["background"]),
            fitted=Background(**facts["fitted"]),
            split=facts["split"],
            created_at=facts["created_at"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{storage}/{path} must be as `rails-ray calibrate` wrote it, got: {error}: calibrate the version again"
        ) from None
