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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jobs.benches import solar_search
from jobs.benches.record import Record
from jobs.benches.solar_models import (
    MOST_QUERIES,
    as_printed,
    by_method,
    dual_encoder,
    first_chunks,
    measured,
    seen_items,
    tf_idf,
    train_solar,
    zero_shot,
)
from rails_ray import on_ray
from rails_ray.families.config import DataConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.recipes import by_name
from rails_ray.families.solar.train import SolarTraining
from rails_ray.modules.quantizers import random_codes
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.resources import TrainResources
from rails_ray.storage.filesystem import Storage


def main_quality(record: Record, arguments: argparse.Namespace) -> None:
    folder = DataConfig(folder=str(arguments.folder / arguments.data))
    for seed in arguments.seeds:
        base = replace(by_name("text-solar"), seed=seed, data=folder)
        base = replace(base, training=replace(base.training, num_steps=arguments.steps or base.training.num_steps))
        encoder = SolarTraining.of(base).own.encoder
        on_queries = train_solar(base.with_family(encoder=replace(encoder, reads_items=False)))
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
        encoder = SolarTraining.of(base).own.encoder
        num_items = len(read_data(base, Storage(".")).item_ids)
        for method, sizes in {
            "SOLAR": {"num_chunks": 16, "num_buckets": min(encoder.num_buckets, num_items)},
            "classifier": {"num_chunks": 1, "num_buckets": num_items},
        }.items():
            for seed in arguments.seeds:
                trained = train_solar(replace(base, seed=seed).with_family(encoder=replace(encoder, **sizes)))
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
    encoder = SolarTraining.of(base).own.encoder
    for num_buckets in (1000, 2000, 5000):
        trained = train_solar(base.with_family(encoder=replace(encoder, num_buckets=num_buckets)))
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
                    train_s=trained.seconds * num_chunks / encoder.num_chunks,
                    **measured(search, queries, is_seen),
                )


def main_workers(record: Record, arguments: argparse.Namespace) -> None:
    base = replace(by_name("text-solar"), data=DataConfig(folder=str(arguments.folder / "tldr")))
    encoder = SolarTraining.of(base).own.encoder
    with cluster(num_cpus=4), tempfile.TemporaryDirectory() as storage:
        for backend in ("tasks", "ray_train"):
            for num_chunks, at_once in ((1, 1), (4, 1), (4, 2)):
                config = replace(
                    base.with_family(encoder=replace(encoder, num_chunks=num_chunks)),
                    training=replace(base.training, num_steps=arguments.steps or 400),
                )
                started = time.perf_counter()
                run = on_ray.train(
                    config,
                    storage,
                    run=f"{backend}-{num_chunks}-{at_once}",
                    num_workers=at_once,
                    placing=TrainResources(backend=backend),
                )
                record.row(
                    question="workers",
                    backend=backend,
                    num_chunks=num_chunks,
                    at_once=at_once,
                    seconds=time.perf_counter() - started,
                    chunk_seconds=[piece["seconds"] for piece in run.training["pieces"]],
                    steps=config.training.num_steps,
                )


def main_load(record: Record, arguments: argparse.Namespace) -> None:
    generator = np.random.default_rng(0)
    for name in ("tldr", "wordnet"):
        base = replace(by_name("text-solar"), data=DataConfig(folder=str(arguments.folder / name)))
        data = read_data(base, Storage("."))
        encoder = SolarTraining.of(for_data(base, data)).own.encoder
        item_ids: Any = data.item_ids
        num_new = len(item_ids) // 5
        for kind in ("balanced", "hashed"):
            config = base.with_family(encoder=replace(encoder, codes=kind))
            known = SolarTraining.of(config).codes(item_ids)
            kept = sorted(generator.permutation(len(item_ids))[num_new:].tolist())
            new_ids = [f"new-{number}" for number in range(num_new)]
            churned: Any = [*(item_ids[row] for row in kept), *new_ids]
            if kind == "balanced":
                after = SolarTraining.of(config).codes_of(known, churned)[0].codes
            else:
                after = SolarTraining.of(config).codes(churned).codes
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
