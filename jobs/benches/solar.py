"""How good are SOLAR's random codes, and what do they cost?

    python -m jobs.benches.solar quality --folder DATA --data tldr [--seeds 0 1 2] [--steps 1000]
    python -m jobs.benches.solar extreme --folder DATA
    python -m jobs.benches.solar ablation --folder DATA
    python -m jobs.benches.solar workers --folder DATA
    python -m jobs.benches.solar load --folder DATA
    python -m jobs.benches.solar search

TF-IDF needs scikit-learn: `pip install -e '.[bench]'`.

Held fixed: the recipes' models, the test queries, all cores; training time is that of all chunks one after the other.

`quality`: SOLAR against a dual encoder of the same inputs (words and n-grams), with and without GLaS, each trained for
as long as all chunks took, and TF-IDF over items and over items with their training queries. Queries with a relevant
item that was an answer in training (seen) apart from the others. SOLAR, as the dual encoder, reads the items' texts in
training; trained on `queries alone`, as in the paper, it cannot name an unseen item, unless its code is chosen by what
is predicted for its text (`zero-shot`). A yes: P@1 of SOLAR on seen items at least that of the dual encoder.
`extreme`: Delicious and Bibtex, P@1, P@3, P@5 by both divisors, beside a plain classifier of the same size (one chunk
with a bucket for each label). A yes: at least as good as the classifier.
`ablation`: buckets and chunks (the paper's Table 4, m = 25). A yes: more of both help.
`workers`: all chunks of a small run against one chunk alone, start-up included, one and two at once. A yes: within 15%
of K times one alone, and faster by two.
`search`: what a search costs at 1.67 million items; `jobs.benches.solar_search`, which has options of its own.
`load`: items of a bucket when codes are drawn and after 20% of the items were replaced. A yes: at most 1 apart at
first, and max/mean at most 1.15 after.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from jobs.benches import solar_search
from jobs.benches.record import Record
from rails_ray import build, build_chunks, on_ray
from rails_ray.config import DataConfig, RunConfig
from rails_ray.data.dataset import DataSet, Queries
from rails_ray.encoders.solar import Solar, SolarConfig, predicted_buckets
from rails_ray.evaluation.metrics import attainable_precision, precision, recall_of_relevant
from rails_ray.evaluation.ranking import encode_items
from rails_ray.indexes.inverted import InvertedIndex, top_buckets
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.placing import Placing
from rails_ray.quantizers import random_codes
from rails_ray.recipes import by_name
from rails_ray.similarities.states import Tables
from rails_ray.storage.codes import ItemCodes
from rails_ray.storage.filesystem import Storage
from rails_ray.training.loop import train

K = 100  # items of a list
BATCH_SIZE = 32  # queries of a search, and of a timing
MOST_QUERIES = 3000  # of the test split
STEPS_TIMED = 30  # of a dual encoder, before it is known how many fit into the time

Search = Callable[[Queries], Tensor]
"""Queries to the item rows of their K best, -1 where there is none [Q, K]."""


def quiet(done: int, loss: float) -> None:
    """Progress that nobody reads."""


@dataclass(frozen=True)
class Trained:
    """SOLAR, with what training it took."""

    config: RunConfig
    data: DataSet
    model: Solar
    codes: ItemCodes
    seconds: float
    bucket_recall: float


def train_solar(config: RunConfig) -> Trained:
    """All chunks, one after the other in this process."""
    data = build.data(config, Storage("."))
    config = build.for_data(config, data)
    assert isinstance(config.encoder, SolarConfig)
    codes = build_chunks.codes(config, data.item_ids)
    chunks, recalls, started = {}, [], time.perf_counter()
    for number in track(range(config.encoder.num_chunks), f"{config.name} on {Path(config.data.folder or '').name}"):
        queries = build_chunks.training_queries(config, data)
        chunk = build_chunks.chunk(config, number, float(queries.relevant.lengths.mean()))
        chunk.learn(queries.inputs)
        own = build_chunks.chunk_training(chunk, config, data, codes.codes[:, number])
        train(own.step, own.sampler.batch, config.training, seed=[chunk.seed], report=quiet)
        chunks[number] = chunk
        recalls.append(own.bucket_recall())
    seconds = time.perf_counter() - started
    model = build_chunks.solar(config, chunks)
    return Trained(config, data, model, codes, seconds, float(np.mean(recalls)))


def tables_of(model: Solar, queries: Queries) -> Tables:
    with torch.no_grad():
        tables: Tables = model.encode_queries(model.query_features(queries.inputs))
    return tables


def by_method(trained: Trained, codes: ItemCodes, method: str, num_probes: int = K) -> Search:
    """A search of the product."""
    num_items = len(codes.item_ids)
    indexes = build.code_indexes(trained.model.similarity, codes.state)
    made = build.retriever(
        method,
        trained.model.similarity,
        codes.state,
        max(1000, K),
        K,
        num_probes,
        indexes,
    )

    def search(queries: Queries) -> Tensor:
        found = made.search(tables_of(trained.model, queries), min(K, num_items)).top_k
        return found.item_rows.masked_fill(found.scores == -torch.inf, -1)

    return search


def as_printed(trained: Trained, num_probes: int) -> Search:
    """The paper's own sum, in which chunks that do not post an item count as 0."""
    index = InvertedIndex(trained.codes.state.codes, trained.model.config.num_buckets)

    def search(queries: Queries) -> Tensor:
        buckets, values = top_buckets(tables_of(trained.model, queries).tables, num_probes)
        found = index.candidates(buckets, values, K).top_k
        return found.item_rows.masked_fill(found.scores == -torch.inf, -1)

    return search


