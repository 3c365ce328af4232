"""What `quality` measures of a trained model: what it finds, what its searches cost, and what is noise.

Differences have the paired bootstrap of `rails_ray.training.evaluation.bootstrap`.
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
from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.data.queries import Queries
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.modules.similarities.mol import MixtureOfLogits
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from rails_ray.training.evaluation import bootstrap
from rails_ray.training.evaluation.metrics import ndcg_of_queries
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.evaluation.report import HIT_RATES

K, LEAST_RECALL, NUM_SEARCHED, REPEATS = 100, 0.99, 320, 3  # of a search
CANDIDATES = (100, 150, 200, 250, 300, 400, 700, 1000, 1250, 1500, 2000)
WIDTHS = {  # what each method may take, cheapest first
    "gated": [SearchParams(num_candidates=width) for width in CANDIDATES],  # first: the others have its time
    "average": [SearchParams(num_candidates=width) for width in CANDIDATES],
    "per_embedding": [SearchParams(num_per_embedding=width) for width in (25, 35, 50, 70, 100, 150, 200)],
    "combined": [SearchParams(num_per_embedding=width, num_candidates=4 * width) for width in (25, 50, 100)],
    "two_pass": [SearchParams(num_per_embedding=width) for width in (10, 100)],
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


def quality_of(model: DualEncoder, item_features: Any, queries: Queries) -> Quality:
    ranking = rank_all(model, encode_items(model, item_features), queries, 10)
    return Quality(ranking.best_rank, ndcg_of_queries(ranking.is_relevant, ranking.num_relevant, 10))


@torch.no_grad()
def times_of(model: DualEncoder, read: DataSet) -> dict[str, Any]:
    """Milliseconds of a query by the exact scan, and by each method at the cheapest of its widths that finds
    LEAST_RECALL of the K best, or at the one that finds most of them. Beside it the most that it finds in the time that
    `gated` takes for LEAST_RECALL. SearchParams beyond both are not tried."""
    items: Any = encode_items(model, model.item_features(read.item_inputs))
    searcher = ByComponents(model.similarity, items)
    asked = read.queries["test"].head(NUM_SEARCHED)
    batches: list[Any] = [state for _, state in query_batches(model, asked.inputs, 32)]

    def timed(method: str, params: SearchParams) -> tuple[float, list[torch.Tensor]]:
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            rows = [searcher.search(batch, SearchSpec(K), method, params).item_rows.cpu() for batch in batches]
            seconds.append(time.perf_counter() - started)
        return 1e3 * float(np.median(seconds)) / len(asked), rows

    exact_ms, exact = timed("brute_force", SearchParams())
    methods = dict[str, dict[str, Any]]()
    is_mixture = isinstance(model.similarity, MixtureOfLogits)  # of one pair, all methods scan the same products
    for method in WIDTHS if is_mixture else ():
        tried = list[dict[str, Any]]()
        for params in WIDTHS[method]:
            ms, rows = timed(method, params)
            hits = [(one[:, :, None] == other[:, None]).any(2) for one, other in zip(exact, rows, strict=True)]
            tried.append({**asdict(params), "ms": ms, "recall": float(torch.cat(hits).float().mean())})
            if tried[-1]["recall"] >= LEAST_RECALL and ms > methods.get("gated", {"ms": 0.0})["ms"]:
                break
        enough = [row for row in tried if row["recall"] >= LEAST_RECALL]
        methods[method] = min(enough, key=itemgetter("ms")) if enough else max(tried, key=itemgetter("recall"))
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
        "num_items": len(searcher),
    }


def difference(own: Sequence[Path], other: Sequence[Path]) -> dict[str, float]:
    """The mean differences in NDCG@10 and HR@10 of two models by the ranks of each seed; each with its p, and relative
    to the other model with a 95% interval."""
    found = dict[str, float]()
    for name, ours, theirs in zip(("ndcg", "hr"), over_seeds(own), over_seeds(other), strict=True):
        compared = bootstrap.difference(ours, theirs)
        found |= {
            f"{name}@10": compared.mean,
            f"{name}_p": compared.p,
            f"relative_{name}": compared.relative,
            f"relative_{name}_low": compared.relative_low,
            f"relative_{name}_high": compared.relative_high,
        }
    return found


def over_seeds(places: Sequence[Path]) -> NDArray[np.float64]:
    """Each query's NDCG@10 and hits among ten, means over seeds [2, Q]."""
    ranks = [np.load(place) for place in places]
    found = [[rank["ndcg"], rank["best_rank"] <= 10] for rank in ranks]
    return np.mean(np.asarray(found, dtype=np.float64), axis=0)
