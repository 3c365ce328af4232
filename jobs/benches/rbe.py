"""Does what a heavy ranker says of a few supports find its best items, and at how many calls is it worth them?

    python -m jobs.benches.rbe fill STORAGE [NAME ..]        data sets, rankers and matrices, resumable (hours)
    python -m jobs.benches.rbe supports STORAGE [NAME ..]    Tables 1 and 11: selections, AnnCUR, HitRate(100)
    python -m jobs.benches.rbe trained STORAGE [NAME ..]     Table 2: RBE beside AnnCUR; its time to 98% of its best
    python -m jobs.benches.rbe calls STORAGE [NAME ..]       Tables 3 and 5: a dual encoder and AXN at EQUAL total calls
    python -m jobs.benches.rbe categories STORAGE [NAME ..]  Table 10: genres of films from item vectors
    python -m jobs.benches.rbe indexes STORAGE [NAME ..]     recall of FAISS's indexes of RBE's vectors
    python -m jobs.benches.rbe latency STORAGE NAME          a query with 300 calls against ranking every item, in ms;
                                                             training's seconds and memory (nothing else may run)
    python -m jobs.benches.rbe greedy                        seconds of l2-greedy at the source's size

Held fixed: 100 supports, K = 100, three seeds, splits of queries (`rbe_data`), the product's own defaults. The dual
encoder has the same matrix, loss and early stopping (`rbe_models`). A yes would be: l2-greedy best on most; RBE above
AnnCUR; RBE at 300 calls in all at least level with the dual encoder on two data sets.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs.benches import rbe_data
from jobs.benches.rbe_models import NUM_BEST, TRAINING, Matrix, after_calls, anncur, axn, dual_encoder, head, hits, rbe
from jobs.benches.record import Record
from rails_ray import on_ray
from rails_ray.on_ray.cluster import cluster
from rails_ray.reranking.embedding import on_sphere
from rails_ray.reranking.l2_greedy import l2_greedy
from rails_ray.reranking.rankers import candidates_of
from rails_ray.reranking.rankers.calling import ranker_of, score_all
from rails_ray.reranking.supports import (
    ClusterSupports,
    FirstSupports,
    L2GreedySupports,
    MostDiverseSupports,
    PopularSupports,
    RandomSupports,
)
from rails_ray.schema.ranker import RankerConfig
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.spec import SearchSpec
from rails_ray.serving import local
from rails_ray.training.loop import Progress
from rails_ray.training.relevances import found_of_best

SEEDS = (0, 1, 2)
RANKERS = {
    "molecules": "molecules:MoleculeRanker",
    "syntax_trees": "syntax_trees:SyntaxTreeRanker",
    "ml_100k": "boosted:BoostedRanker",
    "ml_1m": "boosted:BoostedRanker",
    "tldr": "cross_encoder:CrossEncoderRanker",
    "scifact": "cross_encoder:CrossEncoderRanker",
}
CLUSTERS = (
    "k_means",
    "mini_batch_k_means",
    "bisecting_k_means",
    "agglomerative",
    "spectral_coclustering",
    "spectral_biclustering",
    "spectral_nearest_neighbors",
)
SELECTIONS: dict[str, Any] = {
    "random": RandomSupports(),
    "first": FirstSupports(),
    "popular": PopularSupports(),
    **{method: ClusterSupports(method=method) for method in CLUSTERS},
    "most_diverse": MostDiverseSupports(),
    "l2_greedy": L2GreedySupports(),
    "l2_greedy float32": L2GreedySupports(dtype="float32"),
}
SIZES = range(100, 1000, 100)
NUM_TIMED = 6  # queries of `latency`, the first of which only loads
MOST_QUERIES = 200  # test queries of `calls`: AXN keeps a matrix for each


def fill(storage: Path, names: list[str], data: Path) -> None:
    """What the other questions read. Interrupted, it goes on."""
    for name in names:
        folder = storage / "data" / name
        rbe_data.prepare(name, folder, data)
        ranker = ranker_config(storage, name)
        named = [f"--ranker.path={ranker.path}", *([f"--ranker.folder={ranker.folder}"] if ranker.folder else [])]
        asked = ["relevance", f"--storage={storage}", f"--name={name}", f"--folder={folder}", *named]
        subprocess.run([sys.executable, "-m", "rails_ray.cli", *asked, "--block-queries=4"], check=True)


def ranker_config(storage: Path, name: str) -> RankerConfig:
    """The ranker of a data set, with the folder that it was trained to."""
    folder = storage / "data" / name / "ranker"
    return RankerConfig(
        path=f"rails_ray.reranking.rankers.{RANKERS[name]}", folder=str(folder) if folder.exists() else ""
    )


def supports(matrix: Matrix, record: Record) -> None:
    """HitRate(100) of AnnCUR by how its supports were chosen."""
    relevance, num_items = matrix.relevance["test"], len(matrix.item_ids)
    for seed in SEEDS:
        for label, selection in SELECTIONS.items():
            for share in (1, 4, 8) if label in ("k_means", "l2_greedy") else (1,):
                few = 0 if share == 1 else max(num_items // share, 100)
                started = time.monotonic()
                try:
                    found, _ = anncur(matrix, seed, supports=selection, num_candidates=few)
                except ValueError as error:
                    print(f"{matrix.name} {label}: {error}")
                    continue
                seconds = time.monotonic() - started
                hit_rate = float(found_of_best(found.start, relevance, NUM_BEST, NUM_BEST).mean())
                record.row(
                    question="supports",
                    data=matrix.name,
                    selection=label,
                    share=share,
                    seed=seed,
                    hit_rate=hit_rate,
                    seconds=seconds,
                )
                print(f"{matrix.name:13s} {label:28s} 1/{share} seed {seed} {hit_rate:.4f} {seconds:.1f} s", flush=True)


def trained(matrix: Matrix, record: Record) -> None:
    """RBE beside AnnCUR, and a list of the items that are best on the mean."""
    relevance = matrix.relevance["test"]
    popular = matrix.relevance["train"].nanmean(dim=0).expand(len(relevance), -1)
    record.row(
        question="trained",
        data=matrix.name,
        model="popular",
        seed=0,
        hit_rate=float(found_of_best(popular, relevance, NUM_BEST, NUM_BEST).mean()),
    )
    for seed in SEEDS:
        for label in ("random", "k_means", "l2_greedy"):
            selection = SELECTIONS[label]
            for model, ridge in (("AnnCUR, pseudo-inverse", 0.0), ("AnnCUR", 0.001)):
                found, _ = anncur(matrix, seed, supports=selection, ridge=ridge)
                _told(record, matrix, f"{model} + {label}", seed, found, relevance)
            _told(record, matrix, f"RBE + {label}", seed, rbe(matrix, seed, supports=selection), relevance)


def _told(record: Record, matrix: Matrix, model: str, seed: int, found: Any, relevance: torch.Tensor) -> None:
    hit_rate = float(found_of_best(found.start, relevance, NUM_BEST, NUM_BEST).mean())
    reached, seconds = seconds_to_98(found.progress)
    record.row(
        question="trained",
        data=matrix.name,
        model=model,
        seed=seed,
        hit_rate=hit_rate,
        validations=[(one.step, one.value) for one in found.progress.validations],
        steps=len(found.progress.losses),
        seconds=found.progress.seconds,
        steps_to_98=reached,
        seconds_to_98=seconds,
        bytes_an_item=found.bytes_an_item,
    )
    print(f"{matrix.name:13s} {model:34s} seed {seed} {hit_rate:.4f} {found.progress.seconds:.0f} s", flush=True)


def calls(matrix: Matrix, record: Record) -> None:
    """HitRate at equal total calls: RBE spends 100 on supports, the others all on what they find."""
    relevance, num_items = matrix.relevance["test"][:MOST_QUERIES], len(matrix.item_ids)
    for seed in SEEDS:
        own, prepared = anncur(matrix, seed)
        rows = torch.tensor([matrix.item_ids.index(support.item_id) for support in prepared.module.supports])
        trained, encoder = head(rbe(matrix, seed), MOST_QUERIES), head(dual_encoder(matrix, seed), MOST_QUERIES)
        own = head(own, MOST_QUERIES)
        for size in SIZES:
            if size + 100 > num_items:
                break
            scored = {
                "RBE": after_calls(trained, size, rows),
                "RBE, its supports not answered": after_calls(trained, size),
                "AnnCUR": after_calls(own, size, rows),
                "AXN of RBE": axn(trained, relevance, size, rows),
                "dual encoder": after_calls(encoder, size + 100),
                "AXN of the dual encoder": axn(encoder, relevance, size + 100),
            }
            for table, spec in (("HR(K, 100)", NUM_BEST), ("HR(X, X)", size)):
                found = {label: hits(one, relevance, spec) for label, one in scored.items()}
                for label, values in found.items():
                    record.row(
                        question="calls",
                        data=matrix.name,
                        table=table,
                        calls=size + 100,
                        model=label,
                        seed=seed,
                        hit_rate=float(values.mean()),
                        deviation=float(values.std() / len(values) ** 0.5),
                    )
                told = ", ".join(f"{label} {float(values.mean()):.4f}" for label, values in found.items())
                print(f"{matrix.name} seed {seed} {table} at {size + 100} calls: {told}", flush=True)


def categories(matrix: Matrix, record: Record) -> None:
    """Genres of films by ridge regression from item vectors: the mean overlap (IoU) of as many as a film has."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import cross_val_predict

    if not matrix.name.startswith("ml_"):
        return
    own = rbe_data.read_genres(matrix.folder)
    for seed in SEEDS:
        selections = {"random": RandomSupports(), "k_means": ClusterSupports(), "l2_greedy": L2GreedySupports()}
        vectors = {label: anncur(matrix, seed, supports=one)[0].vectors[:, :100] for label, one in selections.items()}
        vectors["dual encoder"] = dual_encoder(matrix, seed).vectors[:, :-1]
        for label, found in vectors.items():
            scaled = (found - found.mean(dim=0)) / found.std(dim=0).clamp(min=1e-6)
            guessed = cross_val_predict(Ridge(10.0), scaled.numpy(), own, cv=5)
            overlap = []
            for line, truth in zip(guessed, own.astype(bool), strict=True):
                best = np.zeros_like(truth)
                best[np.argsort(-line)[: int(truth.sum())]] = True
                overlap.append((best & truth).sum() / max((best | truth).sum(), 1))
            record.row(question="categories", data=matrix.name, vectors=label, seed=seed, iou=float(np.mean(overlap)))
            print(f"{matrix.name} {label} seed {seed}: IoU {np.mean(overlap):.4f}", flush=True)


