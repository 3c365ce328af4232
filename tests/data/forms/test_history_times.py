"""Times of interactions: units, and the order of interactions of one time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.forms import history as history_form
from rails_ray.data.forms.history import HistoryForm
from rails_ray.data.sources import Sources
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.schema.times import UNKNOWN_TIME
from rails_ray.storage.filesystem import Storage
from support.examples import small_history_config
from support.history_tables import GOOD, write
from support.tried import tried


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
