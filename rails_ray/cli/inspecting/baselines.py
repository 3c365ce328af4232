"""Baselines to beat on the test queries, measured as `rails-ray evaluate` measures it.

A recipe that trains nothing is run: BM25 for texts, the plain cosine for vectors. Other data have popularity: every
query gets the items that training names most often, less those that it has seen unless answers may hold them. A
pretrained encoder of texts, which takes much longer, is measured by few queries of few items.

Axes: Q queries, X items, B queries of a batch.
"""

import tempfile
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.cli.inspecting import facts, sampling
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families.config import DataConfig
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import TrainingFamily, training_family
from rails_ray.modules.encoders.frozen import SentenceTransformerConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.metrics import hit_rate, mean_reciprocal_rank
from rails_ray.training.evaluation.ranking import rank_of_best
from rails_ray.training.evaluation.report import HIT_RATES, evaluate
from rails_ray.training.evaluation.seen import Figures, SeenItems, has_both_figures
from rails_ray.training.piece import Given

MOST_ITEMS = 200_000  # of a corpus that is ranked whole; BM25 takes 3 KB an item
MOST_SCORES = 10**8  # of queries and items, half a minute of BM25 on a core
FEWEST_QUERIES = 1_000  # are asked of any corpus: the standard error of a hit rate is below .016
MOST_TRIED = 200  # queries of a pretrained encoder: the standard error of a hit rate is below 0.036
MOST_ENCODED = 2_000  # items of a pretrained encoder
BATCH_SCORES = 2**24  # of a batch of popularity's, 64 MB
RUN = "inspected"


@dataclass(frozen=True)
class Baseline:
    """
    hit_rate: by k.
    num_queries: test queries that were asked; of how many.
    num_items: items that were ranked; of how many.
    seen_items: what became of the items of the queries' histories; None if queries have none.
    """

    name: str
    hit_rate: dict[int, float]
    mrr: float
    num_queries: int
    num_test_queries: int
    num_items: int
    num_corpus_items: int
    seen_items: SeenItems | None = None

    def to_dict(self) -> dict[str, Any]:
        seen = None if self.seen_items is None else self.seen_items.to_dict()
        return vars(self) | {"hit_rate": {str(k): value for k, value in self.hit_rate.items()}, "seen_items": seen}


def most_queries(num_items: int) -> int:
    """How many test queries are asked of so many items, at most."""
    return max(MOST_SCORES // num_items, FEWEST_QUERIES)


def untrained(own: TrainingFamily, read: DataSet) -> Baseline:
    """Measure what a recipe finds that trains nothing. It ranks a part of a corpus beyond `MOST_ITEMS`, where it finds
    more."""
    part = sampling.part(read, MOST_ITEMS, most_queries(min(len(read.item_ids), MOST_ITEMS)))
    return _measured(own, read, part, own.config.name)


def pretrained(folder: str, untrained_family: TrainingFamily, read: DataSet) -> list[Baseline]:
    """Measure the cosine of a pretrained encoder on a few test queries, and a recipe that trains nothing on them too,
    unless they are all.

    Args:
        folder: of the encoder.
        untrained_family: of that recipe.
        read: texts.

    Raises:
        UnsupportedError: if sentence-transformers is not installed.
        ValueError: if the folder has no model of it, or one whose vectors have no cosine.
    """
    config = replace(by_name("vector-cosine"), data=DataConfig(zero_vectors="keep"))
    config = config.with_family(encoder=SentenceTransformerConfig(pretrained=folder))
    only_test = {split: own if split == "test" else own.head(0) for split, own in read.queries.items()}
    part = sampling.part(replace(read, queries=only_test), MOST_ENCODED, MOST_TRIED)
    found = [_measured(training_family(config), read, part, f"pretrained {folder}")]
    if len(part.item_ids) < len(read.item_ids) or len(part.queries["test"]) < len(read.queries["test"]):
        found.append(_measured(untrained_family, read, part, f"{untrained_family.config.name} on that part"))
    return found


def _measured(own: TrainingFamily, read: DataSet, part: DataSet, name: str) -> Baseline:
    """Measure a recipe that trains nothing on a part of a data set."""
    own = training_family(own.completed(part))
    [piece] = own.pieces()
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder:
        storage = Storage(folder)
        own.begin(part)(storage, RUN)
        model: Any = piece.prepare(Given(read=part, storage=storage, run=RUN)).module
        items = own.run_items(storage, RUN, model.eval(), part)
    found = evaluate(model, items, part.queries["test"], "test", None, None)
    figures = Figures(found.hit_rate, found.mrr)
    return _of(name, read, figures, found.num_queries, found.num_items, found.seen_items)


def popularity(read: DataSet) -> Baseline:
    """Measure what popularity finds: how often training names an item."""
    test = sampling.taken(read.queries["test"], most_queries(len(read.item_ids)))
    counts = facts.training_queries_of_items(read)
    allowed = _figures(ranks_by(counts, test, None)) if has_both_figures(test) else None
    figures, seen = _figures(ranks_by(counts, test, test.excluded)), SeenItems.of(test, allowed)
    return _of("popularity", read, figures, len(test), len(read.item_ids), seen)


def _figures(ranks: NDArray[np.int64]) -> Figures:
    return Figures({k: hit_rate(ranks, k) for k in HIT_RATES}, mean_reciprocal_rank(ranks))


def _of(
    name: str, read: DataSet, found: Figures, num_queries: int, num_items: int, seen_items: SeenItems | None
) -> Baseline:
    sizes = num_queries, len(read.queries["test"]), num_items, len(read.item_ids)
    return Baseline(name, found.hit_rate, found.mrr, *sizes, seen_items)


def ranks_by(counts: NDArray[np.int64], queries: Queries, excluded: ItemLists | None) -> NDArray[np.int64]:
    """The rank of each query's first relevant item if all queries get the items by these counts [Q].

    Args:
        excluded: items that a query does not get.
    """
    scores = torch.from_numpy(counts.astype(np.float32))  # exact up to 2^24
    size = max(BATCH_SCORES // len(counts), 1)
    found = [np.empty(0, np.int64)]
    for first in range(0, len(queries), size):
        lines = range(first, min(first + size, len(queries)))
        batch = scores.repeat(len(lines), 1)  # [B, X]
        is_relevant = torch.zeros_like(batch, dtype=torch.bool)
        for line, number in enumerate(lines):
            is_relevant[line, torch.from_numpy(queries.relevant[number])] = True
            if excluded is not None:
                batch[line, torch.from_numpy(excluded[number])] = -torch.inf
        found.append(rank_of_best(batch, is_relevant).numpy())
    return np.concatenate(found)
