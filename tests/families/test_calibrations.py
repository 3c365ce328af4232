import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rails_ray.cutoffs.distributions import Background
from rails_ray.cutoffs.temperatures import AS_TRAINED, Factor, Factors
from rails_ray.errors import DamagedError
from rails_ray.families import calibrations
from rails_ray.storage.filesystem import Storage
from support.calibrations import POSITIVES, STORED, drawn


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    assert calibrations.current(store, "v1") is None
    assert calibrations.read_current(store, "v1") is None
    calibrations.write(store, "v1", STORED)
    found = calibrations.read_current(store, "v1")
    assert found is not None
    for name in ("query", "share", "temperature"):
        assert np.array_equal(getattr(found.positives, name), getattr(POSITIVES, name))
    assert replace(found, positives=POSITIVES) == STORED
    assert found.summary() == {
        "created_at": "2026-01-01T00:00:00Z",
        "split": "valid",
        "num_queries": 90,
        "num_segments": 3,
        "background": "uniform",
        "factors": {"mass": {}, "softmax": None},
    }


def test_temperatures_are_stored_and_a_calibration_without_them_keeps_tau_q_as_trained(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    factors = Factors({"uniform": Factor(9.5, 9.0, 10.0, 90)}, Factor(1.02, 0.9, 1.1, 90))
    fitted = replace(STORED, factors=factors, held_out=Background(0.5, 7.5), mass=0.8)
    calibrations.write(store, "v1", fitted)
    found = calibrations.read_current(store, "v1")
    assert found is not None
    assert replace(found, positives=POSITIVES) == fitted
    assert found.summary()["factors"]["softmax"]["value"] == 1.02  # type: ignore[index]
    folder = tmp_path / "versions" / "v1"
    (whole,) = folder.glob("calibration-*.parquet")
    table = pq.read_table(whole)
    facts = json.loads(table.schema.metadata[calibrations.FACTS])
    older = {key: value for key, value in facts.items() if key not in ("factors", "held_out", "mass")}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({calibrations.FACTS: json.dumps(older)}), sink)
    name = f"calibration-{hashlib.sha256(sink.getvalue()).hexdigest()}.parquet"
    (folder / name).write_bytes(sink.getvalue())
    read = calibrations.read(store, "v1", name)
    assert (read.factors, read.held_out, read.mass) == (AS_TRAINED, None, None)


def test_queries_alike_are_one_segment_to_a_client() -> None:
    alike = replace(STORED, positives=drawn(90, 0, is_alike=True))
    assert alike.summary()["num_segments"] == 1


def test_a_calibration_that_is_older_than_its_segments(tmp_path: Path) -> None:
    """Files that name the edges between segments and not their number."""
    store = Storage(str(tmp_path))
    calibrations.write(store, "v1", STORED)
    folder = tmp_path / "versions" / "v1"
    (whole,) = folder.glob("calibration-*.parquet")
    table = pq.read_table(whole)
    facts = json.loads(table.schema.metadata[calibrations.FACTS])
    del facts["num_segments"]
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({calibrations.FACTS: json.dumps({**facts, "edges": [0.1]})}), sink)
    name = f"calibration-{hashlib.sha256(sink.getvalue()).hexdigest()}.parquet"
    (folder / name).write_bytes(sink.getvalue())
    with pytest.raises(DamagedError, match="wrote, got: 'num_segments': calibrate the version again"):
        calibrations.read(store, "v1", name)


def test_the_last_calibration_is_the_one_that_counts(tmp_path: Path) -> None:
    """And the one before it can still be read by who keeps to it."""
    store = Storage(str(tmp_path))
    calibrations.write(store, "v1", STORED)
    first = calibrations.current(store, "v1")
    assert first is not None
    calibrations.write(store, "v1", replace(STORED, positives=drawn(50, 1), fitted=None))
    found = calibrations.read_current(store, "v1")
    assert found is not None
    assert (found.positives.num_queries, found.fitted) == (50, None)
    assert calibrations.read(store, "v1", first).positives.num_queries == 90


def test_a_calibration_that_is_not_as_it_was_written(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    calibrations.write(store, "v1", STORED)
    (table,) = (tmp_path / "versions" / "v1").glob("calibration-*.parquet")
    whole = table.read_bytes()
    damaged = r"calibration-\w+.parquet must hold the bytes that `rails-ray calibrate` wrote, got: .*: calibrate the v"
    for data in (whole[:-1], b""):
        table.write_bytes(data)
        with pytest.raises(DamagedError, match=damaged):
            calibrations.read_current(store, "v1")
    table.unlink()
    with pytest.raises(DamagedError, match=damaged):
        calibrations.read_current(store, "v1")
    pointer = tmp_path / "versions" / "v1" / "calibration.json"
    for text in ("{", "{}"):
        pointer.write_text(text)
        with pytest.raises(DamagedError, match=r"calibration\.json must name a file, got None: calibrate the version"):
            calibrations.current(store, "v1")