def indexes(matrix: Matrix, record: Record) -> None:
    """Recall@100 of FAISS's indexes of RBE's vectors, whose lengths differ, against a scan; and with Corollary A.1's
    map to vectors of length 1."""
    found = rbe(matrix, 0)
    radius = float(found.vectors.norm(dim=1).max())
    spaces = {
        "as they are": (found.queries, found.vectors),
        "on a sphere": (torch.nn.functional.pad(found.queries, (0, 1)), on_sphere(found.vectors, radius)),
    }
    best = found.start.topk(NUM_BEST, dim=1).indices
    kinds: dict[str, Any] = {"hnsw": HnswConfig(), "ivf": IvfConfig(nlist=32), "flat sq8": FlatConfig(storage="sq8")}
    for space, (queries, vectors) in spaces.items():
        for kind, made in kinds.items():
            index = FaissIndex.read(*build(fit(made, vectors, len(vectors), 0), [vectors]))
            for width in (64, 128, 256) if kind == "hnsw" else (4, 8, 16) if kind == "ivf" else (0,):
                params = SearchParams(ef_search=width or None, nprobe=width or None)
                rows = index.search(queries, SearchSpec(NUM_BEST), params).item_rows
                recall = float((best[:, :, None] == rows[:, None]).any(dim=2).float().mean())
                record.row(question="indexes", data=matrix.name, space=space, kind=kind, width=width, recall=recall)
                print(f"{matrix.name} {kind} {width} {space}: recall@100 {recall:.4f}", flush=True)


