"""How many candidates does a mixture need to find its best items: by the mean component, by gates, by a surrogate?

Recall@10 and @100 against brute force, of test queries, by the number of candidates that are rescored.

    average     the mean component, the paper's cheap method: no training, d numbers an item
    gated       a second inner product, of components weighted by the gates of the 16 best by average: nothing is stored
    surrogate   vectors fitted to scores for some training queries (`relevance.surrogate`), W + 1 numbers an item; a
                linear map or a network, of the query or of its scores of 100 supports

    python -m jobs.benches.surrogate STORAGE RUN ..       of trained mixtures, as `rails-ray train` left them

Held fixed: 300 test queries, 2,048 items to fit to, three seeds of the sample. A yes would be a surrogate that finds
with 100 candidates what the average finds with 400.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from jobs.benches.record import Record
from rails_ray.data.encoding import query_batches
from rails_ray.families import config
from rails_ray.families.data import read_data
from rails_ray.families.training_family import training_family
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate, take
from rails_ray.reranking.surrogate import SurrogateConfig, fit_surrogate, scores_of_all
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage

SEEDS = (0, 1, 2)
NUM_TEST, NUM_SAMPLED = 300, 2048
NUM_FIRST = 16  # of `gated`
CANDIDATES = (20, 50, 100, 200, 400, 1000)
KINDS = [("ridge", "query"), ("mlp", "query"), ("ridge", "supports"), ("mlp", "supports")]
SIZES = [(1000, 63), (1000, 127), (4000, 63)]  # queries to fit to, numbers of the map


def main(arguments: list[str]) -> None:
    record = Record("surrogate")
    for name in arguments[1:]:
        with torch.no_grad():
            measure(record, Storage(arguments[0]), name)


def measure(record: Record, storage: Storage, name: str) -> None:
    run = runs.read(storage, name)
    own = training_family(config.from_json(run.config))
    model: Any = own.trained_model(runs.weights(storage, run))
    read = read_data(own.config, storage)
    items: Any = own.run_items(storage, name, model, read)
    test: Any = encoded(model, read.queries["test"].inputs, NUM_TEST, seed=0)
    similarity = model.similarity.prepared()
    scores = scores_of_all(similarity, test, items)
    facts = {"run": own.config.name, "num_items": len(items), "components": list(similarity.num_components)}

    def told(method: str, estimated: Tensor, numbers: int, **fields: Any) -> None:
        for k in (10, 100):
            found = {num: recall(estimated, scores, k, num) for num in CANDIDATES if num >= k}
            for num, value in found.items():
                record.row(method=method, k=k, candidates=num, recall=value, numbers=numbers, **facts, **fields)
            line = ", ".join(f"{num} {value:.3f}" for num, value in found.items())
            print(f"{own.config.name} {method} {fields} recall@{k}: {line}", flush=True)

    average = test.average @ items.average.T
    told("average", average, items.width)
    told("gated", gated(model.similarity, test, items, average), 0)
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        sampled = take(items, torch.randperm(len(items), generator=generator)[:NUM_SAMPLED])
        for num_queries, width in SIZES:
            sample: Any = encoded(model, read.queries["train"].inputs, num_queries, seed)
            for kind, reads in KINDS:
                asked: dict[str, Any] = {"kind": kind, "reads": reads, "width": width}
                started = time.monotonic()
                made = fit_surrogate(SurrogateConfig(**asked), similarity, sample, sampled, seed)
                seconds = time.monotonic() - started
                estimated = made.queries(similarity, test) @ made.items(similarity, items).T
                told("surrogate", estimated, made.width, **asked, num_queries=len(sample), seed=seed, seconds=seconds)


def encoded(model: Any, inputs: Any, num_queries: int, seed: int) -> Any:
    """Some queries, at random."""
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:num_queries].numpy()
    return concatenate([batch for _, batch in query_batches(model, inputs.take(rows))])


def gated(similarity: Any, query: QueryState, items: ItemState, average: Tensor) -> Tensor:
    """The inner product of an item's components with the query's, weighted by the mean gates of the first items."""
    rows = average.topk(NUM_FIRST, dim=1).indices
    first = similarity(query, take(replace(items, average=None), rows))
    shares = torch.softmax(first.scores / similarity.temperature, dim=1)
    gates = (shares[:, :, None] * first.gates).sum(dim=1).unflatten(1, similarity.num_components)
    weighted = torch.einsum("bqx,bqd->bxd", gates, query.components)
    return weighted.flatten(1) @ items.components.flatten(1).T


def recall(estimated: Tensor, scores: Tensor, k: int, num_candidates: int) -> float:
    """The share of the k best items that are among the candidates."""
    rows = estimated.topk(min(num_candidates, estimated.shape[1]), dim=1).indices
    is_candidate = torch.zeros_like(estimated, dtype=torch.bool).scatter(1, rows, True)
    return float(is_candidate.gather(1, scores.topk(k, dim=1).indices).float().mean())


if __name__ == "__main__":
    main(sys.argv[1:])
