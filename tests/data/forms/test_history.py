from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles.data
from rails_ray.data.forms import history as history_form
from rails_ray.data.forms.history import HistoryForm, SequenceData
from rails_ray.data.queries import Visits
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.schema.times import UNKNOWN_TIME
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from support.data_folders import real_data, write_sequence_data
from support.examples import small_history_config
from support.tried import tried


def write(storage: Storage, **tables: dict[str, Any]) -> None:
    for name, columns in tables.items():
        storage.write(f"{name}.parquet", parquet.to_bytes(pa.table(columns)))


def history_ids(data: SequenceData) -> dict[Any, list[Any]]:
    return {
        user: [data.item_ids[row] for row in rows] for user, rows in zip(data.user_ids, data.histories, strict=True)
    }


@tried(40)
@given(st.data())
def test_reading_equals_the_loops(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Users 0 to 6 and items 0 to 5, some without any interaction; user 6 has at least four."""
    named = data.draw(st.sampled_from([lambda number: number * 7, lambda number: f"id-{number}"]))
    interaction = st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 3))
    interactions = data.draw(st.permutations([*data.draw(st.lists(interaction, max_size=25)), *[(6, 2, 1)] * 4]))
    interactions = [(named(user), named(item), position) for user, item, position in interactions]
    items = [named(item) for item in data.draw(st.permutations(range(6)))]
    users = data.draw(st.none() | st.permutations(range(8)))
    storage = Storage(str(tmp_path_factory.mktemp("sequences")))
    columns = zip(*interactions, strict=True)
    write(
        storage,
        interactions=dict(zip(("user_id", "item_id", "position"), map(list, columns), strict=True)),
        items={"item_id": items, "title": [f"Title of {item}" for item in items]},
        **({} if users is None else {"users": {"user_id": [named(user) for user in users], "age": [1] * 8}}),
    )

    read = HistoryForm().read(Sources(str(storage)))
    expected = oracles.data.histories(interactions)
    order = dict.fromkeys(user for user, _, _ in interactions) if users is None else map(named, users)
    assert read.user_ids == [user for user in order if user in expected]
    assert history_ids(read) == expected
    assert read.item_ids == [item for item in items if any(item in history for history in expected.values())]
    assert read.item_inputs.tolist() == list(range(len(read.item_ids)))
    assert read.titles == [f"Title of {item}" for item in read.item_ids]
    for split, queries in read.queries.items():
        asked = [oracles.data.leave_one_out(expected[user]).get(split) for user in read.user_ids]
        expected_pairs = [([*before], item) for before, item in filter(None, asked)]
        pairs = zip(queries.inputs, queries.relevant, strict=True)
        named_pairs = [([read.item_ids[row] for row in before], read.item_ids[row]) for before, (row,) in pairs]
        assert named_pairs == expected_pairs
        assert list(map(list, queries.seen)) == list(map(list, queries.inputs))


def test_an_item_is_held_out_of_training_and_of_validation() -> None:
    histories = Visits.of([[4, 5, 6, 7], [1, 2, 3], [8, 9], [0]])
    asked = {
        split: [([*before], row) for before, (row,) in zip(queries.inputs, queries.relevant, strict=True)]
        for split, held_out in history_form.HELD_OUT.items()
        for queries in [history_form.leave_one_out(histories, held_out, "here")]
    }
    assert asked == {
        "train": [([4], 5), ([8], 9)],
        "valid": [([4, 5], 6), ([1], 2)],
        "test": [([4, 5, 6], 7), ([1, 2], 3)],
    }


def test_tables_may_lack_titles_and_hold_other_columns(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    write(
        storage,
        interactions={"user_id": [1] * 4, "item_id": [5] * 4, "position": [1, 2, 3, 4], "stars": [5.0] * 4},
        items={"item_id": [5]},
    )
    assert HistoryForm().read(Sources(str(storage))).titles is None


@pytest.mark.parametrize("user_ids", [["a", "b", "c"], [7, 8, 9]])
def test_histories_come_back_from_their_table(user_ids: list[Any], tmp_path: Path) -> None:
    histories = Visits.of([[0, 1, 1], [2], [0, 2]])
    data = SequenceData(ItemIds([1, 2, 3]), np.arange(3), {}, ItemIds(user_ids), histories)
    path = tmp_path / "histories.parquet"
    path.write_bytes(parquet.to_bytes(history_form.histories_table(data)))
    back_ids, back = history_form.histories_of(pq.read_table(path))
    assert back_ids == user_ids
    assert list(map(list, back)) == list(map(list, histories))
    _, some = history_form.histories_of(pq.read_table(path).slice(1, 2))
    assert list(map(list, some)) == [[2], [0, 2]]


GOOD = {
    "interactions": {
        "user_id": ["a", "a", "a", "a", "b"],
        "item_id": [10, 11, 12, 10, 13],
        "position": [0, 1, 2, 3, 0],
    },
    "items": {"item_id": [10, 11, 12, 13], "title": ["w", "x", "y", "z"]},
    "users": {"user_id": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        (
            "interactions",
            {"position": None},
            r"/interactions\.parquet must have a column 'position', got user_id, item",
        ),
        ("items", {"item_id": None}, r"/items\.parquet must have a column 'item_id', got title"),
        ("users", {"user_id": None, "id": [1]}, r"/users\.parquet must have a column 'user_id', got id"),
        (
            "interactions",
            {"position": ["0", "1", "2", "3", "0"]},
            r"column 'position' of .*/interactions\.parquet must be of type integer, got string",
        ),
        (
            "items",
            {"item_id": [10.0, 11.5, 12.0, 13.0]},
            r"column 'item_id' of .*/items\.parquet must hold whole numbers, .*, got 11\.5 in row 1",
        ),
        (
            "items",
            {"title": [1, 2, 3, 4]},
            r"column 'title' of .*/items\.parquet must be of type string, got int64",
        ),
        (
            "interactions",
            {"user_id": ["a", "a", None, "a", "b"]},
            r"column 'user_id' of .*/interactions\.parquet must hold ids of .*, got None in row 2 "
            r"\(1 of 5 rows are wrong\): mend the ids, or leave such rows out with --data\.max-dropped 0\.2",
        ),
        (
            "items",
            {"item_id": [10, 11, 12, 11]},
            r"column 'item_id' of .*/items\.parquet must hold distinct ids, got 11 again in row 3",
        ),
        (
            "users",
            {"user_id": ["b", "b"]},
            r"column 'user_id' of .*/users\.parquet must hold distinct ids, got 'b' again in row 1",
        ),
        (
            "items",
            {"item_id": [10, 99, 12, 13]},
            r"column 'item_id' of .*/interactions\.parquet must hold ids of .*/items\.parquet, got 11 in row 1",
        ),
        (
            "items",
            {"item_id": ["010", "011", "012", "013"]},
            r"column 'item_id' of .*/interactions\.parquet must hold ids of .*/items\.parquet, got 10 in row 0",
        ),
        (
            "interactions",
            {"item_id": [10, 11, 2**32 + 12, 10, 13]},
            r"column 'item_id' of .*/interactions\.parquet must hold ids of .*/items\.parquet, got 4294967308 in row 2",
        ),
        (
            "users",
            {"user_id": ["a", "c"]},
            r"column 'user_id' of .*/interactions\.parquet must hold ids of .*/users\.parquet, got 'b' in row 4",
        ),
        (
            "interactions",
            {"user_id": ["a", "a", "a", "b"], "item_id": [10, 11, 12, 10], "position": [0, 0, 0, 0]},
            r"/interactions\.parquet must hold a user with 2 or at least 4 interactions, got 3 in the longest history",
        ),
        (
            "interactions",
            {"user_id": ["a", "a", "b", "b"], "item_id": [10, 11, 12, 10], "position": [0, 0, 0, 0]},
            r"/interactions\.parquet must hold a user with at least 3 interactions, got 2 in the longest ",
        ),
        (
            "interactions",
            {"user_id": [], "item_id": [], "position": []},
            r"interactions\.parquet must hold at least 1 row, got an empty table",
        ),
        ("items", {"item_id": pa.array([], pa.int32()), "title": pa.array([], pa.string())}, r"at least 1 row, got an"),
    ],
)
def test_a_table_that_breaks_the_contract(tmp_path: Path, table: str, change: dict[str, Any], message: str) -> None:
    storage = Storage(str(tmp_path))
    columns = {name: values for name, values in (GOOD[table] | change).items() if values is not None}
    if table == "interactions" and len(columns.get("item_id", [])):  # ids of a narrow type beside those of a wide one
        write(storage, **GOOD | {"items": {"item_id": pa.array([10, 11, 12, 13], pa.int32())}, table: columns})
    else:
        write(storage, **GOOD | {table: columns})
    with pytest.raises(ValueError, match=message):
        HistoryForm().read(Sources(str(storage)))


@pytest.mark.parametrize("name", ["interactions", "items"])
def test_a_table_is_missing(tmp_path: Path, name: str) -> None:
    folder = write_sequence_data(tmp_path)
    (folder / f"{name}.parquet").unlink()
    with pytest.raises(NotFoundError, match=rf"{name}\.parquet must exist, got no such file"):
        HistoryForm().read(Sources(str(folder)))


@pytest.mark.parametrize(
    ("name", "num_users", "num_items", "num_interactions"),
    [("ml-1m", 6_040, 3_706, 1_000_209), ("amazon-beauty", 22_363, 12_101, 198_502)],
)
def test_real_sequences(name: str, num_users: int, num_items: int, num_interactions: int) -> None:
    data = HistoryForm().read(Sources(str(real_data(name))))
    assert (len(data.user_ids), len(data.item_ids)) == (num_users, num_items)
    assert data.histories.lengths.sum() == num_interactions
    assert [len(data.queries[split]) for split in ("train", "valid", "test")] == [num_users] * 3  # all are long enough


def reader_of(storage: Storage) -> history_form.HistoryReader:
    form, model = HistoryForm(), DualEncoderTraining.of(small_history_config()).model()
    return form.reader(model, form.corpus(Sources(str(storage))).files.__getitem__)


def test_timestamps_order_interactions_and_come_along(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    interactions = {
        "user_id": [1, 2, 1, 1, 2, 2, 1],
        "item_id": [5, 7, 6, 5, 5, 6, 7],
        "timestamp": [30, 8, 10, 20, 9, 9, 40],
    }
    write(storage, interactions=interactions, items={"item_id": [5, 6, 7]})
    read = HistoryForm().read(Sources(str(storage)))
    assert list(map(list, read.histories)) == [[1, 0, 0, 2], [2, 0, 1]]
    assert read.histories.times.tolist() == [10, 20, 30, 40, 8, 9, 9]
    test = read.queries["test"].inputs
    assert test.rows.tolist() == [1, 0, 0, 2, 0]
    assert (test.times.tolist(), test.users.tolist()) == ([10, 20, 30, 8, 9], [1, 2])
    reader = reader_of(storage)
    by_user = reader.read({"user_id": 2}, "query")
    assert (by_user.times.tolist(), by_user.users.tolist()) == ([8, 9, 9], [2])
    asked = reader.read({"history": [5, 99, 6], "timestamps": [3, 4, 5]}, "query")
    assert (asked.rows.tolist(), asked.times.tolist(), asked.users.tolist()) == ([0, 1], [3, 5], [-1])
    both = reader.batch([asked, reader.read({"history": [6]}, "query"), by_user])
    assert both.times.tolist() == [3, 5, UNKNOWN_TIME, 8, 9, 9]
    assert both.users.tolist() == [-1, -1, 2]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([3], r"query\.timestamps must have one for each of the 2 items of history, got 1"),
        ([4, 3], r"query\.timestamps must not go backwards, got 3 after 4"),
    ],
)
def test_timestamps_of_a_request_that_do_not_fit(times: list[int], message: str, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    write(storage, interactions=GOOD["interactions"], items=GOOD["items"])
    with pytest.raises(ValueError, match=message):
        reader_of(storage).read({"history": [10, 11], "timestamps": times}, "query")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            [1, 5, 4, 9, 0],
            r"column 'timestamp' of .* must not go backwards along a user's positions, got 4 after 5: leave out column",
        ),
        (
            [1_700_000_000, 1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003],
            r"column 'timestamp' of .* must hold times of one unit, got 1\.7e\+09 and 1\.7e\+12, by their s",
        ),
    ],
)
def test_timestamps_that_do_not_fit_positions(times: list[int], message: str, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    write(storage, interactions={**GOOD["interactions"], "timestamp": times}, items=GOOD["items"])
    with pytest.raises(ValueError, match=message):
        HistoryForm().read(Sources(str(storage)))


SECONDS = [-86_400, 1_700_000_000, 1_700_000_060, 4_102_444_800, 0]  # before 1970, and after 2038


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (SECONDS, None),
        ([float(own) for own in SECONDS], None),
        ([own * 10**3 for own in SECONDS], "milliseconds"),
        ([own * 10**6 for own in SECONDS], "microseconds"),
        ([own * 10**9 for own in SECONDS], "nanoseconds"),
        (pa.array(SECONDS, pa.timestamp("s", "Asia/Tokyo")), None),
        (pa.array([own * 10**9 for own in SECONDS], pa.timestamp("ns")), None),
        (["1969-12-31", "2023-11-14T22:13:20Z", "2023-11-14T23:14:20+01:00", "2100-01-01", "1970-01-01"], None),
    ],
)
def test_times_of_any_type_are_seconds(times: Any, unit: str | None, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    write(storage, interactions={**GOOD["interactions"], "timestamp": times}, items=GOOD["items"])
    sources = Sources(str(storage))
    assert HistoryForm().read(sources).histories.times.tolist() == SECONDS
    assert sources.notes == (
        [] if unit is None else [f"interactions: column 'timestamp' is read as {unit}, by its size"]
    )


def test_parts_of_a_second_order_interactions(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    interactions = {"user_id": ["a"] * 4, "item_id": [10, 11, 12, 13], "timestamp": [5.75, 5.25, 5.5, 5.875]}
    write(storage, interactions=interactions, items=GOOD["items"])
    read = HistoryForm().read(Sources(str(storage)))
    assert read.item_ids.take(read.histories.rows) == [11, 12, 10, 13]
    assert read.histories.times.tolist() == [5, 5, 5, 5]


def test_interactions_of_unknown_items_are_left_out_and_counted(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    interactions = {name: [*values, *values[:4]] for name, values in GOOD["interactions"].items()}
    interactions["item_id"][1] = 99
    write(storage, **GOOD | {"interactions": interactions})
    sources = Sources(str(storage), max_dropped=0.2)
    read = HistoryForm().read(sources)
    assert len(read.histories.rows) == 8
    assert sources.notes[0] == (
        f"interactions: 1 of 9 rows left out, as item_id is not in {storage}/items.parquet: 99 in row 1 of "
        f"{storage}/interactions.parquet"
    )


def test_ties_that_the_order_of_rows_decides_are_counted(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    interactions = {"user_id": [*"aaaabbbb"], "item_id": [10, 11, 12, 13] * 2, "timestamp": [1, 2, 3, 3, 1, 1, 1, 2]}
    write(storage, interactions=interactions, items=GOOD["items"])
    sources = Sources(str(storage))
    HistoryForm().read(sources)
    [note] = sources.notes
    assert note == (
        "interactions: the last two of 1 of 2 users have one timestamp, so that the order of the rows decides "
        "which of the two is the test item: a column 'position' can say"
    )
    interactions["position"] = interactions.pop("timestamp")
    write(storage, interactions=interactions)
    sources = Sources(str(storage))
    HistoryForm().read(sources)
    [note] = sources.notes
    assert "1 of 2 users have one position, so" in note
    assert note.endswith(": positions that differ can say")


def test_ties_between_files_go_by_the_names_of_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "interactions"
    folder.mkdir()
    for name, rows in (("b", [12, 13]), ("a", [10, 11])):
        table = {"user_id": ["a"] * 2, "item_id": rows, "timestamp": [7, 7]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    pq.write_table(pa.table(GOOD["items"]), tmp_path / "items.parquet")
    read = HistoryForm().read(Sources(str(tmp_path)))
    assert read.item_ids.take(read.histories.rows) == [10, 11, 12, 13]
    assert read.num_tied_tests == 1


@pytest.mark.parametrize(("largest", "is_said"), [(10**11, False), (10**11 + 1, True)])
def test_numbers_above_1e11_are_milliseconds(largest: int, is_said: bool, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    times = [largest - own for own in (3, 2, 1, 0, 0)]
    write(storage, interactions={**GOOD["interactions"], "timestamp": times}, items=GOOD["items"])
    sources = Sources(str(storage))
    read = HistoryForm().read(sources)
    assert ("interactions: column 'timestamp' is read as milliseconds, by its size" in sources.notes) == is_said
    assert read.histories.times.max() == (largest // 1000 if is_said else largest)


@tried(40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=20))
def test_ties_equal_the_loops(tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int]]) -> None:
    """Users 0 to 4 with times 0 to 2; user 4 has at least four interactions."""
    drawn = [*drawn, *[(4, 1)] * 4]
    storage = Storage(str(tmp_path_factory.mktemp("ties")))
    users, times = map(list, zip(*drawn, strict=True))
    columns = {"user_id": users, "item_id": [10] * len(users), "timestamp": times}
    write(storage, interactions=columns, items={"item_id": [10]})
    read = HistoryForm().read(Sources(str(storage)))
    times_of = {user: sorted(time for own, time in drawn if own == user) for user in dict.fromkeys(users)}
    expected = [[False, *(after == before for before, after in pairwise(own))] for own in times_of.values()]
    assert read.are_tied.tolist() == [tied for own in expected for tied in own]
    assert read.num_tied_tests == sum(own[-1] for own in expected if len(own) >= 3)
    assert read.sorted_by == "timestamp"
