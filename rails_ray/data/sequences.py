"""A data set of sequences: who interacted with what, in which order. Parquet tables in one folder.

    interactions.parquet   user_id, item_id (integer or string), position (integer: orders the interactions of a user)
    items.parquet          item_id (distinct), title (string; may be left out)
    users.parquet          user_id (distinct); the table may be left out

Further columns are ignored. The corpus is the items with an interaction, in the order of items.parquet. A user's
interactions with equal positions stay in the order of the table.

Leave-one-out: a user's last item is what "test" asks for after all others, the one before it what "valid" asks for
after those before it, and all before that is for training. Users with fewer than 3 interactions are for training only.

Source: RAILS, Section 5.1 (leave-one-out over the full corpus), of which the validation item is held out of training
as well, so that a run can stop early without a look at the test.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.dataset import DataSet, ItemLists, Queries
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import ID, INTEGER, TEXT, check_distinct, read_table, rows_of

HELD_OUT = {"train": 2, "valid": 1, "test": 0}  # last items of a user that a split must not see


@dataclass(frozen=True)
class SequenceData(DataSet):
    """
    user_ids: of all users with an interaction.
    histories: all that each of them interacted with, in time order.
    """

    user_ids: list[str] | list[int]
    histories: ItemLists


def read(storage: Storage) -> SequenceData:
    """Read and check the tables in a folder.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    file = f"{storage}/interactions.parquet"
    interactions = read_table(storage, "interactions.parquet", {"user_id": ID, "item_id": ID, "position": INTEGER})
    items = read_table(storage, "items.parquet", {"item_id": ID}, optional={"title": TEXT})
    check_distinct(items["item_id"], "item_id", f"{storage}/items.parquet")
    item_of = rows_of(interactions["item_id"], items["item_id"], "item_id", file, f"{storage}/items.parquet")
    known_users = pa.chunked_array([interactions["user_id"].unique()])
    if storage.exists("users.parquet"):
        users = read_table(storage, "users.parquet", {"user_id": ID})
        check_distinct(users["user_id"], "user_id", f"{storage}/users.parquet")
        known_users = users["user_id"]
    user_of = rows_of(interactions["user_id"], known_users, "user_id", file, f"{storage}/users.parquet")

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


def leave_one_out(histories: ItemLists, num_held_out: int, file: str) -> Queries:
    """What comes after a history, without its last `num_held_out` items.

    A training query is the last of a sequence all of whose items training may ask for. An item that a user comes back
    to is seen, and so a miss when it is what comes next: an answer never holds what was seen.

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
