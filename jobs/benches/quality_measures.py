"""What `quality` measures of a trained model: what it finds, what its searches cost, and what is noise.

A difference's p is the share of resamples of the queries whose mean difference is not above 0 (paired bootstrap,
one-sided), at least 1 in RESAMPLES + 1.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import Queries
from rails_ray.evaluation.metrics import ndcg_of_queries
from rails_ray.evaluation.mixtures import measures
from rails_ray.evaluation.ranking import encode_items, query_batches, rank_all
from rails_ray.evaluation.report import HIT_RATES
from rails_ray.models.dual_encoder import DualEncoder
from rails_ray.retrieval.searchable import ByComponents, Widths
from rails_ray.similarities.mol import MixtureOfLogits
from rails_ray.wanted import Wanted

RESAMPLES = 10_000
K, LEAST_RECALL, NUM_SEARCHED, REPEATS = 100, 0.99, 320, 5  # of a search
CANDIDATES = (100, 150, 200, 250, 300, 400, 700, 1000, 1250, 1500, 2000)
WIDTHS = {  # what each method may take, cheapest first
    "average": [Widths(num_candidates=width) for width in CANDIDATES],
    "gated": [Widths(num_candidates=width) for width in CANDIDATES],
    "per_embedding": [Widths(num_per_embedding=width) for width in (25, 35, 50, 70, 100, 150, 200)],
    "combined": [Widths(num_per_embedding=width, num_candidates=4 * width) for width in (25, 50, 100)],
    "two_pass": [Widths(num_per_embedding=width) for width in (10, 100)],
}


@dataclass(frozen=True)
class Quality:
    """
    ndcg: NDCG@10 of each query.
    row: means over queries, by name.
    """

    best_rank: NDArray[np.int64]
    ndcg: NDArray[np.float64]

    @property
    def row(self) -> dict[str, float]:
        rates = {f"hr@{k}": float((self.best_rank <= k).mean()) for k in HIT_RATES}
        return {**rates, "mrr": float((1 / self.best_rank).mean()), "ndcg@10": float(self.ndcg.mean())}


def quality_of(model: DualEncoder, read: DataSet, queries: Queries) -> Quality:
    items = encode_items(model, model.item_features(read.item_inputs))
    ranking = rank_all(model, items, queries, 10)
    return Quality(ranking.best_rank, ndcg_of_queries(ranking.is_relevant, ranking.num_relevant, 10))


def gates_of(model: DualEncoder, read: DataSet) -> dict[str, float]:
    return measures(model, model.item_features(read.item_inputs), read.queries["test"])


@torch.no_grad()
def times_of(model: DualEncoder, read: DataSet) -> dict[str, Any]:
    """Milliseconds of a query by the exact scan, and by each method at the cheapest of its widths that finds
    LEAST_RECALL of the K best, or at the one that finds most of them. Beside it the most that it finds in the time that
    `gated` takes for LEAST_RECALL."""
    items: Any = encode_items(model, model.item_features(read.item_inputs))
    searchable = ByComponents(model.similarity, items)
    asked = read.queries["test"].head(NUM_SEARCHED)
    batches: list[Any] = [state for _, state in query_batches(model, asked.inputs, 32)]

    def timed(method: str, widths: Widths) -> tuple[float, list[torch.Tensor]]:
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            rows = [searchable.search(batch, Wanted(K), method, widths).item_rows.cpu() for batch in batches]
            seconds.append(time.perf_counter() - started)
        return 1e3 * float(np.median(seconds)) / len(asked), rows

    exact_ms, exact = timed("brute_force", Widths())
    methods, all_tried = dict[str, dict[str, Any]](), dict[str, list[dict[str, Any]]]()
    is_mixture = isinstance(model.similarity, MixtureOfLogits)  # of one pair, all methods scan the same products
    for method in WIDTHS if is_mixture else ():
        tried = []
        for widths in WIDTHS[method]:
            ms, rows = timed(method, widths)
            hits = [(one[:, :, None] == other[:, None]).any(2) for one, other in zip(exact, rows, strict=True)]
            tried.append({**asdict(widths), "ms": ms, "recall": float(torch.cat(hits).float().mean())})
        all_tried[method] = tried
        enough = [row for row in tried if row["recall"] >= LEAST_RECALL]
        methods[method] = min(enough, key=itemgetter("ms")) if enough else max(tried, key=itemgetter("recall"))
    for method, tried in all_tried.items():
        in_time = [row["recall"] for row in tried if row["ms"] <= methods["gated"]["ms"]]
        methods[method]["recall_in_time_of_gated"] = max(in_time, default=None)
    known = {"brute_force": {"ms": exact_ms, "recall": 1.0}, **methods}
    cheapest = min(
        (name for name in known if known[name]["recall"] >= LEAST_RECALL), key=lambda name: known[name]["ms"]
    )
    return {
        "exact_ms": exact_ms,
        "cheapest": {"method": cheapest, **known[cheapest]},
        "methods": methods,
        "num_items": len(searchable),
    }


def difference(own: Sequence[Path], other: Sequence[Path]) -> dict[str, float]:
    """The mean differences in NDCG@10 and HR@10 of two models by the ranks of each seed; each with its p, and relative
    to the other model with a 95% interval."""
    found = dict[str, float]()
    for name, ours, theirs in zip(("ndcg", "hr"), over_seeds(own), over_seeds(other), strict=True):
        means = resampled_means(np.stack([ours, theirs], axis=1))
        low, high = np.quantile(means[:, 0] / means[:, 1] - 1, [0.025, 0.975])
        found |= {
            f"{name}@10": float((ours - theirs).mean()),
            f"{name}_p": float(((means[:, 0] <= means[:, 1]).sum() + 1) / (RESAMPLES + 1)),
            f"relative_{name}": float(ours.mean() / theirs.mean() - 1),
            f"relative_{name}_low": float(low),
            f"relative_{name}_high": float(high),
        }
    return found


def over_seeds(places: Sequence[Path]) -> NDArray[np.float64]:
    """Each query's NDCG@10 and hits among ten, means over seeds [2, Q]."""
    ranks = [np.load(place) for place in places]
    found = [[rank["ndcg"], rank["best_rank"] <= 10] for rank in ranks]
    return np.mean(np.asarray(found, dtype=np.float64), axis=0)


def resampled_means(values: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """Means of queries drawn with replacement [RESAMPLES, N], of what N models have for each [Q, N]."""
    generator = np.random.default_rng(seed)
    draws = (generator.integers(len(values), size=(100, len(values))) for _ in range(RESAMPLES // 100))
    return np.concatenate([np.mean(values[rows], axis=1) for rows in draws])
