"""A query is a history: what somebody interacted with, in time order. The data set is Parquet tables.

    interactions   user_id, item_id (integer or string), position (integer: orders the interactions of a user),
                   timestamp (a timestamp, a date, or a number whose unit shows by its size); one of the last two may
                   be left out; session_id in place of user_id makes each session a user; weight (number; may be left
                   out, and null is 1): what it counts in training to predict this interaction
    items          item_id (distinct), title (string; may be left out)
    users          user_id (distinct); the table may be left out

Further columns of items may be attributes; others are named in a note. Interactions of an unknown item or user are left
out, and counted. The corpus is the items with an interaction, in the order of their table. Positions order a user's
interactions; without them timestamps do. Ties, interactions of a user with equal positions or equal timestamps, stay in
the order of the table. Where there are both columns, timestamps may not go backwards.

Leave-one-out: "test" asks for a user's last item after all the others, "valid" for the item before it after all earlier
ones, and training gets the rest. Users with fewer than 3 interactions are for training only.

Source: RAILS, Section 5.1 (leave-one-out over the full corpus). The validation item is held out of training as well, so
that a run can stop early without a look at the test.
"""

import io
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus, ListedItems
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import SPLITS, ItemLists, Queries, UnknownQueryError, Visits
from rails_ray.data.sources import Sources
from rails_ray.data.times import MICROSECONDS, times_of
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.schema.fields import shortened
from rails_ray.schema.times import UNKNOWN_TIME
from rails_ray.storage.ids import ItemIds, keys_of
from rails_ray.storage.manifest import HISTORIES, ITEMS, POPULAR
from rails_ray.storage.parquet import read_plain, to_bytes
from rails_ray.storage.rows import Rows, check_distinct, find_rows
from rails_ray.storage.values import FILLED_TEXT, ID, INTEGER, REFERENCE, TIME, WEIGHT

HELD_OUT = {"train": 2, "valid": 1, "test": 0}  # last items of a user that a split must not see
MOST_POPULAR = 10_000  # items that a version stores as popular
SHORTEST_TESTED = 3  # interactions of a user of whom something is held out


@dataclass(frozen=True)
class SequenceData(DataSet):
    """
    user_ids: ids of all users with an interaction.
    histories: all that each of them interacted with, in time order.
    sorted_by: the column that orders them, "position" or "timestamp".
    sort_keys: its values, timestamps in microseconds, in the order of the histories' rows; None if they are not known.
    """

    user_ids: ItemIds
    histories: Visits
    sorted_by: str = field(default="position", kw_only=True)
    sort_keys: NDArray[np.int64] | None = field(default=None, kw_only=True)

    @property
    def are_tied(self) -> NDArray[np.bool_]:
        """True for each interaction that ties with the one before it in its history [M]."""
        tied = np.zeros(len(self.histories.rows), bool)
        if self.sort_keys is not None:
            tied[1:] = self.sort_keys[1:] == self.sort_keys[:-1]
            tied[self.histories.starts[:-1][self.histories.lengths > 0]] = False
        return tied

    @property
    def num_tied_tests(self) -> int:
        """How many users have a test item that the order of the table decides."""
        ends = self.histories.starts[1:][self.histories.lengths >= SHORTEST_TESTED] - 1
        return int(self.are_tied[ends].sum())


