"""Data that grow: what was read is not read again, and what is new is there or not as a whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from rails_ray import local
from rails_ray.cli.main import main
from rails_ray.errors import GateError, RailsRayError
from rails_ray.families.compacting import compact
from rails_ray.families.refreshing import refresh
from rails_ray.families.version import Version
from rails_ray.storage import versions, watermarks
from rails_ray.storage.filesystem import Storage

WIDTH = 4


def vectors_of(seeds: list[int]) -> NDArray[np.float32]:
    return np.stack([np.random.default_rng(seed).standard_normal(WIDTH) for seed in seeds]).astype(np.float32)


def write(folder: Path, name: str, seeds: dict[str, int]) -> None:
    """A file of items with vectors of these seeds."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_of(list(seeds.values())).ravel()), WIDTH)
    (folder / "items").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"item_id": list(seeds), "vector": vectors}), folder / "items" / name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write(folder, "day-1.parquet", {f"a{number}": number for number in range(20)})
    return folder


@pytest.fixture
def storage(tmp_path: Path, data: Path) -> Storage:
    """With the version `v1` of the first day."""
    root = str(tmp_path / "storage")
    words = ["--recipe", "vector-cosine", "--folder", str(data), "--version", "v1", "--storage", root]
    assert main(["encode", *words]) == 0
    assert main(["publish", "--version", "v1", "--storage", root]) == 0
    return Storage(root)


def items_of(storage: Storage) -> dict[str, NDArray[np.float32]]:
    found = Version.published(storage).vectors()
    return {item: vector for ids, block in found.blocks for item, vector in zip(ids.to_pylist(), block, strict=True)}


def assert_items(storage: Storage, expected: dict[str, int]) -> None:
    found = items_of(storage)
    assert {*found} == {*expected}
    wanted = vectors_of(list(expected.values()))
    wanted /= np.linalg.norm(wanted, axis=1)[:, None]
    np.testing.assert_allclose(np.stack([found[own] for own in expected]), wanted, rtol=0, atol=1e-6)


def test_nothing_is_new(storage: Storage) -> None:
    """The files that encoding has read are known."""
    assert refresh(storage).change is None
    assert versions.current_version(storage) == "v1"


def test_a_new_day(storage: Storage, data: Path) -> None:
    expected = {f"a{number}": number for number in range(20)}
    write(data, "day-2.parquet", {"b0": 100, "a3": 103})
    found = refresh(storage)
    assert found.change is not None
    assert (found.num_files, found.change.num_added, found.change.num_replaced) == (1, 1, 1)
    expected |= {"b0": 100, "a3": 103}
    assert_items(storage, expected)
    assert refresh(storage).change is None


def test_two_days_at_once_and_a_day_that_changes(storage: Storage, data: Path) -> None:
    """The later file has the last word."""
    expected = {f"a{number}": number for number in range(20)}
    write(data, "day-2.parquet", {"b0": 100, "b1": 101})
    write(data, "day-3.parquet", {"b1": 201, "a0": 200})
    assert refresh(storage).num_files == 2
    assert_items(storage, expected | {"b0": 100, "b1": 201, "a0": 200})
    write(data, "day-2.parquet", {"b0": 300, "b1": 301, "b2": 302})
    assert refresh(storage).num_files == 1
    assert_items(storage, expected | {"b0": 300, "b1": 301, "a0": 200, "b2": 302})


def test_a_rollback_takes_the_watermark_back(storage: Storage, data: Path) -> None:
    write(data, "day-2.parquet", {"b0": 100})
    refresh(storage)
    versions.rollback(storage)
    assert "b0" not in items_of(storage)
    found = refresh(storage)
    assert found.change is not None
    assert "b0" in items_of(storage)


def test_a_compaction_keeps_it(storage: Storage, data: Path) -> None:
    write(data, "day-2.parquet", {"b0": 100})
    refresh(storage)
    compact(storage)
    assert refresh(storage).change is None
    assert len(watermarks.read(storage, Version.published(storage).described)) == 2


