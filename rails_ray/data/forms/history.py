"""A query is a history: what somebody interacted with, in time order. The data set is Parquet tables in one folder.

    interactions.parquet   user_id, item_id (integer or string), position (integer: orders the interactions of a user)
    items.parquet          item_id (distinct), title (string; may be left out)
    users.parquet          user_id (distinct); the table may be left out

Further columns are ignored. The corpus is the items with an interaction, in the order of items.parquet. A user's
interactions with equal positions stay in the order of the table.

Leave-one-out: "test" asks for a user's last item after all the others, "valid" for the item before it after all earlier
ones, and training gets the rest. Users with fewer than 3 interactions are for training only.

Source: RAILS, Section 5.1 (leave-one-out over the full corpus). The validation item is held out of training as well, so
that a run can stop early without a look at the test.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet, ItemLists, Queries
from rails_ray.data.forms.fields import FieldDefinition, IdField, shortened
from rails_ray.item_ids import ItemId
from rails_ray.models import Model
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import HISTORIES, ITEMS
from rails_ray.storage.parquet import ID, INTEGER, TEXT, check_distinct, read_table, rows_of, to_bytes

HELD_OUT = {"train": 2, "valid": 1, "test": 0}  # last items of a user that a split must not see


@dataclass(frozen=True)
class SequenceData(DataSet):
    """
    user_ids: ids of all users with an interaction.
    histories: all that each of them interacted with, in time order.
    """

    user_ids: list[str] | list[int]
    histories: ItemLists


class HistoryForm:
    """The contract of `QueryForm`."""

    fields: Mapping[str, FieldDefinition] = {
        "history": (
            Annotated[list[IdField], Field(min_length=1, max_length=10_000, fail_fast=True)] | None,
            Field(None, description="Items in time order; ids that the index does not know are ignored."),
        ),
        "user_id": (IdField | None, Field(None, description="A user whose history the index holds.")),
    }
    tables = "items.parquet and interactions.parquet"
    packaged = None

    def read(self, folder: Storage) -> SequenceData:
        file = f"{folder}/interactions.parquet"
        interactions = read_table(folder, "interactions.parquet", {"user_id": ID, "item_id": ID, "position": INTEGER})
        items = read_table(folder, "items.parquet", {"item_id": ID}, optional={"title": TEXT})
        check_distinct(items["item_id"], "item_id", f"{folder}/items.parquet")
        item_of = rows_of(interactions["item_id"], items["item_id"], "item_id", file, f"{folder}/items.parquet")
        known_users = pa.chunked_array([interactions["user_id"].unique()])
        if folder.exists("users.parquet"):
            users = read_table(folder, "users.parquet", {"user_id": ID})
            check_distinct(users["user_id"], "user_id", f"{folder}/users.parquet")
            known_users = users["user_id"]
        user_of = rows_of(interactions["user_id"], known_users, "user_id", file, f"{folder}/users.parquet")

        is_corpus = np.bincount(item_of, minlength=items.num_rows) > 0
        is_active = np.bincount(user_of, minlength=len(known_users)) > 0
        item_of, user_of = (np.cumsum(is_corpus) - 1)[item_of], (np.cumsum(is_active) - 1)[user_of]
        order = np.lexsort((interactions["position"].to_numpy(), user_of))  # stable
        starts = np.concatenate([[0], np.cumsum(np.bincount(user_of, minlength=int(is_active.sum())))])
        histories = ItemLists(starts, item_of[order])
        corpus = items.filter(pa.array(is_corpus))
        return SequenceData(
            corpus["item_id"].to_pylist(),
            np.arange(corpus.num_rows),
            {split: leave_one_out(histories, held_out, file) for split, held_out in HELD_OUT.items()},
            np.array(known_users.to_pylist(), dtype=object)[is_active].tolist(),
            histories,
            titles=corpus["title"].to_pylist() if "title" in corpus.column_names else None,
        )

    def corpus(self, folder: Storage) -> Corpus:
        """The histories are stored beside the items, for queries that name a user."""
        read = self.read(folder)
        item_ids, histories = pa.array(read.item_ids), histories_table(read)
        query = {"history": str(item_ids.type), "user_id": str(histories["user_id"].type)}
        files = {ITEMS: to_bytes(pa.table({"item_id": item_ids})), HISTORIES: to_bytes(histories)}
        titles = None if read.titles is None else pa.array(read.titles)
        return Corpus.of(item_ids, pa.array(read.item_inputs), titles, query, files)

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "HistoryReader":
        items, histories = (pq.read_table(io.BytesIO(read_file(name))) for name in (ITEMS, HISTORIES))
        return HistoryReader(items["item_id"].to_pylist(), *histories_of(histories))


class HistoryReader:
    """The contract of `QueryReader`: item rows by item id, and the history of each user."""

    def __init__(self, item_ids: Sequence[ItemId], user_ids: Sequence[ItemId], histories: ItemLists) -> None:
        self.item_ids = item_ids
        self.rows = {item_id: row for row, item_id in enumerate(item_ids)}
        self.users = {user_id: number for number, user_id in enumerate(user_ids)}
        self.histories = histories

    def read(self, query: dict[str, Any], where: str) -> list[int]:
        """The item rows of a query's history.

        Raises:
            ValueError: if the user is not known, or no item of the history is.
        """
        user_id = query.get("user_id")
        if user_id is not None:
            if user_id not in self.users:
                raise ValueError(f"{where}.user_id must be a user that the index knows, got {shortened(user_id)}")
            rows: list[int] = self.histories[self.users[user_id]].tolist()
            return rows
        rows = [self.rows[item_id] for item_id in query["history"] if item_id in self.rows]
        if not rows:
            came = shortened(query["history"])
            raise ValueError(f"{where}.history must hold an item that the index knows, got {came}")
        return rows

    def seen(self, read: list[int]) -> list[ItemId]:
        return [self.item_ids[row] for row in read]

    def batch(self, read: list[list[int]]) -> ItemLists:
        return ItemLists.of(read)

    def example(self) -> dict[str, Any]:
        return {"history": list(self.item_ids[:1])}


def leave_one_out(histories: ItemLists, num_held_out: int, file: str) -> Queries:
    """Queries for the last item of each history, less its last `num_held_out` items.

    Training may ask for every item of a sequence; the query given here is its last. If a user comes back to an item,
    that item counts as a miss: an answer never holds what was seen.

    Args:
        file: where the interactions came from, for messages.
    """
    lengths = histories.lengths - num_held_out
    if num_held_out == HELD_OUT["train"]:
        lengths = np.where(histories.lengths < 3, histories.lengths, lengths)  # too short to hold anything out
        users = np.flatnonzero(lengths >= 2)
    else:
        users = np.flatnonzero(histories.lengths >= 3)
    if not len(users):
        what = "2 interactions to train on" if num_held_out == HELD_OUT["train"] else "at least 3 interactions"
        raise ValueError(f"{file} must hold a user with {what}, got none")
    ends = histories.starts[:-1][users] + lengths[users] - 1
    inputs = _between(histories, histories.starts[:-1][users], ends)
    relevant = ItemLists(np.arange(len(users) + 1), histories.rows[ends])
    return Queries(inputs, relevant, seen=inputs)


def _between(histories: ItemLists, first: NDArray[np.int64], end: NDArray[np.int64]) -> ItemLists:
    lengths = end - first
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return ItemLists(
        starts, histories.rows[np.repeat(first, lengths) + np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)]
    )


def histories_table(read: SequenceData) -> pa.Table:
    """The histories as a table of user_id and item_rows, for a query encoder that is asked by user id."""
    item_rows = pa.ListArray.from_arrays(pa.array(read.histories.starts, pa.int32()), pa.array(read.histories.rows))
    return pa.table({"user_id": pa.array(read.user_ids), "item_rows": item_rows})


def histories_of(table: pa.Table) -> tuple[list[str] | list[int], ItemLists]:
    """User ids and histories of such a table."""
    item_rows = table["item_rows"].combine_chunks()
    starts = np.concatenate([[0], np.cumsum(item_rows.value_lengths().to_numpy())])
    return table["user_id"].to_pylist(), ItemLists(starts, item_rows.flatten().to_numpy())
