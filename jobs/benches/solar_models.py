"""What `jobs.benches.solar` compares: SOLAR and its baselines, trained and asked in this process."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from jobs.benches.record import quiet
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import Queries
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.solar.model import Solar, predicted_buckets
from rails_ray.families.solar.train import SolarTraining
from rails_ray.modules.quantizers.item_codes import ItemCodes
from rails_ray.modules.similarities.states import Codes, Tables
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.inverted import InvertedIndex, top_buckets
from rails_ray.search.searcher import ByCodes, ByComponents
from rails_ray.search.spec import SearchSpec
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.metrics import attainable_precision, precision, recall_of_relevant
from rails_ray.training.loop import train

K = 100  # items of a list
BATCH_SIZE = 32  # queries of a search, and of a timing
MOST_QUERIES = 3000  # of the test split
STEPS_TIMED = 100  # of a dual encoder, before it is known how many fit into the time

Search = Callable[[Queries], Tensor]
"""Queries to the item rows of their K best, -1 where there is none [Q, K]."""


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
    data = read_data(config, Storage("."))
    config = for_data(config, data)
    codes = SolarTraining.of(config).codes(data.item_ids)
    chunks, recalls, started = {}, [], time.perf_counter()
    for number in track(
        range(SolarTraining.of(config).own.encoder.num_chunks),
        f"{config.name} on {Path(config.data.folder or '').name}",
    ):
        queries = SolarTraining.of(config).training_queries(data)
        chunk = SolarTraining.of(config).chunk(number, float(queries.relevant.lengths.mean()))
        own = SolarTraining.of(config).chunk_training(chunk, data, codes.codes[:, number])
        train(own.step, own.sampler.batch, config.training, seed=[chunk.seed], report=quiet)
        chunks[number] = chunk
        recalls.append(own.bucket_recall())
    seconds = time.perf_counter() - started
    model = SolarTraining.of(config).solar(chunks)
    return Trained(config, data, model, codes, seconds, float(np.mean(recalls)))


def tables_of(model: Solar, queries: Queries) -> Tables:
    with torch.no_grad():
        tables: Tables = model.encode_queries(model.query_features(queries.inputs))
    return tables


def by_method(trained: Trained, codes: ItemCodes, method: str, num_probes: int = K) -> Search:
    """A search of the product."""
    searcher = ByCodes(trained.model.similarity, Codes(torch.from_numpy(codes.codes)))
    made = searcher.retriever(method, SearchParams(num_candidates=max(1000, K), num_probes=num_probes))

    def search(queries: Queries) -> Tensor:
        found = made.search(tables_of(trained.model, queries), SearchSpec(K))
        return found.item_rows.masked_fill(found.scores == -torch.inf, -1)

    return search


def as_printed(trained: Trained, num_probes: int) -> Search:
    """The paper's own sum, in which chunks that do not post an item count as 0."""
    index = InvertedIndex(torch.from_numpy(trained.codes.codes), trained.model.config.num_buckets)

    def search(queries: Queries) -> Tensor:
        buckets, values = top_buckets(tables_of(trained.model, queries).tables, num_probes)
        found = index.candidates(buckets, values, K).top_k
        return found.item_rows.masked_fill(found.scores == -torch.inf, -1)

    return search


def zero_shot(trained: Trained, is_seen: NDArray[np.bool_]) -> ItemCodes:
    """The codes, those of items that training did not see chosen by what is predicted for their texts."""
    rows = np.flatnonzero(~is_seen)
    predicted = predicted_buckets(trained.model, [str(trained.data.item_inputs[row]) for row in rows])
    return SolarTraining.of(trained.config).with_predicted(trained.codes, rows[predicted.is_known], predicted)


def dual_encoder(recipe: str, config: DataConfig, seed: int, seconds: float) -> tuple[Search, int, float, int]:
    """One trained for so many seconds: its search, steps, seconds, and bytes of an item."""

    def run(num_steps: int) -> tuple[Any, DataSet, float, float]:
        base = by_name(recipe)
        own = replace(base, seed=seed, data=config, training=replace(base.training, num_steps=num_steps))
        data = read_data(own, Storage("."))
        started = time.perf_counter()
        model = DualEncoderTraining.of(own).model()
        step = DualEncoderTraining.of(own).training_step(model, lambda tensor: tensor)
        sampler = DualEncoderTraining.of(own).sampler(model, data)
        of_steps = train(step, sampler.batch, own.training, seed=[seed], report=quiet).seconds
        return model.eval(), data, time.perf_counter() - started, of_steps

    run(1)  # what is made and compiled once
    _, _, took, of_steps = run(STEPS_TIMED)
    num_steps = int((seconds - (took - of_steps)) / of_steps * STEPS_TIMED)
    model, data, took, _ = run(num_steps)
    items = encode_items(model, model.item_features(data.item_inputs))
    searcher = ByComponents(model.similarity, items)

    def search(queries: Queries) -> Tensor:
        with torch.no_grad():
            state = model.encode_queries(model.query_features(queries.inputs))
        return searcher.search(state, SearchSpec(K)).item_rows

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
    return Queries(queries.inputs.take(numbers), queries.relevant.take(numbers))


def seen_items(data: DataSet) -> NDArray[np.bool_]:
    is_seen = np.zeros(len(data.item_ids), dtype=bool)
    is_seen[data.queries["train"].relevant.rows] = True
    return is_seen


def first_chunks(trained: Trained, num_chunks: int) -> Trained:
    """The same with some of its chunks, which know nothing of the others."""
    encoder = SolarTraining.of(trained.config).own.encoder
    config = trained.config.with_family(encoder=replace(encoder, num_chunks=num_chunks))
    chunks: Any = {number: trained.model.chunks[f"{number:03d}"] for number in range(num_chunks)}
    model = SolarTraining.of(config).solar(chunks)
    codes = ItemCodes(trained.codes.item_ids, trained.codes.codes[:, :num_chunks])
    return replace(trained, config=config, model=model, codes=codes)