class HistoryForm:
    """The contract of `QueryForm`."""

    fields: tuple[str, ...] = ("history", "user_id")
    tables = "items and interactions"
    packaged = None

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> SequenceData:
        table = _interactions(sources)
        items = sources.read("items", {"item_id": ID}, {"title": FILLED_TEXT})
        check_distinct(items, "item_id")
        users = pa.chunked_array([table["user_id"].unique().drop_null()])
        known = Rows(pa.table({"user_id": users}), table.files[:1], (len(users),))
        if sources.has("users"):
            known = sources.read("users", {"user_id": ID})
            check_distinct(known, "user_id")
        is_kept, (item_of, user_of) = sources.references("interactions", table, {"item_id": items, "user_id": known})
        interactions = table.table.filter(pa.array(is_kept))

        is_corpus = np.bincount(item_of, minlength=len(items)) > 0
        is_active = np.bincount(user_of, minlength=len(known)) > 0
        item_of, user_of = (np.cumsum(is_corpus) - 1)[item_of], (np.cumsum(is_active) - 1)[user_of]
        times = times_of(sources, table, interactions)
        sorted_by = "position" if times is None or "position" in table else "timestamp"
        keys = interactions["position"].to_numpy() if times is None or sorted_by == "position" else times
        order = np.lexsort((keys, user_of))  # stable
        starts = np.concatenate([[0], np.cumsum(np.bincount(user_of, minlength=int(is_active.sum())))])
        if times is not None:
            times = times[order] // MICROSECONDS
            _check_times(starts, times, table.name)
        user_ids = known["user_id"].filter(pa.array(is_active))
        weights = sources.weights("interactions", table)
        weights = None if weights is None else weights[is_kept][order]
        histories = Visits(starts, item_of[order], times, _numbers_of(user_ids), weights=weights)
        corpus = items.table.filter(pa.array(is_corpus))
        read = SequenceData(
            ItemIds(corpus["item_id"]),
            np.arange(corpus.num_rows),
            leave_each_out(histories, table.name),
            ItemIds(user_ids),
            histories,
            titles=Texts(corpus["title"]) if "title" in corpus.column_names else None,
            sorted_by=sorted_by,
            sort_keys=keys[order],
        )
        _note_ties(sources, read)
        return read

    def corpus(self, sources: Sources) -> Corpus:
        """The histories are stored beside the items, for queries that name a user."""
        read = self.read(sources)
        item_ids, histories = read.item_ids.column, histories_table(read)
        query = {"history": id_type(item_ids), "user_id": id_type(histories["user_id"])}
        tables = {ITEMS: pa.table({"item_id": item_ids}), HISTORIES: histories, POPULAR: popular_table(read)}
        files = {name: to_bytes(table) for name, table in tables.items()}
        columns = {"item_id": item_ids, "input": pa.array(read.item_inputs)}
        columns |= {} if read.titles is None else {"title": read.titles.column}
        attributes = _attributes(sources, item_ids)
        return Corpus(ListedItems(pa.table(columns | attributes), tuple(attributes)), query, files)

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "HistoryReader":
        items, histories = (read_plain(io.BytesIO(read_file(name))) for name in (ITEMS, HISTORIES))
        return HistoryReader(ItemIds(items["item_id"]), *histories_of(histories))


class HistoryReader:
    """The contract of `QueryReader`: item rows by item id, and the history of each user."""

    def __init__(self, item_ids: ItemIds, user_ids: ItemIds, histories: Visits) -> None:
        self.item_ids = item_ids.prepare()
        self.user_ids = user_ids.prepare()
        self.histories = histories

    def read(self, query: dict[str, Any], where: str) -> Visits:
        """A query's history, as the only one of its list.

        Raises:
            UnknownQueryError: if the user is not known, or no item of the history is.
            ValueError: if its timestamps do not fit.
        """
        user_id = query.get("user_id")
        if user_id is not None:
            [number] = self.user_ids.rows([user_id])
            if number < 0:
                raise UnknownQueryError(
                    f"{where}.user_id must be a user that the index knows, got {shortened(user_id)}"
                )
            return self.histories.take(np.array([number]))
        if not query["history"]:
            raise UnknownQueryError(f"{where}.history must have a length of at least 1, got []")
        times = query.get("timestamps")
        if times is not None:
            _check_asked_times(times, query["history"], where)
        rows = self.item_ids.rows(query["history"])
        if not (rows >= 0).any():
            given = shortened(query["history"])
            raise UnknownQueryError(f"{where}.history must hold an item that the index knows, got {given}")
        return Visits.one(rows.tolist(), times).without(-1)

    def seen(self, read: Visits) -> list[ItemId]:
        return self.item_ids.take(read.rows)

    def batch(self, read: list[Visits]) -> Visits:
        return Visits.joined(read)

    def batch_of(self, vectors: NDArray[np.float32]) -> None:
        """The contract of `QueryReader`: there are none."""

    def example(self) -> dict[str, Any]:
        return {"history": [self.item_ids[0]]}


