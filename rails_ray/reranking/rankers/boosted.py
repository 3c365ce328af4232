"""A heavy ranker of boosted trees over numbers of the query, of the item, and of both, by LightGBM.

    score(q, i) = trees(a_q || a_i || a_q[:P] * a_i[:P])

a_q and a_i are looked up: a_q by the query's text, which names a user, say, a_i by the item's id. Their first P numbers
mean the same of both (genres that a user likes, genres of a film), and are multiplied.

Axes: N candidates, A numbers of a query, C of an item, P shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from rails_ray.optional import optional
from rails_ray.reranking.rankers import RANKERS, TEXT, Candidate

FEATURES, TREES = "features.npz", "trees.txt"  # files of a ranker's folder


@dataclass(frozen=True, kw_only=True)
class TreesConfig:
    """Settings of LightGBM.

    Args:
        num_rounds: trees.
        num_leaves: most leaves of a tree.
        learning_rate: what each tree adds is multiplied by it.
    """

    num_rounds: int = 300
    num_leaves: int = 63
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        for name, least in {"num_rounds": 1, "num_leaves": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")


class PairFeatures(NamedTuple):
    """
    query_keys, item_keys: texts of queries and ids of items, as strings.
    num_shared: P.
    """

    query_keys: ndarray
    queries: Float[ndarray, "Q A"]
    item_keys: ndarray
    items: Float[ndarray, "X C"]
    num_shared: int


def pairs(query: Float[ndarray, " A"], items: Float[ndarray, "N C"], num_shared: int) -> Float[ndarray, "N _"]:
    """Return what the trees read of a query and some items."""
    queries = np.broadcast_to(query, (len(items), len(query)))
    return np.concatenate([queries, items, queries[:, :num_shared] * items[:, :num_shared]], axis=1)


def save(folder: Path, features: PairFeatures) -> None:
    """Write the features of a ranker."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FEATURES, **features._asdict())


def load(folder: Path) -> PairFeatures:
    """Raises:
    ValueError: if the folder has none.
    """
    try:
        with np.load(folder / FEATURES, allow_pickle=False) as stored:
            found = {name: stored[name] for name in PairFeatures._fields}
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{folder} must hold the features of a boosted ranker, {FEATURES}, got: {error}") from None
    return PairFeatures(**found | {"num_shared": int(found["num_shared"])})


class BoostedRanker:
    """The contract of `HeavyRanker`.

    Args:
        folder: what `rails-ray train-ranker --kind boosted` wrote.

    Raises:
        UnsupportedError: if lightgbm is not installed.
        ValueError: if the folder has none.
    """

    def __init__(self, folder: str) -> None:
        lightgbm = optional("lightgbm", needed_by="this ranker", package="lightgbm", install=RANKERS)
        own = load(Path(folder))
        self.queries, self.items, self.num_shared = own.queries, own.items, own.num_shared
        self.query_rows = {str(key): row for row, key in enumerate(own.query_keys)}
        self.item_rows = {str(key): row for row, key in enumerate(own.item_keys)}
        try:
            self.trees = lightgbm.Booster(model_file=str(Path(folder) / TREES))
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(f"{folder} must hold the trees of a boosted ranker, {TREES}, got: {error}") from None

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> Sequence[float]:
        """Raises:
        ValueError: for a query or an item without features.
        """
        text = str(query[TEXT])
        if text not in self.query_rows:
            raise ValueError(f"a query must have features, got {text!r}, which has none")
        unknown = [one.item_id for one in candidates if str(one.item_id) not in self.item_rows]
        if unknown:
            raise ValueError(f"an item must have features, got {unknown[0]!r}, which has none")
        rows = [self.item_rows[str(one.item_id)] for one in candidates]
        read = pairs(self.queries[self.query_rows[text]], self.items[rows], self.num_shared)
        scores: list[float] = np.asarray(self.trees.predict(read, raw_score=True, num_threads=1)).tolist()
        return scores
