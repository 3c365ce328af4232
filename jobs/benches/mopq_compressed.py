"""Compressed mixtures of `mopq`: what do codes of components keep of a trained Mixture of Logits, and at what price?

Axes: B queries, X items, P_X item components, d width of a component, M parts of a component.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from jobs.benches.indexes import in_turns
from jobs.benches.mopq_models import store
from jobs.benches.record import Record, quiet
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items import quantized
from rails_ray.families.vector_items.storing import PqItems
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate, take
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.spec import SearchSpec
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.loop import train
from rails_ray.training.piece import Given

K, NUM_QUERIES, TIMED = 100, 1024, 32
PARTS = (4, 8, 16, 32)  # of a component of 64 numbers; 32 are an eighth of its bytes
RESCORED = (100, 200, 500)


def main(folder: Path, storage: Path, repeats: int) -> None:
    """A row for each number of parts and each data set."""
    torch.set_num_threads(2)
    record, console = Record("mopq_compressed"), Console()
    for data, config in configs(folder).items():
        read = read_data(config, Storage(str(storage)))
        model = trained(for_data(config, read), read, Storage(str(storage)), f"{data}-mixture")
        for row in measured(model, read, config.seed, repeats):
            record.row(data=data, **row)
            console.print(data, row)


def configs(folder: Path) -> dict[str, RunConfig]:
    """The recipes' mixtures, of 4 x 2 and of 2 x 2 components of 64 numbers."""
    texts = by_name("text-mol").with_family(encoder=TwoTowerConfig(width=128, hidden=256, num_buckets=2**15))
    return {
        "ml-1m": replace(by_name("ml1m-sasrec-mol"), data=DataConfig(folder=str(folder / "ml-1m"))),
        "tldr": replace(texts, data=DataConfig(folder=str(folder / "tldr"))),
    }


def trained(config: RunConfig, read: DataSet, storage: Storage, name: str) -> Any:
    """The model, trained unless it is there."""
    own = training_family(config)
    if not runs.is_finished(storage, name):
        [piece] = own.pieces()
        prepared = piece.prepare(Given(read=read, storage=storage, run=name))
        assert prepared.steps is not None
        steps = prepared.steps
        progress = train(
            steps.step,
            steps.batch_of,
            config.training,
            seed=steps.seed,
            report=quiet,
            validate=steps.validate,
        )
        store(storage, name, config, weight_files.to_bytes(prepared.module), progress.seconds)
    return own.trained_model(runs.weights(storage, runs.read(storage, name)))


def measured(model: Any, read: DataSet, seed: int, repeats: int) -> Iterator[dict[str, Any]]:
    """What codes find of the 100 best by the vectors: alone, and with their best rescored by the vectors."""
    items: Any = encode_items(model, model.item_features(read.item_inputs))
    states: list[Any] = [one for _, one in query_batches(model, read.queries["test"].inputs.take(slice(NUM_QUERIES)))]
    query: QueryState = concatenate(states)
    scored = model.similarity.prepared()
    by_vectors = BruteForce(scored, items)
    best = by_vectors.search(query, SearchSpec(K)).item_rows
    full, asked = items.components[0].numel() * 4, take(query, slice(TIMED))
    for num_parts in PARTS:
        config = PqItems(num_subspaces=num_parts, num_codewords=256)
        quantizer = quantized.quantizer_of(config, items.components, seed)
        coded = quantized.Coded(lambda *_: items, config, quantizer, None)((), None)
        by_codes = ByQuantized(QuantizedSimilarity(model.similarity, quantizer), coded)
        found = {num: by_codes.search(query, SearchSpec(num)).item_rows for num in RESCORED}
        ways = [partial(one.search, asked, SearchSpec(K)) for one in (by_vectors, by_codes)]
        vectors, codes = in_turns(repeats, *ways)
        kept = {num: recall(rescored(model.similarity, items, query, rows), best) for num, rows in found.items()}
        num_bytes = coded.codes.shape[1]
        yield {
            "num_items": len(items),
            "num_subspaces": num_parts,
            "bytes": num_bytes,
            "share of bytes": num_bytes / full,
            "recall": recall(found[K], best),
            **{f"recall of {num} rescored": share for num, share in kept.items()},
            "ms by vectors": 1000 * vectors,
            "ms by codes": 1000 * codes,
            "ratio": codes / vectors,
        }


def rescored(similarity: Callable[..., Any], items: ItemState, query: QueryState, rows: Tensor) -> Tensor:
    """The 100 best of each query's own rows by the vectors."""
    parts = []
    for first in range(0, len(rows), TIMED):
        own = rows[first : first + TIMED]
        with torch.no_grad():
            scores = similarity(take(query, slice(first, first + TIMED)), take(items, own)).scores
        parts.append(own.gather(1, scores.topk(K, dim=1).indices))
    return torch.cat(parts)


def recall(rows: Tensor, best: Tensor) -> float:
    """The mean share of the best that was found."""
    return float((best[:, :, None] == rows[:, None, :]).any(dim=2).float().mean())
