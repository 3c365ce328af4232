"""Three vectors of each history and of each item, for `vectors_gated`: whose weights depend on the history?

    sequence     SASRec under a dot product, trained on all of a history but its last three items
    attributes   genres of a film, attributes of a product; of a history, the mean of its newest items
    together     what is interacted with by the same people: singular vectors of the items' positive pointwise mutual
                 information within a window of the same histories; of a history, the mean of its newest items

A gate trained on answers that the sequence model has learnt would trust it too much. So a history's third last item
trains the gate, the second last chooses between gates, and the last one is the test.

Axes: Q histories, X items, D width of a vector.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import svds

from jobs.benches.quality import trained
from jobs.benches.quality_models import Cell, Settings, config_of, data_of
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.data.queries import DenseRows, ItemLists, Queries, Visits
from rails_ray.families.dual_encoder.model import DualEncoder

NAMES = ("sequence", "attributes", "together")
EPOCHS = {"ml-1m": 20.0, "amazon-beauty": 20.0}  # of the sequence model
BATCHES = {"ml-1m": 32, "amazon-beauty": 64}
ATTRIBUTES = {"ml-1m": "genres", "amazon-beauty": "attributes"}  # columns of items
NEWEST = 20  # items of a history whose mean is its vector
WINDOW = 10  # items of a history after another that were interacted with together
WIDTH = 64  # of vectors of what is together, and of attributes where there are more
Matrix = NDArray[np.float32]


def histories_of(name: str, folder: Path, state: Path) -> DataSet:
    """The data set whose histories and items are three vectors each."""
    cell = Cell(name, "sasrec", "dot")
    whole = data_of(cell, folder, state, is_final=False)
    asked = {"train": whole.queries["train"], "valid": whole.queries["valid"], "test": whole.queries["test"]}
    known = without_newest(asked["train"])
    model = sequence_model(cell, replace(whole, queries={**whole.queries, "train": known}))
    attributes = attribute_vectors(folder / name, ATTRIBUTES[name], whole)
    together = together_vectors(with_answers(known), len(whole.item_ids))
    items = [item_vectors(model, whole), attributes, together]
    widths = tuple(own.shape[1] for own in items)

    def vectors_of(queries: Queries) -> Queries:
        assert isinstance(queries.inputs, Visits)
        means = [mean_of_newest(queries.inputs, own) for own in items[1:]]
        rows = np.concatenate([query_vectors(model, queries), *means], axis=1)
        return replace(
            queries, inputs=DenseRows(rows, widths), seen=ItemLists(queries.inputs.starts, queries.inputs.rows)
        )

    return replace(
        whole,
        item_inputs=DenseRows(np.concatenate(items, axis=1), widths),
        queries={split: vectors_of(queries) for split, queries in asked.items()},
    )


def without_newest(queries: Queries) -> Queries:
    """Each history asks for its newest item, by those before it. Histories of one item are left out."""
    assert isinstance(queries.inputs, Visits)
    own, kept = queries.inputs, np.flatnonzero(queries.inputs.lengths > 1)
    ends = own.starts[kept + 1] - 1
    answers = ItemLists(np.arange(len(kept) + 1), own.rows[ends])
    return replace(queries, inputs=own.between(kept, own.starts[kept], ends), relevant=answers, seen=None)


def with_answers(queries: Queries) -> list[NDArray[np.int64]]:
    """Histories and their answers as one list each."""
    assert isinstance(queries.inputs, Visits)
    return [np.append(*pair) for pair in zip(queries.inputs, queries.relevant, strict=True)]


def sequence_model(cell: Cell, read: DataSet) -> DualEncoder:
    config = config_of(cell, Settings(), read, EPOCHS[cell.data], BATCHES[cell.data])
    return trained(config, read).eval()


@torch.no_grad()
def item_vectors(model: DualEncoder, read: DataSet) -> Matrix:
    """[X, D]"""
    state: Any = encode_items(model, model.item_features(read.item_inputs))
    return state.components[:, 0].float().numpy()


@torch.no_grad()
def query_vectors(model: DualEncoder, queries: Queries) -> Matrix:
    """[Q, D]"""
    states: list[Any] = [state for _, state in query_batches(model, queries.inputs, 256)]
    return np.concatenate([state.components[:, 0].float().numpy() for state in states])


def attribute_vectors(folder: Path, column: str, read: DataSet) -> Matrix:
    """All attributes, or their WIDTH singular vectors [X, D]; one counts log(X / items that have it)."""
    table = pq.read_table(folder / "items.parquet")
    rows = {item: row for row, item in enumerate(table["item_id"].to_pylist())}
    lists: list[Any] = table[column].to_pylist()
    values: Mapping[Any, int] = {
        value: number for number, value in enumerate(sorted({v for own in lists for v in own}))
    }
    pairs = [(row, values[value]) for row, item in enumerate(read.item_ids) for value in set(lists[rows[item]])]
    places = np.array(pairs).T
    has = csr_array((np.ones(len(pairs)), (places[0], places[1])), (len(read.item_ids), len(values)))
    weighted = has * np.log(len(read.item_ids) / np.maximum(has.sum(axis=0), 1))
    if len(values) <= WIDTH:
        return np.asarray(weighted.toarray(), np.float32)
    return _singular(csr_array(weighted))


def together_vectors(histories: list[NDArray[np.int64]], num_items: int) -> Matrix:
    """[X, D]"""
    pairs = [(own[:-gap], own[gap:]) for own in histories for gap in range(1, min(WINDOW + 1, len(own)))]
    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    rows, columns = np.append(first, second), np.append(second, first)
    counts = csr_array(coo_array((np.ones(len(rows)), (rows, columns)), (num_items, num_items)))
    shares = 1 / np.maximum(counts.sum(axis=1), 1)
    found = coo_array(diags_array(shares) @ counts @ diags_array(shares) * counts.sum())
    return _singular(csr_array((np.log(found.data).clip(0), found.coords), found.shape))


def _singular(matrix: csr_array) -> Matrix:
    """Left singular vectors, each times the root of its value."""
    vectors, values, _ = svds(matrix.astype(np.float64), WIDTH, rng=np.random.default_rng(0))
    return np.asarray(vectors * np.sqrt(values), np.float32)


def mean_of_newest(histories: Visits, items: Matrix) -> Matrix:
    """The mean of the directions of each history's newest items [Q, D]."""
    unit = items / np.maximum(np.linalg.norm(items, axis=1, keepdims=True), 1e-12)
    return np.array([unit[own[-NEWEST:]].mean(axis=0) for own in histories], np.float32)
