import dataclasses
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import DamagedError
from rails_ray.storage import manifest, parts
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parts import PlannedPart
from support.examples import encode, part_of, random_states

RECORD = "versions/v1/parts/000000000004.json"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 20))
def test_a_plan_holds_every_row_once_within_its_shard(num_items: int, num_shards: int, part_items: int) -> None:
    num_shards = min(num_shards, num_items)
    shard_items = parts.even_shards(num_items, num_shards)
    shard_of = [shard for shard, size in enumerate(shard_items) for _ in range(size)]
    planned = parts.plan(shard_items, part_items)
    rows = [(part.shard, row) for part in planned for row in range(part.first_row, part.first_row + part.num_items)]
    assert rows == list(zip(shard_of, range(num_items), strict=True))
    assert all(1 <= part.num_items <= part_items for part in planned)
    assert len(planned) == sum(-(-size // part_items) for size in shard_items)  # and no more parts than it takes


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 9), st.integers(0, 30), st.data())
def test_tasks_hold_the_missing_parts_in_runs(
    num_items: int, num_shards: int, part_items: int, task_rows: int, data: st.DataObject
) -> None:
    planned = parts.plan(parts.even_shards(num_items, min(num_shards, num_items)), part_items)
    missing = [part for part in planned if data.draw(st.booleans())]
    tasks = parts.tasks_by_position(missing, task_rows)
    assert [part for task in tasks for part in task.parts] == missing
    for task in tasks:
        assert task.num_rows <= max(task_rows, part_items)
        row = task.first_row
        for part in task.parts:
            assert part.first_row == row
            row += part.num_items
        assert row == task.first_row + task.num_rows


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9))
def test_tasks_by_hash_equal_the_loops(shards: list[int], task_rows: int) -> None:
    """Each shard's items stand in the order of the data; a shard may lack items of a task."""
    blocks = [shards[first : first + task_rows] for first in range(0, len(shards), task_rows)]
    num_in = np.array([[block.count(shard) for shard in range(4)] for block in blocks])
    tasks = parts.tasks_by_hash(num_in, len(shards), task_rows)
    order = [row for shard in range(4) for row, own in enumerate(shards) if own == shard]  # version row -> data row
    for number, task in enumerate(tasks):
        rows = range(number * task_rows, min((number + 1) * task_rows, len(shards)))
        assert (task.first_row, task.num_rows) == (rows[0], len(rows))
        for part in task.parts:
            found = order[part.first_row : part.first_row + part.num_items]
            assert found == [row for row in rows if shards[row] == part.shard]
    assert sum(part.num_items for task in tasks for part in task.parts) == len(shards)


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 30))
def test_tasks_that_follow_one_another_are_read_together(is_missing: list[bool], task_rows: int) -> None:
    tasks = [parts.Task(3 * number, 3, ()) for number, missing in enumerate(is_missing) if missing]
    groups = parts.together(tasks, task_rows)
    assert [task for group in groups for task in group] == tasks
    for group, following in itertools.zip_longest(groups, groups[1:]):
        rows = [row for task in group for row in range(task.first_row, task.first_row + 3)]
        assert rows == list(range(rows[0], rows[0] + len(rows)))
        assert len(rows) <= max(task_rows, 3)
        if following is not None:  # it could not have taken one more
            assert len(rows) + 3 > task_rows or following[0].first_row > rows[-1] + 1


@pytest.mark.parametrize("keys", [np.arange(10_000), np.arange(10_000) * 4096 - 2**62])
@pytest.mark.parametrize("num_shards", [1, 3, 4, 7])
def test_shards_by_hash_are_about_equal(keys: np.ndarray, num_shards: int) -> None:
    """Even if ids are regular; six standard deviations."""
    sizes = np.bincount(parts.shards_of(keys, num_shards), minlength=num_shards)
    assert len(sizes) == num_shards
    assert abs(sizes - len(keys) / num_shards).max() <= 6 * (len(keys) / num_shards) ** 0.5


@given(st.integers(1, 60), st.integers(1, 7))
def test_shards_are_of_equal_size_but_for_one_item(num_items: int, num_shards: int) -> None:
    sizes = parts.even_shards(num_items, num_shards)
    assert (sum(sizes), len(sizes)) == (num_items, num_shards)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


PLANNED = PlannedPart(shard=1, first_row=4, num_items=3)
ITEMS = random_states(1, 3)[1]


ENTRY = {"path": "x", "size_bytes": 1, "sha256": "", "shard": 1, "first_row": 4, "num_items": 3}


def files(storage: Storage) -> list[str]:
    return [f"objects/{name}" for name in storage.list("objects")]


def test_a_part_comes_back_with_its_columns(storage: Storage) -> None:
    table = part_of(ITEMS, 4)
    parts.write_part(storage, "v1", PLANNED, table)
    entry, columns, state = parts.read_part(storage, "v1", PLANNED)
    assert (entry.shard, entry.first_row, entry.num_items) == (1, 4, 3)
    assert files(storage) == [entry.path] == [f"objects/{entry.sha256}"]
    assert pq.read_table(io.BytesIO(manifest.read_file(storage, "v1", entry))).equals(table)
    assert columns == {field.name: str(field.type) for field in table.schema}
    assert columns["item_id"] == "string"
    assert (state.kind, state.shapes) == ("components", {"components": [3, 4], "average": [4], "gate": [6]})


