"""The task of all peers, and the judgement of their answers: vectors of length 1, queries, parameters, and recall.

Axes: B queries, X items, D width of a vector, k results.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["exact", "hnsw"]
Vectors = NDArray[np.float32]

K = 10
M, EF_CONSTRUCTION = 32, 80  # links of an item, twice as many on the lowest level; the beam that finds them
TARGET = 0.99  # recall@10 that ef_search is chosen for
LADDER = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # ef_search, until the target is reached
NUM_QUERIES, BATCH = 1000, 32  # of a measurement one by one; of a request with many
ROUNDING = 1e-5  # by which the score of an item may miss that of the k-th best: sums in another order
NOISE = 0.5  # length of what is added to a copy of a vector, where there are fewer than wanted
WIDTH, MOST_DRAWN = 256, 100_000  # of vectors that are drawn: numbers of each, and how many before there are copies


@dataclass(frozen=True)
class Setting:
    """One measurement's place: a folder with `vectors.npy` [X, D], `queries.npy` [B, D] and `best.npy`.

    Args:
        store: empty folder for what a peer writes.
        seconds: of each load.
        most_s: most seconds of searches one by one; NUM_QUERIES of them if they take less.
    """

    folder: Path
    kind: Kind
    store: Path
    seconds: float
    most_s: float

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Setting":
        """Read what `words` wrote."""
        folder, kind, store, seconds, most_s = words
        assert kind in ("exact", "hnsw")
        return cls(Path(folder), "exact" if kind == "exact" else "hnsw", Path(store), float(seconds), float(most_s))

    @property
    def words(self) -> list[str]:
        """The setting as arguments of a command."""
        return [str(self.folder), self.kind, str(self.store), str(self.seconds), str(self.most_s)]

    @property
    def log(self) -> Path:
        """The standard error of the peer's latest process."""
        return self.store.parent / "log"

    @property
    def ladder(self) -> tuple[int, ...]:
        """Values of ef_search to try, the smallest first; an exact search has one that nothing reads."""
        return LADDER if self.kind == "hnsw" else (K,)

    @property
    def vectors(self) -> Vectors:
        """All items [X, D], mapped."""
        mapped: Vectors = np.load(self.folder / "vectors.npy", mmap_mode="r")
        return mapped

    @cached_property
    def queries(self) -> Vectors:
        """All queries [B, D]."""
        read: Vectors = np.load(self.folder / "queries.npy")
        return read

    def in_parts(self, size: int, num_queries: int = NUM_QUERIES) -> list[Vectors]:
        """The first queries in parts of equal size."""
        rows = self.queries[:num_queries]
        return [rows[first : first + size] for first in range(0, len(rows) - size + 1, size)]

    @cached_property
    def best(self) -> list[set[int]]:
        """Rows of each query's k best items, and of those that score as high as the k-th."""
        return [set(line[line >= 0].tolist()) for line in np.load(self.folder / "best.npy")]

    def recall(self, found: Iterable[Iterable[int]]) -> float:
        """Recall@k of the first queries' answers, each a list of rows: the mean share of k that are among the best."""
        pairs = zip(found, self.best, strict=False)
        return float(np.mean([min(len(set(rows) & best), K) / min(K, len(best)) for rows, best in pairs]))


def prepare(folder: Path, data: Path, num_items: int) -> str:
    """Write vectors, queries and the best items of each query to a folder; return where the vectors are from."""
    rows, source = real_or_drawn(data, num_items)
    generator = np.random.default_rng(0)
    rows = rows[generator.permutation(len(rows))]
    queries, items = rows[:NUM_QUERIES], rows[NUM_QUERIES:]
    if num_items > len(items):
        source += f", copies of {len(items):,} with noise of length {NOISE}"
        copies = items[np.arange(len(items), num_items) % len(items)]
        noise = generator.standard_normal(copies.shape, dtype=np.float32) * NOISE / np.sqrt(copies.shape[1])
        items = np.concatenate([items, unit(copies + noise)])
    np.save(folder / "vectors.npy", items[:num_items])
    np.save(folder / "queries.npy", queries)
    np.save(folder / "best.npy", best_rows(items[:num_items], queries))
    return source


def real_or_drawn(data: Path, num_items: int) -> tuple[Vectors, str]:
    """Vectors of WordNet's glosses by wordllama; clustered ones where one of the two is missing."""
    if (data / "wordnet").exists() and find_spec("wordllama"):
        from jobs.benches import pretrained
        from rails_ray.data.sources import Sources
        from rails_ray.storage.values import TEXT

        glosses = Sources(str(data / "wordnet")).table("queries").read({"text": TEXT})["text"].to_pylist()
        return unit(pretrained.encode(glosses)), "WordNet's glosses by wordllama"
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((1000, WIDTH), dtype=np.float32)
    drawn = centres[generator.integers(len(centres), size=min(num_items, MOST_DRAWN) + NUM_QUERIES)]
    return unit(drawn + generator.standard_normal(drawn.shape, dtype=np.float32)), "clustered, drawn"


def unit(vectors: Vectors) -> Vectors:
    """Vectors in their directions, of length 1; those of zeros are left out."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray((vectors / np.maximum(lengths, 1e-9))[lengths[:, 0] > 0], dtype=np.float32)


def best_rows(items: Vectors, queries: Vectors) -> NDArray[np.int64]:
    """Rows of each query's k best items and of those that score as high [B, n], -1 behind the shorter lists."""
    lists = list[NDArray[np.int64]]()
    for block in np.array_split(queries, max(len(queries) // 50, 1)):
        scores = block @ items.T  # [50, X]
        place = max(scores.shape[1] - K, 0)
        least = np.partition(scores, place, axis=1)[:, place]
        lists += [np.flatnonzero(line >= floor - ROUNDING) for line, floor in zip(scores, least, strict=True)]
    best = np.full((len(queries), max(map(len, lists))), -1)
    for row, own in zip(best, lists, strict=True):
        row[: len(own)] = own
    return best


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """The 50th and the 99th percentile in ms, and of how many."""
    p50_ms, p99_ms = (round(1e3 * float(one), 3) for one in np.percentile(seconds, [50, 99]))
    return {"p50_ms": p50_ms, "p99_ms": p99_ms, "requests": len(seconds)}


def judged(setting: Setting, one_by_one: Callable[[int], tuple[dict[str, Any], list[list[int]]]]) -> dict[str, Any]:
    """Choose the smallest beam that reaches the target, or else the largest, and measure it again.

    Args:
        one_by_one: what searches with an ef_search cost, and the rows that each found.
    """
    rungs = list[dict[str, Any]]()
    for ef_search in setting.ladder:
        facts, found = one_by_one(ef_search)
        rungs.append({"ef_search": ef_search, "recall": round(setting.recall(found), 4), **facts})
        if rungs[-1]["recall"] >= TARGET:
            break
    facts, found = one_by_one(ef_search)
    return {"ladder": rungs, "ef_search": ef_search, "recall": round(setting.recall(found), 4), **facts}
