"""For which queries a mixture finds more: test queries in four groups of equal size by what they and their answer are.

    histories   length        items of the history
                spread        1 less the mean cosine of two of its newest items
                novelty       1 less the highest cosine of the answer to an item of the history
                popularity    how many histories hold the answer
    texts       length        words of the query
                novelty       share of the query's words that its answer lacks
                popularity    training queries that the answer answers

An item's vector is who interacted with it in the training histories. The answer is a query's first relevant item.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import Visits
from rails_ray.modules.encoders.words import words

NUM_GROUPS = 4
NEWEST = 50  # items of a history whose spread counts


def properties_of(read: DataSet) -> dict[str, NDArray[np.float64]]:
    """What each test query is [Q], by name."""
    asked = read.queries["test"]
    answers = asked.relevant.rows[asked.relevant.starts[:-1]]
    known = read.queries["train"]
    if not isinstance(asked.inputs, Visits):
        texts: Any = (asked.inputs, read.item_inputs)
        queries, found = ([words(text) for text in column] for column in texts)
        pairs = [(set(query), set(found[answer])) for query, answer in zip(queries, answers, strict=True)]
        return {
            "length": np.array([len(query) for query in queries], dtype=np.float64),
            "novelty": np.array([len(query - answer) / max(len(query), 1) for query, answer in pairs]),
            "popularity": np.bincount(known.relevant.rows, minlength=len(found))[answers].astype(np.float64),
        }
    cosines, popularity = _cosines(known.inputs, len(read.item_ids))
    histories = [asked.inputs[query] for query in range(len(asked))]
    return {
        "length": asked.inputs.lengths.astype(np.float64),
        "spread": np.array([_spread(cosines, history[-NEWEST:]) for history in histories]),
        "novelty": np.array(
            [1 - cosines(history, answer).max(initial=0.0) for history, answer in zip(histories, answers, strict=True)]
        ),
        "popularity": popularity[answers],
    }


def groups(
    properties: dict[str, NDArray[np.float64]], ndcg: NDArray[np.float64], other: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """For each property and each quarter of the queries by it: NDCG@10 of a mixture and of the other model."""
    rows = []
    for name, values in properties.items():
        order = np.argsort(values, kind="stable")
        for number, members in enumerate(np.array_split(order, NUM_GROUPS)):
            difference = ndcg[members] - other[members]
            rows.append(
                {
                    "property": name,
                    "group": number,
                    "at_most": float(values[members].max()),
                    "ndcg@10": float(ndcg[members].mean()),
                    "other": float(other[members].mean()),
                    "standard_error": float(difference.std() / np.sqrt(len(members))),
                }
            )
    return rows


def _cosines(known: Any, num_items: int) -> tuple[Any, NDArray[np.float64]]:
    """Cosines of items by who interacted with them, as a function of rows; and in how many histories each is."""
    histories = [known[number] for number in range(len(known))]
    people = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    seen = csr_array((np.ones(len(people)), (np.concatenate(histories), people)), (num_items, len(histories)))
    seen.data[:] = 1
    counts = np.asarray(seen.sum(axis=1)).ravel()
    unit = seen.multiply(1 / np.sqrt(np.maximum(counts, 1))[:, None]).tocsr()

    def cosines(rows: NDArray[np.int64], others: NDArray[np.int64] | int) -> NDArray[np.float64]:
        found = unit[rows] @ unit[np.atleast_1d(others)].T
        return np.asarray(found.toarray())

    return cosines, counts


def _spread(cosines: Any, history: NDArray[np.int64]) -> float:
    if len(history) < 2:
        return 0.0
    all_pairs = cosines(history, history)
    return float(1 - (all_pairs.sum() - np.trace(all_pairs)) / (len(history) * (len(history) - 1)))