def test_of_two_attempts_the_first_stands(storage: Storage) -> None:
    parts.write_part(storage, "v1", PLANNED, part_of(ITEMS, 4))
    first = parts.read_part(storage, "v1", PLANNED)
    parts.write_part(storage, "v1", PLANNED, part_of(random_states(1, 3, seed=1)[1], 4))
    assert parts.read_part(storage, "v1", PLANNED) == first
    manifest.read_file(storage, "v1", first[0])


def test_versions_share_equal_parts(storage: Storage) -> None:
    for version in ("v1", "v2"):
        parts.write_part(storage, version, PLANNED, part_of(ITEMS, 4))
    first, second = (parts.read_part(storage, version, PLANNED) for version in ("v1", "v2"))
    assert first == second
    assert len(files(storage)) == 1

    storage.write(first[0].path, b"damaged")
    parts.write_part(storage, "v3", PLANNED, part_of(ITEMS, 4))
    manifest.read_file(storage, "v1", first[0])  # encoding it again has repaired it


def test_an_attempt_that_died_before_its_record_is_no_part(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: Storage, path: str, data: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "create", die)
    with pytest.raises(KeyboardInterrupt):
        parts.write_part(storage, "v1", PLANNED, part_of(ITEMS, 4))
    monkeypatch.undo()
    assert len(files(storage)) == 1
    assert parts.rows_written(storage, "v1") == set()
    parts.write_part(storage, "v1", PLANNED, part_of(ITEMS, 4))
    entry, _, _ = parts.read_part(storage, "v1", PLANNED)
    assert files(storage) == [entry.path]  # the same bytes have the same name


def test_rows_written_are_the_first_rows_of_recorded_parts(storage: Storage) -> None:
    assert parts.rows_written(storage, "v1") == set()
    encode(storage, "v1", [3, 2, 4])
    encode(storage, "v2", [1])
    assert parts.rows_written(storage, "v1") == {0, 3, 5}


MADE_FROM = {"run": "r", "weights": "abc", "num_shards": 2}


def test_encoding_of_the_same_goes_on(storage: Storage) -> None:
    parts.begin(storage, "v1", MADE_FROM)
    parts.begin(storage, "v1", MADE_FROM)
    parts.begin(storage, "v2", MADE_FROM | {"num_shards": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_shards": 3},
            "'v1' must keep the num_shards that it was begun with, 2, got 3: choose another --ver",
        ),
        ({"weights": "d", "num_shards": 3}, "must keep the weights that it was begun with, abc, got d"),
        ({"part_items": 9}, "must keep the part_items that it was begun with, None, got 9"),
    ],
)
def test_encoding_of_something_else_does_not_go_on(
    storage: Storage, change: dict[str, str | int], message: str
) -> None:
    parts.begin(storage, "v1", MADE_FROM)
    with pytest.raises(ValueError, match=message):
        parts.begin(storage, "v1", MADE_FROM | change)


def test_a_finished_version_is_known_as_such_and_nothing_else_takes_its_name(storage: Storage) -> None:
    parts.begin(storage, "v1", MADE_FROM)
    assert not parts.is_finished(storage, "v1")
    encode(storage, "v1", [2])
    parts.begin(storage, "v1", MADE_FROM)
    assert parts.is_finished(storage, "v1")
    with pytest.raises(ValueError, match="version 'v1' must keep"):
        parts.begin(storage, "v1", MADE_FROM | {"run": "another"})


@pytest.mark.parametrize("name", ["a/b", "../v", ".v", ""])
def test_names_that_cannot_be(storage: Storage, name: str) -> None:
    with pytest.raises(ValueError, match=f"version must be made of letters, digits, .*, got '{name}'"):
        parts.begin(storage, name, MADE_FROM)


def test_a_part_without_a_record(storage: Storage) -> None:
    with pytest.raises(DamagedError, match="version v1 must hold the part of item row 4, got none"):
        parts.read_part(storage, "v1", PLANNED)


def test_a_part_of_another_plan(storage: Storage) -> None:
    parts.write_part(storage, "v1", PLANNED, part_of(ITEMS, 4))
    with pytest.raises(
        DamagedError, match=r"000000000004\.json must name PlannedPart\(.*num_items=2\), got .*num_items=3"
    ):
        parts.read_part(storage, "v1", dataclasses.replace(PLANNED, num_items=2))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"{", r"000000000004\.json must be JSON"),
        (b"[]", r"must be a JSON object, got list"),
        (b"{}", "must be the record of a part, got: 'part'"),
        (
            json.dumps({"part": {"path": "x"}, "columns": {}}).encode(),
            "must be the record of a part, got: .*'size_bytes'",
        ),
        (
            json.dumps({"part": ENTRY, "columns": {}}).encode(),
            "must be the record of a part, got: 'state'",
        ),
    ],
)
def test_a_record_that_is_none(storage: Storage, record: bytes, message: str) -> None:
    storage.write(RECORD, record)
    with pytest.raises(DamagedError, match=message):
        parts.read_part(storage, "v1", PLANNED)


def test_parts_that_store_their_items_in_two_ways_are_no_version(storage: Storage) -> None:
    planned = parts.plan([3, 3], 3)
    for part, p_x in zip(planned, (3, 2), strict=True):
        items = random_states(1, 3, p_x=p_x)[1]
        parts.write_part(storage, "v1", part, part_of(items, part.first_row))
    message = r"all parts of version v1 must store their items alike, .* got .* for the part of item row 3: encode"
    with pytest.raises(DamagedError, match=message):
        parts.finish(storage, "v1", planned, run="r", query={}, files=[], cutoff_mass=None)