def zero_shot(trained: Trained, is_seen: NDArray[np.bool_]) -> ItemCodes:
    """The codes, those of items that training did not see chosen by what is predicted for their texts."""
    rows = np.flatnonzero(~is_seen)
    predicted = predicted_buckets(trained.model, [str(trained.data.item_inputs[row]) for row in rows])
    return build_chunks.with_predicted(trained.config, trained.codes, rows[predicted.is_known], predicted)


def dual_encoder(recipe: str, config: DataConfig, seed: int, seconds: float) -> tuple[Search, int, float, int]:
    """One trained for so many seconds: its search, steps, seconds, and bytes of an item."""

    def run(num_steps: int) -> tuple[Any, DataSet, float]:
        base = by_name(recipe)
        own = replace(base, seed=seed, data=config, training=replace(base.training, num_steps=num_steps))
        data = build.data(own, Storage("."))
        started = time.perf_counter()
        model = build.model(own)
        step = build.training_step(model, own, lambda tensor: tensor)
        sampler = build.sampler(own, model, data)
        train(step, sampler.batch, own.training, seed=[seed], report=quiet)
        return model.eval(), data, time.perf_counter() - started

    _, _, few = run(STEPS_TIMED)
    _, _, more = run(2 * STEPS_TIMED)
    num_steps = 2 * STEPS_TIMED + int((seconds - more) / (more - few) * STEPS_TIMED)
    model, data, took = run(num_steps)
    items = encode_items(model, model.item_features(data.item_inputs))
    made = build.retriever("brute_force", model.similarity, items, K, K)

    def search(queries: Queries) -> Tensor:
        with torch.no_grad():
            state = model.encode_queries(model.query_features(queries.inputs))
        return made.search(state, K).top_k.item_rows

    return search, num_steps, took, items.components[0].numel() * 4


