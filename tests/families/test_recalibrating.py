"""A refresh makes the calibrations of its version anew when many items have changed, or says why it does not."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.cli.main import main
from rails_ray.errors import GateError
from rails_ray.families import calibrations, changing
from rails_ray.families.calibrating import calibrated
from rails_ray.families.calibrations import StoredCalibration
from rails_ray.families.refreshing import refresh
from rails_ray.families.version import Version
from rails_ray.families.version_queries import VersionQueries
from rails_ray.schema.filters import canonical
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.failing import BEFORE_AND_AFTER

WIDTH, NUM_ITEMS = 4, 40
CHEAP = {"price": {"$lt": 20}}


def vectors_of(seeds: list[int]) -> pa.Array:
    found = np.stack([np.random.default_rng(seed).standard_normal(WIDTH) for seed in seeds]).astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), WIDTH)


def write_items(folder: Path, name: str, seeds: list[int]) -> None:
    """A file of items that are named by their seeds, which are their prices too."""
    (folder / "items").mkdir(parents=True, exist_ok=True)
    table = pa.table({"item_id": [f"a{seed}" for seed in seeds], "vector": vectors_of(seeds), "price": seeds})
    pq.write_table(table, folder / "items" / name)


def write_queries(folder: Path, num_items: int) -> None:
    """A query for each item."""
    rows = list(range(num_items))
    queries = {"query_id": rows, "vector": vectors_of([1000 + row for row in rows]), "split": ["valid"] * len(rows)}
    pq.write_table(pa.table(queries), folder / "queries.parquet")
    pq.write_table(pa.table({"query_id": rows, "item_id": [f"a{row}" for row in rows]}), folder / "relevance.parquet")


def grow(folder: Path) -> None:
    """Ten more items, and their queries."""
    write_items(folder, "day-2.parquet", list(range(NUM_ITEMS, NUM_ITEMS + 10)))
    write_queries(folder, NUM_ITEMS + 10)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_items(folder, "day-1.parquet", list(range(NUM_ITEMS)))
    write_queries(folder, NUM_ITEMS)
    return folder


@pytest.fixture
def storage(tmp_path: Path, data: Path) -> Storage:
    """With `v1` of the first day, calibrated over all items and over the cheap ones."""
    root = str(tmp_path / "storage")
    words = ["--recipe", "vector-cosine", "--folder", str(data), "--version", "v1", "--storage", root]
    assert main(["encode", *words, "--attributes", "price"]) == 0
    assert main(["publish", "--version", "v1", "--storage", root]) == 0
    storage = Storage(root)
    for filter in (None, CHEAP):
        calibrations.write(storage, "v1", made_now(storage, filter))
    return storage


def made_now(storage: Storage, filter: dict[str, Any] | None = None) -> StoredCalibration:
    """A calibration of the current version as it is now."""
    return calibrated(
        VersionQueries.read(storage, None, None, ["valid"], filter=filter), "valid", num_segments=2
    ).stored


def current(storage: Storage) -> dict[str | None, StoredCalibration]:
    """The calibrations of the current version, by their filters."""
    return {own.filter: own for own in calibrations.read_all(storage, versions.current_version(storage))}


def assert_equal(found: StoredCalibration, expected: StoredCalibration) -> None:
    for name in ("query", "share", "temperature"):
        assert np.array_equal(getattr(found.positives, name), getattr(expected.positives, name))
    same = {"positives": expected.positives, "created_at": expected.created_at}
    assert replace(found, **same) == expected


def test_few_changes_are_counted(storage: Storage, data: Path) -> None:
    """Over several versions, by whatever command; a tenth is not beyond it, and what is beyond calibrates anew."""
    first = current(storage)[None]
    assert (first.num_items, first.num_changed) == (NUM_ITEMS, 0)
    changing.delete(storage, ["a0"])
    write_items(data, "day-2.parquet", [40, 41, 1])
    assert refresh(storage).num_calibrated == 0
    for own in current(storage).values():
        assert (own.num_items, own.num_changed) == (NUM_ITEMS, 4)
    assert np.array_equal(current(storage)[None].positives.share, first.positives.share)
    (data / "items" / "day-2.parquet").unlink()  # an id that two files have would keep the data from being read
    write_items(data, "day-3.parquet", [42])
    found = refresh(storage)
    assert (found.num_calibrated, found.notes) == (2, ())


def test_many_changes_calibrate_anew(storage: Storage, data: Path) -> None:
    """As the new version would be calibrated by itself, over all items and under each filter."""
    grow(data)
    found = refresh(storage)
    assert found.num_calibrated == 2
    assert current(storage).keys() == {None, canonical(CHEAP)}
    for filter in (None, CHEAP):
        assert_equal(current(storage)[None if filter is None else canonical(filter)], made_now(storage, filter))
    assert (current(storage)[None].num_items, current(storage)[None].num_changed) == (NUM_ITEMS + 10, 0)
    former = {own.filter: own for own in calibrations.read_all(storage, "v1")}
    assert former[None].positives.num_queries < current(storage)[None].positives.num_queries


def test_it_may_be_left_out(storage: Storage, data: Path) -> None:
    grow(data)
    assert refresh(storage, recalibrate_beyond=None).num_calibrated == 0
    assert current(storage)[None].num_changed == 10
    write_items(data, "day-3.parquet", [50])
    assert refresh(storage, recalibrate_beyond=0.5).num_calibrated == 0


def test_the_gates_see_the_new_calibration(storage: Storage, data: Path) -> None:
    """One that refuses leaves the former version with its own."""
    grow(data)
    seen = list[int | None]()

    def refuse(made: Any) -> None:
        seen.extend(own.num_items for own in calibrations.read_all(storage, made.version))
        raise GateError("no")

    with pytest.raises(GateError):
        refresh(storage, approve=refuse)
    assert seen == [NUM_ITEMS + 10] * 2
    assert versions.current_version(storage) == "v1"
    assert {own.num_items for own in current(storage).values()} == {NUM_ITEMS}


def test_data_without_queries_say_so_and_the_calibration_goes_on(
    storage: Storage, data: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = current(storage)[None]
    grow(data)
    for name in ("queries", "relevance"):
        (data / f"{name}.parquet").unlink()
    assert main(["refresh", "--storage", str(storage)]) == 0
    assert "50 items (10 added)" in capsys.readouterr().out
    said = [own for own in caplog.messages if "goes on as it was made at" in own]
    assert [f"the calibration goes on as it was made at {first.created_at}, before 25% of the items changed: " in own
            for own in said] == [True, False]  # fmt: skip
    assert "under the filter" in said[1]
    assert np.array_equal(current(storage)[None].positives.share, first.positives.share)


def test_the_command_says_what_it_calibrated(storage: Storage, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grow(data)
    assert main(["refresh", "--storage", str(storage), "--recalibrate-beyond", "0.2"]) == 0
    assert "calibrated anew: 2" in capsys.readouterr().out
    assert main(["refresh", "--storage", str(storage), "--recalibrate-beyond", "-1"]) == 2
    assert "--recalibrate-beyond must be at least 0, or None, got -1" in capsys.readouterr().err


@pytest.mark.parametrize("is_done", BEFORE_AND_AFTER)
def test_killed_at_each_write(
    storage: Storage, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """All items of a file are there, or none, and in either case the calibrations of that version; the next refresh has
    all, once, and calibrated for them."""
    grow(data)
    root, number, is_over = Path(str(storage)), 0, False
    former, expected = {*Version.published(storage).item_ids()}, NUM_ITEMS + 10
    while not is_over:
        number += 1
        folder = shutil.copytree(root, tmp_path / f"killed-{number}")
        here = Storage(str(folder))
        with monkeypatch.context() as patched:
            count = _die_at(patched, number, is_done)
            try:
                refresh(here)
                is_over = count[0] < number
            except KeyboardInterrupt:
                items = {*Version.published(here).item_ids()}
                assert len(items) in (NUM_ITEMS, expected)
                assert former <= items
                assert {own.num_items for own in current(here).values()} == {len(items)}
        refresh(here)
        assert len(Version.published(here).item_ids()) == expected
        assert [(own.num_items, own.num_changed) for own in current(here).values()] == [(expected, 0)] * 2
    assert number > 10


def _die_at(patched: pytest.MonkeyPatch, number: int, is_done: bool) -> list[int]:
    """Let the write of this number be the last thing that a process does. Returns a count of the writes."""
    count = [0]
    for name in ("write", "create", "swap"):
        whole = getattr(Storage, name)

        def counted(self: Storage, *arguments: Any, whole: Any = whole) -> Any:
            count[0] += 1
            if count[0] != number:
                return whole(self, *arguments)
            if is_done:
                whole(self, *arguments)
            raise KeyboardInterrupt

        patched.setattr(Storage, name, counted)
    return count