def latency(matrix: Matrix, record: Record) -> None:
    """A query of the product, in this process, with a budget of 300 calls, beside ranking every item; and what training
    takes. One data set a process, or its memory is not its own."""
    found = rbe(matrix, 0)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    named = ranker_config(matrix.folder.parent.parent, matrix.name)
    ranker = ranker_of(named)
    config = replace(matrix.config.with_family(ranker=named), training=TRAINING)
    items = candidates_of(matrix.item_ids, matrix.item_texts)
    with tempfile.TemporaryDirectory() as folder, cluster(3):
        on_ray.train(config, folder, run="rbe", num_workers=1)
        on_ray.publish(folder, on_ray.encode(folder, "rbe", num_shards=1).version)
        version = local.open(folder)
        times: dict[str, list[float]] = {"budget": [], "brute force": []}
        shares = []
        for text in matrix.texts["test"][:NUM_TIMED]:
            answers: dict[str, Any] = {}
            for what, ask in (
                ("budget", partial(version.search, [text], k=NUM_BEST, budget={"calls": 300})),
                ("brute force", partial(score_all, ranker, {"text": text}, items)),
            ):
                started = time.monotonic()
                answers[what] = ask()
                times[what].append(time.monotonic() - started)
            best = np.argsort(-answers["brute force"].scores, kind="stable")[:NUM_BEST]
            spec = {matrix.item_ids[row] for row in best}
            shares.append(len(spec & set(answers["budget"].results[0].items)) / NUM_BEST)
    milliseconds = {what: 1000 * statistics.median(seconds[1:]) for what, seconds in times.items()}
    record.row(
        question="latency",
        data=matrix.name,
        num_items=len(items),
        milliseconds=milliseconds,
        hit_rate=float(np.mean(shares)),
        training_s=found.progress.seconds,
        training_peak_mb=peak_mb,
        matrix_mb=4 * len(items) * len(matrix.relevance["train"]) / 2**20,
        bytes_an_item=found.bytes_an_item,
        seconds_to_98=seconds_to_98(found.progress)[1],
    )
    print(matrix.name, milliseconds, float(np.mean(shares)), f"{found.progress.seconds:.0f} s, {peak_mb:.0f} MB")


