"""Numbers of queries and items that boosted trees read, from two tables beside those of texts.

    query_features   query_id, and a column of numbers for each feature
    item_features    item_id, and likewise

A column that both tables have means the same of a query and of an item, and the trees read the product too. Each query
and each item has a row. Items beyond the corpus may have one, so that they can join.

Axes: P pairs of a training query and an item that answers it.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from rails_ray.data.forms import FORMS
from rails_ray.data.queries import check_unweighted
from rails_ray.data.sources import Sources
from rails_ray.reranking.rankers.boosted import PairFeatures
from rails_ray.storage.rows import Rows, check_distinct, rows_of
from rails_ray.storage.values import FILLED_TEXT, ID, NUMBER

TABLES = {"query_id": "query_features", "item_id": "item_features"}


def read(sources: Sources) -> tuple[PairFeatures, Int[ndarray, "P 2"]]:
    """The features, and the rows in them of the query and of the item of each pair that trains.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    texts = FORMS["text"].read(sources, ["train"])
    given = {key: _numbers(sources, key) for key in TABLES}
    shared = [name for name in given["query_id"].table.column_names[1:] if name in given["item_id"]]
    queries = sources.read("queries", {"query_id": ID, "text": FILLED_TEXT})
    items = sources.read("items", {"item_id": ID})
    of_queries = _side_by_side(given["query_id"], shared)[rows_of(queries, given["query_id"], "query_id")]
    item_rows = rows_of(items, given["item_id"], "item_id")
    keys = queries["text"].to_pylist()
    row_of = dict[str, int]()
    for row, text in enumerate(keys):
        if (of_queries[row_of.setdefault(text, row)] != of_queries[row]).any():
            file, place = queries.where(row)
            raise ValueError(
                f"queries of one text must have the same features, got others for {text!r} in row {place} of {file}"
            )
    train = texts.queries["train"]
    check_unweighted(train, "boosted trees")
    query_rows = np.repeat([row_of[train.inputs[number]] for number in range(len(train))], train.relevant.lengths)
    features = PairFeatures(
        np.array(keys),
        of_queries,
        np.array([str(key) for key in given["item_id"]["item_id"].to_pylist()]),
        _side_by_side(given["item_id"], shared),
        len(shared),
    )
    return features, np.stack([query_rows, item_rows[train.relevant.rows]], axis=1)


def _numbers(sources: Sources, key: str) -> Rows:
    """A table of features: ids first, then numbers."""
    table = sources.open(TABLES[key])
    names = [name for name in table.column_names if name != table.column_in(table.footers[0], key)]
    found = table.read({key: ID, **dict.fromkeys(names, NUMBER)})
    if not names:
        raise ValueError(f"{found.name} must have a column of numbers beside {key!r}, got none")
    check_distinct(found, key)
    return found


def _side_by_side(given: Rows, shared: Sequence[str]) -> ndarray:
    """The numbers in float32, those of shared columns first.

    Raises:
        ValueError: if one is not finite.
    """
    names = [*shared, *(name for name in given.table.column_names[1:] if name not in shared)]
    with np.errstate(over="ignore"):
        columns = [given[name].to_numpy().astype(np.float32) for name in names]
    numbers = np.stack(columns, axis=1)
    wrong = np.argwhere(~np.isfinite(numbers))
    if len(wrong):
        row, column = map(int, wrong[0])
        file, place = given.where(row)
        name = names[column]
        raise ValueError(
            f"column {name!r} of {file} must hold numbers that are finite in float32, got {given[name][row].as_py()} "
            f"in row {place}"
        )
    return numbers