def test_a_version_that_is_refused_does_not_become_current(storage: Storage, data: Path) -> None:
    write(data, "day-2.parquet", {"b0": 100})

    def refuse(made: Any) -> None:
        assert local.open(str(storage), made.version).search([[1.0] * WIDTH], k=30).results[0].num_searched == 21
        raise GateError("no")

    with pytest.raises(GateError):
        refresh(storage, approve=refuse)
    assert versions.current_version(storage) == "v1"
    assert refresh(storage).change is not None


@pytest.mark.parametrize("name", ["write", "create", "swap"])
@pytest.mark.parametrize("number", range(1, 6))
def test_killed_at_any_time(
    storage: Storage, data: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """All items of a file are there, or none; the next refresh has them all, once."""
    write(data, "day-2.parquet", {"b0": 100, "b1": 101})
    whole, calls = getattr(Storage, name), [0]

    def killed(self: Storage, *arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            raise KeyboardInterrupt
        return whole(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Storage, name, killed)
        try:
            refresh(storage)
        except KeyboardInterrupt:
            assert {*items_of(storage)} & {"b0", "b1"} in (set(), {"b0", "b1"})
    refresh(storage)
    assert {"b0", "b1"} <= {*items_of(storage)}
    assert len(items_of(storage)) == 22


def test_the_command(storage: Storage, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(data, "day-2.parquet", {"b0": 100})
    assert main(["refresh", "--storage", str(storage), "--max-churn", "0.9"]) == 0
    said = capsys.readouterr().out
    assert "1 new file" in said
    assert "21 items (1 added)" in said
    assert main(["refresh", "--storage", str(storage)]) == 0
    assert "0 new files: nothing to add" in capsys.readouterr().out


def test_a_gate_that_refuses(storage: Storage, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(data, "day-2.parquet", {f"a{number}": 500 + number for number in range(20)})
    assert main(["refresh", "--storage", str(storage), "--max-churn", "0.01", "--k", "1"]) == 1
    assert "must answer as v1 does to become current" in capsys.readouterr().err
    assert versions.current_version(storage) == "v1"


def test_items_that_follow_from_interactions(tmp_path: Path) -> None:
    with pytest.raises(RailsRayError, match="storage must hold a published version"):
        refresh(Storage(str(tmp_path)))


def test_new_items_get_the_attributes_of_the_version(tmp_path: Path, data: Path) -> None:
    """Integers of a new file are floats, as the version has them; a file without the column has nulls."""

    def with_prices(name: str, prices: list[Any]) -> None:
        path = data / "items" / name
        pq.write_table(pq.read_table(path).append_column("price", pa.array(prices)), path)

    with_prices("day-1.parquet", [number / 2 for number in range(20)])
    root = str(tmp_path / "storage")
    words = ["--recipe", "vector-cosine", "--folder", str(data), "--version", "v1", "--storage", root]
    assert main(["encode", *words, "--attributes", "price"]) == 0
    assert main(["publish", "--version", "v1", "--storage", root]) == 0

    def prices() -> dict[Any, float | None]:
        items = Version.published(Storage(root)).items()
        assert items.attributes is not None
        return dict(zip(items.item_ids, items.attributes["price"].to_pylist(), strict=True))

    write(data, "day-2.parquet", {"b0": 100, "a3": 103})
    with_prices("day-2.parquet", [7, None])
    assert refresh(Storage(root)).num_files == 1
    expected = {f"a{number}": number / 2 for number in range(20)} | {"b0": 7.0, "a3": None}
    assert prices() == expected
    write(data, "day-3.parquet", {"c0": 200})
    assert refresh(Storage(root)).num_files == 1
    assert prices() == expected | {"c0": None}
    write(data, "day-4.parquet", {"d0": 300})
    with_prices("day-4.parquet", ["free"])
    with pytest.raises(ValueError, match=r"column 'price' of .*day-4\.parquet must be of type float, .*, got string"):
        refresh(Storage(root))