def seconds_to_98(progress: Progress) -> tuple[int, float]:
    """Steps, and about how many seconds, until validation was first at 98% of its best."""
    values = [(one.step, one.value) for one in progress.validations]
    best = max((value for _, value in values), default=0.0)
    reached = next((step for step, value in values if value >= 0.98 * best), 0)
    return reached, progress.seconds * reached / max(len(progress.losses), 1)


def greedy(record: Record) -> None:
    """Seconds of l2-greedy on one random matrix of the source's size."""
    relevance = torch.randn(10_031, 2_361, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        given = relevance.to(dtype)
        started = time.monotonic()
        l2_greedy(given, 100)
        seconds = time.monotonic() - started
        record.row(question="greedy", dtype=str(dtype), num_items=10_031, num_queries=2_361, seconds=seconds)
        print(f"l2-greedy, {dtype}: {seconds:.1f} s")


@dataclass(frozen=True)
class Asked:
    """What the command line asks."""

    question: str
    storage: Path
    names: list[str]


QUESTIONS = {
    "supports": supports,
    "trained": trained,
    "calls": calls,
    "categories": categories,
    "latency": latency,
    "indexes": indexes,
}


def main(arguments: list[str]) -> None:
    if arguments == ["greedy"]:
        greedy(Record("rbe"))
        return
    asked = parsed(arguments)
    if asked.question == "fill":
        fill(asked.storage, asked.names, rbe_data.source())
        return
    record = Record("rbe")
    for name in asked.names:
        QUESTIONS[asked.question](Matrix.load(name, asked.storage), record)


def parsed(arguments: list[str]) -> Asked:
    """Raises:
    SystemExit: with a sentence, if it is no question about known data sets.
    """
    questions = ["fill", *QUESTIONS]
    match arguments:
        case [question, storage, *names] if question in questions and set(names) <= RANKERS.keys():
            return Asked(question, Path(storage).absolute(), names or list(RANKERS))
    raise SystemExit(
        f"the arguments must be greedy, or one of {', '.join(questions)} with STORAGE and names among "
        f"{', '.join(RANKERS)}, got {' '.join(arguments) or 'none'}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
