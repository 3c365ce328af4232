"""Heavy rankers that need nothing, and matrices that they filled without a cluster."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.families.config import RunConfig
from rails_ray.families.rbe.config import RbeConfig
from rails_ray.modules.encoders.frozen import FunctionConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.reranking.embedding import RelevanceEmbeddingConfig
from rails_ray.reranking.rankers import Candidate, HeavyRanker, candidates_of
from rails_ray.reranking.rankers.calling import score_all
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage import relevances
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data

NUM_SUPPORTS = 6
SLOW_S = 8  # of a call of `troubled` that is too slow: twice what the tests' server allows
BY_PAIRS = RankerConfig(path="support.ranked:by_pairs")


def by_pairs(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """The share of pairs of letters that two texts have in common."""
    asked = _pairs(query["text"])
    return [_alike(asked, _pairs(candidate.fields["text"])) for candidate in candidates]


def failing_at_plum(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """The same, but it fails at what is of the colour plum."""
    if any("plum" in candidate.fields["text"] for candidate in candidates):
        raise RuntimeError("no such item")
    return by_pairs(query, candidates)


def failing_for_red(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """The same, but it fails for queries of the colour red."""
    if "red" in query["text"]:
        raise RuntimeError("no such query")
    return by_pairs(query, candidates)


def hanging_for_red(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """The same, but it hangs for queries of the colour red."""
    if "red" in query["text"]:
        threading.Event().wait()  # which nobody sets
    return by_pairs(query, candidates)


class DyingOnce:
    """The same, but the first call of all takes its process with it.

    Args:
        folder: where it notes that.
    """

    def __init__(self, folder: str) -> None:
        self.note = Path(folder).parent / "died"

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        if not self.note.exists():
            self.note.touch()
            os._exit(1)
        return by_pairs(query, candidates)


def changing(query: Any, candidates: Sequence[Candidate]) -> list[float]:
    """The same, but it changes what it is given."""
    scores = by_pairs(query, candidates)
    query["text"] = "changed"
    for candidate in candidates:
        candidate.fields["text"] = "changed"  # type: ignore[index]
    return scores


def ending(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """It takes its process with it."""
    os._exit(3)


def leaving(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """It wants to end its process."""
    sys.exit(3)


class Warming:
    """The same, but in each process it fails until it is asked about a second query."""

    def __init__(self) -> None:
        self.seen = set[str]()

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        self.seen.add(query["text"])
        if len(self.seen) == 1:
            raise RuntimeError("not yet")
        return by_pairs(query, candidates)


class OfFolder:
    """The same, of a folder that it need not read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        return by_pairs(query, candidates)


class Weighted:
    """The same, times what its folder holds."""

    def __init__(self, folder: str) -> None:
        self.weight = float((Path(folder) / "weight").read_text())

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        return [self.weight * score for score in by_pairs(query, candidates)]


def broken(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """It scores nothing."""
    raise RuntimeError("broken")


def troubled(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """The same, but words of a query say what goes wrong: at once, or with `later` once it is to rerank."""
    words = query["text"].split()
    if "later" in words and len(candidates) <= NUM_SUPPORTS:
        return by_pairs(query, candidates)
    if "raise" in words:
        raise RuntimeError("out of memory")
    if "nan" in words:
        return [float("nan")] * len(candidates)
    if "short" in words:
        return by_pairs(query, candidates)[1:]
    if "sleep" in words:
        time.sleep(SLOW_S)
    return by_pairs(query, candidates)


def _pairs(text: str) -> set[str]:
    return {text[place : place + 2] for place in range(len(text) - 1)}


def _alike(one: set[str], other: set[str]) -> float:
    return 2 * len(one & other) / max(len(one) + len(other), 1)


def write_word_features(texts: Path) -> None:
    """Tables of features beside those of small texts: a number for each word, which queries and items share."""
    items, queries = (pq.read_table(texts / f"{name}.parquet") for name in ("items", "queries"))
    words = sorted({word for text in items["text"].to_pylist() for word in text.split()})
    for table, key, name in ((queries, "query_id", "query_features"), (items, "item_id", "item_features")):
        own = [text.split() for text in table["text"].to_pylist()]
        columns = {word: [float(word in line) for line in own] for word in words}
        length = {f"words of {key}": [len(line) for line in own]}
        pq.write_table(pa.table({key: table[key], **length, **columns}), texts / f"{name}.parquet")


def small_rbe_config(**fields: Any) -> RunConfig:
    return RunConfig(
        name="small-rbe",
        family=replace(
            RbeConfig(
                ranker=BY_PAIRS,
                num_supports=NUM_SUPPORTS,
                num_best=5,
                embedding=RelevanceEmbeddingConfig(width=5, hidden=8),
            ),
            **fields,
        ),
        training=TrainingConfig(num_steps=12, batch_size=16, validate_every=4, patience=3),
    )


def with_features() -> RunConfig:
    return small_rbe_config(features=FunctionConfig(function="support.text_vectors:encode"))


def write_scored_data(
    folder: Path,
    *,
    num_items: int = 60,
    ranker: HeavyRanker = by_pairs,
    changed: Callable[[np.ndarray], np.ndarray] = lambda scores: scores,
) -> Path:
    """A matrix of small texts.

    Args:
        changed: what becomes of a block's scores.
    """
    texts = write_text_data(folder / "texts", num_items=num_items)
    items, queries = (pq.read_table(texts / f"{name}.parquet") for name in ("items", "queries"))
    store, size = Storage(str(folder)), 20
    relevances.begin(store, "small", {}, items, queries)
    candidates = candidates_of(items["item_id"].to_pylist(), items["text"].to_pylist())
    for number, first in enumerate(range(0, queries.num_rows, size)):
        block = queries.slice(first, size)
        found = [score_all(ranker, {"text": text}, candidates) for text in block["text"].to_pylist()]
        scores = changed(np.stack([own.scores for own in found]))
        relevances.write_block(store, "small", number, block["query_id"], scores, [own.num_calls for own in found], 0.0)
    relevances.finish(store, "small", number + 1, 3)
    return folder / "relevance" / "small"
