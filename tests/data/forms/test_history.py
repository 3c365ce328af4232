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
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from support.data_folders import real_data, write_sequence_data
from support.history_tables import GOOD, write
from support.tried import tried


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
