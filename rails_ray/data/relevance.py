"""Queries by split with the items that answer them, from tables: what data sets of any kind of query share.

    queries     query_id (integer or string, distinct), split ("train", "valid" or "test"), and what is asked
    relevance   query_id, item_id: this item answers this query; weight (number; may be left out, and null is 1): what
                the pair counts in training

A pair that is named twice counts once, by the larger of its weights. A split may also be "validation", "val" or "dev",
for "valid", in any case. Rows of relevance that name an unknown query or item are left out, and counted. Queries that
no item answers are left out. If no query is of split "valid", every tenth one of "train" is.
"""

from collections.abc import Callable, Collection

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.queries import SPLIT_NAMES, SPLITS, Inputs, ItemLists, Queries
from rails_ray.data.sources import Sources
from rails_ray.storage.rows import Rows, check_distinct
from rails_ray.storage.values import REFERENCE, WEIGHT

HELD_OUT = 10  # one training query in so many is for validation, if a data set has no such queries


def are_to_be_read(sources: Sources, needed: Collection[str]) -> bool:
    """Return whether queries are wanted, or there are some with relevance that nobody needs."""
    return bool(needed) or (sources.has("queries") and sources.has("relevance"))


def by_split(
    sources: Sources,
    queries: Rows,
    items: Rows,
    inputs_of: Callable[[NDArray[np.int64]], Inputs],
    needed: Collection[str] = SPLITS,
) -> dict[str, Queries]:
    """The queries of each split, with the relevance that is read.

    Args:
        queries: query_id and split.
        items: item_id, distinct.
        inputs_of: gives what some rows of `queries` ask.
        needed: splits that must have a query.

    Raises:
        NotFoundError: if there is no table of relevance.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    split_of, relevant = _splits(queries), _relevant(sources, queries, items)
    found = {}
    for number, split in enumerate(SPLITS):
        chosen = np.flatnonzero((split_of == number) & (relevant.lengths > 0))
        if split in needed and not len(chosen):
            raise ValueError(f"{sources} must hold a query with a relevant item in split {split!r}, got none")
        found[split] = Queries(inputs_of(chosen), relevant.take(chosen))
    return found


def no_queries(inputs: Inputs) -> dict[str, Queries]:
    """Splits without a query.

    Args:
        inputs: what no query asks.
    """
    none = ItemLists.of([])
    return {split: Queries(inputs, none) for split in SPLITS}


def splits_of(queries: Rows) -> NDArray[np.int64]:
    """The number of each query's split, as its table says it.

    Raises:
        ValueError: if it is none.
    """
    column = queries["split"]
    names = pc.utf8_lower(column)
    split_of: NDArray[np.int64] = np.full(len(queries), -1)
    for name, split in SPLIT_NAMES.items():
        split_of[pc.equal(names, name).to_numpy()] = SPLITS.index(split)
    wrong = np.flatnonzero(split_of < 0)
    if len(wrong):
        file, row = queries.where(int(wrong[0]))
        value = column[int(wrong[0])].as_py()
        raise ValueError(
            f"column 'split' of {file} must be one of {', '.join(SPLIT_NAMES)}, got {value!r} in row {row}"
        )
    return split_of


def _splits(queries: Rows) -> NDArray[np.int64]:
    """The number of each query's split; without any for validation, some of training's are for it."""
    split_of = splits_of(queries)
    train, valid = SPLITS.index("train"), SPLITS.index("valid")
    if not (split_of == valid).any():
        split_of[np.flatnonzero(split_of == train)[HELD_OUT - 1 :: HELD_OUT]] = valid
    return split_of


def _relevant(sources: Sources, queries: Rows, items: Rows) -> ItemLists:
    """The items that answer each query, each once and in their order."""
    relevance = sources.read("relevance", {"query_id": REFERENCE, "item_id": REFERENCE}, {"weight": WEIGHT})
    check_distinct(queries, "query_id")
    is_kept, known = sources.references("relevance", relevance, {"query_id": queries, "item_id": items})
    pairs, place = np.unique(np.stack(known), axis=1, return_inverse=True)  # by query, then by item
    starts = np.concatenate([[0], np.cumsum(np.bincount(pairs[0], minlength=len(queries)))])
    given, largest = sources.weights("relevance", relevance), None
    if given is not None:
        largest = np.zeros(pairs.shape[1])
        np.maximum.at(largest, place.reshape(-1), given[is_kept])
    return ItemLists(starts, pairs[1], weights=largest)
