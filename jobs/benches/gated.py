"""What does it cost to find a mixture's best items, by the mean component, by pairs, by both, or by a fit to scores?

Recall@10 and @100 against brute force, and ms per query of batches of 32 and of 1, by the number of candidates.

    brute_force     every item; the time to beat, with and without a floor by a few items of the average
    average, per_embedding, combined, surrogate, gated      the product's methods
    mean gates      the first form of `gated`: the weights of pairs are the mean gates of the m first items by average,
                    weighted by softmax(score / (factor tau)), in one round or a second one from the first one's best

    python -m jobs.benches.gated STORAGE RUN ..      of trained mixtures, as `rails-ray train` left them
    python -m jobs.benches.gated - small             of Table 5's synthetic items, 50,000 of 8 x 8 components of 32

Held fixed: 300 test queries (96 of `small`), one thread, k of 10 and of 100; times are medians of 3 runs over the
same batches; a surrogate is a ridge fitted to 1,000 training queries. A yes would be recall@100 of .99 in a third of
the time that `per_embedding` takes for it, on three trained models.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jobs.benches import table5
from jobs.benches.record import Record
from rails_ray.data.encoding import query_batches
from rails_ray.families import config
from rails_ray.families.data import read_data
from rails_ray.families.training_family import training_family
from rails_ray.kernels.top_k import select
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate, take
from rails_ray.reranking.surrogate import SurrogateConfig, fit_surrogate, scores_of_all
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.methods.gated import weighted
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage

BATCHES = (32, 1)
NUM_TEST, NUM_SAMPLED, NUM_SINGLE = 300, 2048, 16  # queries, items that a surrogate is fitted to, queries one by one
CANDIDATES = {10: (20, 50, 100, 200), 100: (100, 200, 400, 1000)}
PER_EMBEDDING = {10: (5, 10, 25, 50, 100), 100: (25, 50, 100, 200, 400)}
ROUNDS = (2, 3, 5)
FIRST, FACTORS = (16, 64, 256), (0.5, 1.0, 2.0)  # m and the factors of tau, of mean gates
REPEATS = 3


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    record = Record("gated")
    with torch.no_grad():
        for name in arguments[1:]:
            if arguments[0] == "-":
                measure(record, f"synthetic {name}", *synthetic(name), sample=None)
            else:
                measure(record, *trained(Storage(arguments[0]), name))


def trained(storage: Storage, name: str) -> tuple[str, Any, QueryState, ItemState, QueryState]:
    """Name, similarity, test queries, items and 1,000 training queries of a run."""
    run = runs.read(storage, name)
    own = training_family(config.from_json(run.config))
    model: Any = own.trained_model(runs.weights(storage, run))
    read = read_data(own.config, storage)
    items: Any = own.run_items(storage, name, model, read)
    test, sample = (
        encoded(model, read.queries[split].inputs, num, seed=0) for split, num in (("test", NUM_TEST), ("train", 1000))
    )
    return own.config.name, model.similarity, test, items, sample


def synthetic(name: str) -> tuple[Any, QueryState, ItemState]:
    """Similarity, queries and items of a shape of Table 5."""
    with torch.enable_grad():
        made, _ = table5.train(table5.SHAPES[name], 120)
    generator = torch.Generator().manual_seed(1)
    asked = made.representations[torch.randperm(len(made.representations), generator=generator)[:96]]
    asked = asked + 0.3 * torch.randn(asked.shape, generator=generator)
    return made.similarity, made.queries(asked), made.index


def measure(
    record: Record, name: str, similarity: Any, query: QueryState, items: ItemState, sample: QueryState | None
) -> None:
    scorer = similarity.prepared()
    scores = scores_of_all(scorer, query, items)
    facts = {"run": name, "num_items": len(items), "components": list(scorer.num_components)}
    plain, fitted = ByComponents(similarity, items), None
    if sample is not None:
        rows = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:NUM_SAMPLED]
        made = fit_surrogate(SurrogateConfig(kind="ridge"), scorer, sample, take(items, rows), seed=0)
        vectors = replace(items, surrogate=made.items(scorer, items))
        fitted = ByComponents(similarity, vectors, surrogate=lambda own: made.queries(scorer, own))
    for k in (10, 100):
        best, spec = select(scores, k).item_rows, SearchSpec(k)
        _, times = timed(partial(without_floor, plain, spec), query)
        record.row(**facts, method="brute_force", k=k, recall=1.0, has_floor=False, **times)
        print(f"{name} brute_force without a floor {times}", flush=True)
        for method, own, params, asked in methods(k, plain, fitted):
            found, times = timed(partial(search, own, spec, method, params), query)
            rows = torch.cat([one.item_rows for one in found])
            share = float((rows[:, :, None] == best[: len(rows), None]).any(dim=1).float().mean())
            scored = float(torch.cat([one.num_scored for one in found]).float().mean())
            starts_at = "surrogate" if own is fitted else "average"
            told = {"method": method, "k": k, "recall": share, "num_scored": scored, "starts_at": starts_at}
            record.row(**facts, **told, **asked, **times)
            shown = ", ".join(f"{key} {value:.3f}" for key, value in times.items())
            print(
                f"{name} {method} {asked} {starts_at} recall@{k} {share:.3f}, {scored:.0f} scored, {shown}",
                flush=True,
            )
        for num, value, asked in mean_gates(similarity, query, items, scores, k):
            record.row(**facts, method="mean gates", k=k, num_candidates=num, recall=value, **asked)
            print(f"{name} mean gates {asked} recall@{k} {value:.3f} with {num} candidates", flush=True)


def without_floor(own: ByComponents, spec: SearchSpec, query: QueryState) -> SearchResult:
    return own.brute_force.search(query, spec)


def search(own: ByComponents, spec: SearchSpec, method: str, params: SearchParams, query: QueryState) -> SearchResult:
    return own.search(query, spec, method, params)


def methods(
    k: int, plain: ByComponents, fitted: ByComponents | None
) -> Iterator[tuple[str, ByComponents, SearchParams, dict[str, int]]]:
    """(Method, items, widths, the widths that it reads) of each row."""
    yield "brute_force", plain, SearchParams(), {}
    for num in CANDIDATES[k]:
        yield "average", plain, SearchParams(num_candidates=num), {"num_candidates": num}
        for rounds in ROUNDS:
            asked = {"num_candidates": num, "num_rounds": rounds}
            for own in (plain, fitted):
                if own is not None:
                    yield "gated", own, SearchParams(**asked), asked
        if fitted is not None:
            yield "surrogate", fitted, SearchParams(num_candidates=num), {"num_candidates": num}
    for num in PER_EMBEDDING[k]:
        yield "per_embedding", plain, SearchParams(num_per_embedding=num), {"num_per_embedding": num}
        both = {"num_per_embedding": num, "num_candidates": 4 * num}
        yield "combined", plain, SearchParams(**both), both


def timed(ask: Callable[[QueryState], SearchResult], query: QueryState) -> tuple[list[SearchResult], dict[str, float]]:
    """Answers in batches of 32, and the median milliseconds a query of each size of batch."""
    times, answers = {}, []
    for size in BATCHES:
        num = len(query) // size * size if size > 1 else NUM_SINGLE
        parts = [take(query, slice(first, first + size)) for first in range(0, num, size)]
        found = [ask(part) for part in parts]
        answers = answers or found
        runs_ms = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            for part in parts:
                ask(part)
            runs_ms.append((time.perf_counter() - started) * 1000 / num)
        times[f"ms_{size}"] = statistics.median(runs_ms)
    return answers, times


def mean_gates(
    similarity: Any, query: QueryState, items: ItemState, scores: Tensor, k: int
) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """(Candidates, recall, how) of the first form of `gated`."""
    for m in FIRST:
        for factor in FACTORS:
            estimated = query.average @ items.average.T
            for rounds in (1, 2):
                first = similarity(query, take(replace(items, average=None), estimated.topk(m, dim=1).indices))
                shares = torch.softmax(first.scores / (factor * similarity.temperature), dim=1)
                estimated = weighted(query, (shares[:, :, None] * first.gates).sum(dim=1)) @ items.together().T
                for num in CANDIDATES[k]:
                    yield num, recall(estimated, scores, k, num), {"m": m, "factor": factor, "num_rounds": rounds}


def encoded(model: Any, inputs: Any, num_queries: int, seed: int) -> Any:
    """Some queries, at random."""
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:num_queries].numpy()
    return concatenate([batch for _, batch in query_batches(model, inputs.take(rows))])


def recall(estimated: Tensor, scores: Tensor, k: int, num_candidates: int) -> float:
    """The share of the k best items that are among the candidates."""
    rows = estimated.topk(min(num_candidates, estimated.shape[1]), dim=1).indices
    is_candidate = torch.zeros_like(estimated, dtype=torch.bool).scatter(1, rows, True)
    return float(is_candidate.gather(1, scores.topk(k, dim=1).indices).float().mean())


if __name__ == "__main__":
    main(sys.argv[1:])