def tf_idf(data: DataSet, *, with_queries: bool) -> tuple[Search, float, float]:
    """Cosine of word and bigram TF-IDF: its search, seconds to fit, and bytes of an item on average."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    started = time.perf_counter()
    documents = [str(text) for text in data.item_inputs]
    if with_queries:
        known = data.queries["train"]
        for number, text in enumerate(known.inputs):
            for row in known.relevant[number]:
                documents[row] += f"\n{text}"
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32)
    items = vectorizer.fit_transform(documents)
    took = time.perf_counter() - started

    def search(queries: Queries) -> Tensor:
        scores = torch.from_numpy((vectorizer.transform(queries.inputs) @ items.T).toarray())
        return scores.topk(K, dim=1).indices

    return search, took, (items.data.nbytes + items.indices.nbytes) / len(documents)


def measured(search: Search, queries: Queries, is_seen: NDArray[np.bool_]) -> dict[str, Any]:
    """Quality by whether a relevant item was seen, and milliseconds per query."""
    search(queries.head(BATCH_SIZE))
    found, started = [], time.perf_counter()
    for first in range(0, len(queries), BATCH_SIZE):
        found.append(search(part_of(queries, np.arange(first, min(first + BATCH_SIZE, len(queries))))))
    took = time.perf_counter() - started
    rows = torch.cat(found).numpy()
    is_relevant = np.stack([np.isin(line, own) for line, own in zip(rows, queries.relevant, strict=True)])
    knows = np.array([is_seen[own].any() for own in queries.relevant])
    groups = {"all": np.full(len(queries), True), "seen": knows, "unseen": ~knows}
    return {"ms_per_query": 1000 * took / len(queries)} | {
        name: quality(is_relevant[of], queries.relevant.lengths[of]) for name, of in groups.items() if of.any()
    }


def quality(is_relevant: NDArray[np.bool_], num_relevant: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "queries": len(num_relevant),
        **{f"P@{k}": precision(is_relevant, k) for k in (1, 3, 5, 10)},
        **{f"P@{k} of min": attainable_precision(is_relevant, num_relevant, k) for k in (1, 3, 5, 10)},
        "R@100": recall_of_relevant(is_relevant, num_relevant, 100),
    }


def part_of(queries: Queries, numbers: NDArray[np.int64]) -> Queries:
    inputs: Any = queries.inputs
    taken = [inputs[number] for number in numbers] if isinstance(inputs, list) else _taken(inputs, numbers)
    return Queries(taken, queries.relevant.take(numbers))


def _taken(inputs: Any, numbers: NDArray[np.int64]) -> Any:
    return inputs.take(numbers) if hasattr(inputs, "width") else inputs[numbers]


def seen_items(data: DataSet) -> NDArray[np.bool_]:
    is_seen = np.zeros(len(data.item_ids), dtype=bool)
    is_seen[data.queries["train"].relevant.rows] = True
    return is_seen


def main_quality(record: Record, arguments: argparse.Namespace) -> None:
    folder = DataConfig(folder=str(arguments.folder / arguments.data))
    for seed in arguments.seeds:
        base = replace(by_name("text-solar"), seed=seed, data=folder)
        base = replace(base, training=replace(base.training, num_steps=arguments.steps or base.training.num_steps))
        assert isinstance(base.encoder, SolarConfig)
        on_queries = train_solar(replace(base, encoder=replace(base.encoder, reads_items=False)))
        trained = train_solar(base)
        data, is_seen = trained.data, seen_items(trained.data)
        queries = data.queries["test"].head(MOST_QUERIES)
        row = partial(record.row, question="quality", data=arguments.data, seed=seed, items=len(data.item_ids))
        searches = {
            "SOLAR full": (trained, by_method(trained, trained.codes, "brute_force")),
            "SOLAR m=100": (trained, by_method(trained, trained.codes, "inverted", 100)),
            "SOLAR m=50": (trained, by_method(trained, trained.codes, "inverted", 50)),
            "SOLAR m=100 as printed": (trained, as_printed(trained, 100)),
            "SOLAR m=50 as printed": (trained, as_printed(trained, 50)),
            "SOLAR full, queries alone": (on_queries, by_method(on_queries, on_queries.codes, "brute_force")),
            "SOLAR full, queries alone, zero-shot": (
                on_queries,
                by_method(on_queries, zero_shot(on_queries, is_seen), "brute_force"),
            ),
        }
        for method, (its, search) in searches.items():
            row(
                method=method,
                train_s=its.seconds,
                bytes_per_item=its.codes.codes[0].nbytes,
                steps=base.training.num_steps,
                bucket_recall=its.bucket_recall,
                **measured(search, queries, is_seen),
            )
        for recipe, method in (("text-dot", "dual encoder"), ("text-dot-glas", "dual encoder + GLaS")):
            search, steps, took, size = dual_encoder(recipe, folder, seed, trained.seconds)
            row(method=method, train_s=took, bytes_per_item=size, steps=steps, **measured(search, queries, is_seen))
        for method, with_queries in (("TF-IDF", False), ("TF-IDF with training queries", True)):
            search, took, mean_size = tf_idf(data, with_queries=with_queries)
            row(method=method, train_s=took, bytes_per_item=mean_size, **measured(search, queries, is_seen))


def main_extreme(record: Record, arguments: argparse.Namespace) -> None:
    for name in ("delicious", "bibtex"):
        folder = DataConfig(folder=str(arguments.folder / name))
        base = replace(by_name("features-solar"), data=folder)
        assert isinstance(base.encoder, SolarConfig)
        num_items = len(build.data(base, Storage(".")).item_ids)
        for method, sizes in {
            "SOLAR": {"num_chunks": 16, "num_buckets": min(base.encoder.num_buckets, num_items)},
            "classifier": {"num_chunks": 1, "num_buckets": num_items},
        }.items():
            for seed in arguments.seeds:
                trained = train_solar(replace(base, seed=seed, encoder=replace(base.encoder, **sizes)))
                is_seen, queries = seen_items(trained.data), trained.data.queries["test"].head(MOST_QUERIES)
                probes = min(25, sizes["num_buckets"])
                for way, search in {
                    "full": by_method(trained, trained.codes, "brute_force"),
                    f"m={probes}": by_method(trained, trained.codes, "inverted", probes),
                }.items():
                    found = measured(search, queries, is_seen)
                    record.row(
                        question="extreme",
                        data=name,
                        method=f"{method} {way}",
                        seed=seed,
                        items=num_items,
                        train_s=trained.seconds,
                        bucket_recall=trained.bucket_recall,
                        **sizes,
                        **found,
                    )


def main_ablation(record: Record, arguments: argparse.Namespace) -> None:
    base = replace(by_name("text-solar"), data=DataConfig(folder=str(arguments.folder / "tldr")))
    assert isinstance(base.encoder, SolarConfig)
    for num_buckets in (1000, 2000, 5000):
        trained = train_solar(replace(base, encoder=replace(base.encoder, num_buckets=num_buckets)))
        is_seen, queries = seen_items(trained.data), trained.data.queries["test"].head(MOST_QUERIES)
        for num_chunks in (4, 8, 16):
            first = first_chunks(trained, num_chunks)
            for way, search in {
                "full": by_method(first, first.codes, "brute_force"),
                "m=25": by_method(first, first.codes, "inverted", 25),
            }.items():
                record.row(
                    question="ablation",
                    data="tldr",
                    method=way,
                    num_buckets=num_buckets,
                    num_chunks=num_chunks,
                    train_s=trained.seconds * num_chunks / base.encoder.num_chunks,
                    **measured(search, queries, is_seen),
                )


def first_chunks(trained: Trained, num_chunks: int) -> Trained:
    """The same with some of its chunks, which know nothing of the others."""
    encoder: Any = trained.config.encoder
    config = replace(trained.config, encoder=replace(encoder, num_chunks=num_chunks))
    chunks: Any = {number: trained.model.chunks[f"{number:03d}"] for number in range(num_chunks)}
    model = build_chunks.solar(config, chunks)
    codes = ItemCodes(trained.codes.item_ids, trained.codes.codes[:, :num_chunks])
    return replace(trained, config=config, model=model, codes=codes)


def main_workers(record: Record, arguments: argparse.Namespace) -> None:
    base = replace(by_name("text-solar"), data=DataConfig(folder=str(arguments.folder / "tldr")))
    assert isinstance(base.encoder, SolarConfig)
    with cluster(num_cpus=4), tempfile.TemporaryDirectory() as storage:
        for backend in ("tasks", "ray_train"):
            for num_chunks, at_once in ((1, 1), (4, 1), (4, 2)):
                config = replace(
                    base,
                    encoder=replace(base.encoder, num_chunks=num_chunks),
                    training=replace(base.training, num_steps=arguments.steps or 400),
                )
                started = time.perf_counter()
                run = on_ray.train(
                    config,
                    storage,
                    run=f"{backend}-{num_chunks}-{at_once}",
                    num_workers=at_once,
                    placing=Placing(backend=backend),
                )
                record.row(
                    question="workers",
                    backend=backend,
                    num_chunks=num_chunks,
                    at_once=at_once,
                    seconds=time.perf_counter() - started,
                    chunk_seconds=[chunk["seconds"] for chunk in run.training["chunks"]],
                    steps=config.training.num_steps,
                )


def main_load(record: Record, arguments: argparse.Namespace) -> None:
    generator = np.random.default_rng(0)
    for name in ("tldr", "wordnet"):
        base = replace(by_name("text-solar"), data=DataConfig(folder=str(arguments.folder / name)))
        data = build.data(base, Storage("."))
        encoder: Any = build.for_data(base, data).encoder
        item_ids: Any = data.item_ids
        num_new = len(item_ids) // 5
        for kind in ("balanced", "hashed"):
            config = replace(base, encoder=replace(encoder, codes=kind))
            known = build_chunks.codes(config, item_ids)
            kept = sorted(generator.permutation(len(item_ids))[num_new:].tolist())
            new_ids = [f"new-{number}" for number in range(num_new)]
            churned: Any = [*(item_ids[row] for row in kept), *new_ids]
            if kind == "balanced":
                after = build_chunks.codes_of(config, known, churned)[0].codes
            else:
                after = build_chunks.codes(config, churned).codes
            for when, codes in (("at first", known.codes), ("after 20% churn", after)):
                loads = random_codes.loads(codes, encoder.num_buckets)
                record.row(
                    question="load",
                    data=name,
                    codes=kind,
                    when=when,
                    items=len(codes),
                    num_buckets=encoder.num_buckets,
                    most_apart=int((loads.max(axis=1) - loads.min(axis=1)).max()),
                    max_over_mean=float((loads.max(axis=1) / loads.mean(axis=1)).max()),
                    histogram=np.bincount(loads.reshape(-1)).tolist(),
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    questions = {
        "quality": main_quality,
        "extreme": main_extreme,
        "ablation": main_ablation,
        "workers": main_workers,
        "load": main_load,
    }
    parser.add_argument("question", choices=[*questions, "search"])
    parser.add_argument("--folder", type=Path, help="holds tldr, wordnet, delicious, bibtex; of all but search")
    parser.add_argument("--data", choices=("tldr", "wordnet"), default="tldr")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="of a chunk; by default the recipe's")
    arguments = parser.parse_args()
    if arguments.question == "search":
        solar_search.main(solar_search.Arguments())
        return
    if arguments.folder is None:
        parser.error("--folder must be given, the one that holds the data sets, got none")
    questions[arguments.question](Record("solar"), arguments)


if __name__ == "__main__":
    main()
