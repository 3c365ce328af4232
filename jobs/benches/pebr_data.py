"""Data sets whose queries have few or many relevant items, for `jobs.benches.pebr`.

WordNet hyponyms: a query is a noun or verb with its definition, relevant are its direct hyponyms (1 to 402), the corpus
is all synsets, a query's own one left out of its answers. Queries are split at random.

Emoji: a query is a name or a part of one, relevant are the emoji that it is in (1 to some 300); split by the seed.

ML-1M and Beauty: a query is the first four fifths of what a user interacted with, relevant is what is new in the last
fifth, the corpus is all items, the history left out of answers. Training sees the first four fifths of all users; users
are split at random into those that cut-offs are calibrated on and those that they are measured on.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rails_ray.data import emoji
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms.history import HistoryForm, SequenceData
from rails_ray.data.forms.text import TextForm
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.data.sources import Sources
from rails_ray.storage.ids import ItemIds

EMOJI_HELD_OUT = 4000
WORDNET_HELD_OUT = 4000  # queries to calibrate on, and as many to measure on


def read(name: str, folder: Path, seed: int) -> DataSet:
    """One of the data sets."""
    if name == "emoji":
        tables = emoji.tables(EMOJI_HELD_OUT, EMOJI_HELD_OUT, seed)
        with TemporaryDirectory() as written:
            for table in ("items", "queries", "relevance"):
                pq.write_table(getattr(tables, table), f"{written}/{table}.parquet")
            return TextForm().read(Sources(written))
    if name == "wordnet":
        return wordnet_hyponyms(folder / name, seed)
    return sequence_futures(HistoryForm().read(Sources(str(folder / name))), seed)


def wordnet_hyponyms(folder: Path, seed: int) -> DataSet:
    texts, relevant = _synsets(folder)
    asked = np.flatnonzero(relevant.lengths)
    order = np.random.default_rng(seed).permutation(asked)
    parts = {
        "test": order[:WORDNET_HELD_OUT],
        "valid": order[WORDNET_HELD_OUT : 2 * WORDNET_HELD_OUT],
        "train": order[2 * WORDNET_HELD_OUT :],
    }
    queries = {
        split: Queries(texts.take(rows), relevant.take(rows), seen=ItemLists.of([[row] for row in rows]))
        for split, rows in parts.items()
    }
    return DataSet(ItemIds(list(range(len(texts)))), texts, queries)


def _synsets(folder: Path) -> tuple[Texts, ItemLists]:
    """The text of each synset, its words before its definition, and its hyponyms."""
    queries, items, words, hyponyms = (
        pq.read_table(folder / f"{name}.parquet") for name in ("queries", "items", "relevance", "hyponyms")
    )
    row_of = {query_id: row for row, query_id in enumerate(queries["query_id"].to_pylist())}
    lemma = dict(zip(items["item_id"].to_pylist(), items["text"].to_pylist(), strict=True))
    lemmas: list[list[str]] = [[] for _ in row_of]
    for query_id, item_id in zip(words["query_id"].to_pylist(), words["item_id"].to_pylist(), strict=True):
        lemmas[row_of[query_id]].append(lemma[item_id])
    texts = Texts(f"{', '.join(own)}: {text}" for own, text in zip(lemmas, queries["text"].to_pylist(), strict=True))
    lists: list[list[int]] = [[] for _ in row_of]
    for query_id, hyponym in zip(
        hyponyms["query_id"].to_pylist(), hyponyms["hyponym_query_id"].to_pylist(), strict=True
    ):
        lists[row_of[query_id]].append(row_of[hyponym])
    return texts, ItemLists.of(lists)


def sequence_futures(read: SequenceData, seed: int) -> DataSet:
    histories = list(read.histories)
    cuts = [len(history) * 4 // 5 for history in histories]
    past = [history[:cut] for history, cut in zip(histories, cuts, strict=True)]
    future = [np.setdiff1d(history[cut:], history[:cut]) for history, cut in zip(histories, cuts, strict=True)]
    trained = [own for own in past if len(own) >= 2]
    train = Queries(ItemLists.of([own[:-1] for own in trained]), ItemLists.of([own[-1:] for own in trained]))
    asked = [user for user in range(len(histories)) if len(future[user]) and len(past[user])]
    order = np.random.default_rng(seed).permutation(asked)
    half = len(order) // 2
    queries = {
        "train": train,
        "valid": _futures(past, future, order[:half]),
        "test": _futures(past, future, order[half:]),
    }
    return DataSet(read.item_ids, read.item_inputs, queries, titles=read.titles)


def _futures(past: list[NDArray[np.int64]], future: list[NDArray[np.int64]], users: NDArray[np.int64]) -> Queries:
    seen = ItemLists.of([past[user] for user in users])
    return Queries(seen, ItemLists.of([future[user] for user in users]), seen=seen)