def _attributes(sources: Sources, item_ids: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """The attributes of a corpus, which may lack some items of their table."""
    columns = sources.attribute_columns()
    if not columns:
        return {}
    items = sources.read("items", {"item_id": ID}, columns)
    corpus = Rows(pa.table({"item_id": item_ids}), items.files[:1], (len(item_ids),))
    rows = pa.array(find_rows(corpus, items, "item_id"))
    return {name: items[name].take(rows) for name in columns}


def id_type(ids: pa.ChunkedArray) -> str:
    """The type of ids as a manifest names it."""
    return str(ids.type).removeprefix("large_")


def leave_each_out(histories: Visits, file: str) -> dict[str, Queries]:
    """The queries of each split. Arguments as of `leave_one_out`."""
    return {split: leave_one_out(histories, held_out, file) for split, held_out in HELD_OUT.items()}


def leave_one_out(histories: Visits, num_held_out: int, file: str) -> Queries:
    """Queries for the last item of each history, less its last `num_held_out` items.

    Training may ask for every item of a sequence; the query given here is its last. If a user comes back to an item,
    that item counts as a miss unless answers may hold what was seen (`Queries.exclude_seen`).

    Args:
        file: where the interactions came from, for messages.

    Raises:
        ValueError: if no user has enough interactions.
    """
    lengths = histories.lengths - num_held_out
    if num_held_out == HELD_OUT["train"]:
        lengths = np.where(
            histories.lengths < SHORTEST_TESTED, histories.lengths, lengths
        )  # too short to hold anything out
        users = np.flatnonzero(lengths >= 2)
    else:
        users = np.flatnonzero(histories.lengths >= SHORTEST_TESTED)
    if not len(users):
        what = "2 or at least 4 interactions" if num_held_out == HELD_OUT["train"] else "at least 3 interactions"
        raise ValueError(
            f"{file} must hold a user with {what}, got {histories.lengths.max(initial=0)} in the longest history: "
            "valid and test take the last 2 of a history of 3 or more; add interactions"
        )
    ends = histories.starts[:-1][users] + lengths[users] - 1
    inputs = histories.between(users, histories.starts[:-1][users], ends)
    weights = None if histories.weights is None else histories.weights[ends]
    relevant = ItemLists(np.arange(len(users) + 1), histories.rows[ends], weights=weights)
    return Queries(inputs, relevant, seen=inputs)


def histories_table(read: SequenceData) -> pa.Table:
    """The histories as a table of user_id, item_rows and, if they are known, times, for queries by user id."""
    starts, histories = pa.array(read.histories.starts, pa.int32()), read.histories
    columns = {"user_id": read.user_ids.column, "item_rows": pa.array(histories.rows)}
    if histories.times is not None:
        columns["times"] = pa.array(histories.times)
    lists = {name: pa.ListArray.from_arrays(starts, columns[name]) for name in columns if name != "user_id"}
    return pa.table({**columns, **lists})


def popular_table(read: SequenceData) -> pa.Table:
    """The most popular items, first by their interactions and then by their rows: item_id, share of all interactions,
    and title if there are titles."""
    counts = np.bincount(read.histories.rows, minlength=len(read.item_ids))
    rows = pa.array(np.argsort(-counts, kind="stable")[:MOST_POPULAR])
    columns = {"item_id": read.item_ids.column, "share": pa.array(counts / counts.sum())}
    return pa.table(columns if read.titles is None else {**columns, "title": read.titles.column}).take(rows)


def histories_of(table: pa.Table) -> tuple[ItemIds, Visits]:
    """User ids and histories of such a table, with `UNKNOWN_TIME` for times that it lacks."""
    item_rows = table["item_rows"].combine_chunks()
    starts = np.concatenate([[0], np.cumsum(item_rows.value_lengths().to_numpy())])
    rows, times = item_rows.flatten().to_numpy(), np.full(starts[-1], UNKNOWN_TIME)
    if "times" in table.column_names:
        times = table["times"].combine_chunks().flatten().to_numpy()
    return ItemIds(table["user_id"]), Visits(starts, rows, times, _numbers_of(table["user_id"]))


def _interactions(sources: Sources) -> Rows:
    """The table, which needs positions, timestamps, or both."""
    ids = {"user_id": REFERENCE, "item_id": REFERENCE}
    if "timestamp" not in sources.open("interactions"):
        return sources.read("interactions", {**ids, "position": INTEGER}, {"weight": WEIGHT})
    return sources.read("interactions", {**ids, "timestamp": TIME}, {"position": INTEGER, "weight": WEIGHT})


def _note_ties(sources: Sources, read: SequenceData) -> None:
    """Take down for how many users the order of the table decides which item the test asks for."""
    if read.num_tied_tests:
        mend = "a column 'position' can say" if read.sorted_by == "timestamp" else "positions that differ can say"
        sources.note(
            f"interactions: the last two of {read.num_tied_tests:,} of {len(read.queries['test']):,} users have one "
            f"{read.sorted_by}, so that the order of the rows decides which of the two is the test item: {mend}"
        )


def _numbers_of(ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """A number of each user, at least 0, by the id alone."""
    numbers: NDArray[np.int64] = keys_of(ids).astype(np.int64) & np.int64(2**63 - 1)
    return numbers


def _check_times(starts: NDArray[np.int64], times: NDArray[np.int64], file: str) -> None:
    is_first = np.zeros(len(times) + 1, bool)
    is_first[starts] = True
    backwards = np.flatnonzero((times[1:] < times[:-1]) & ~is_first[1:-1])
    if len(backwards):
        before, after = times[backwards[0]], times[backwards[0] + 1]
        raise ValueError(
            f"column 'timestamp' of {file} must not go backwards along a user's positions, got {after} after {before}: "
            "leave out column 'position', or mend one of the two"
        )


def _check_asked_times(times: list[int], history: list[Any], where: str) -> None:
    if len(times) != len(history):
        raise ValueError(
            f"{where}.timestamps must have one for each of the {len(history)} items of history, got {len(times)}"
        )
    for before, after in pairwise(times):
        if after < before:
            raise ValueError(f"{where}.timestamps must not go backwards, got {after} after {before}")
