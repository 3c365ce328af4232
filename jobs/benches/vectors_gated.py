"""Several frozen vectors of an item, such as its title's and its body's: does a gate that is trained find more than the
best fixed weights?

Texts of TLDR and SciFact become vectors of `wordllama` (256 numbers, its weights are in its wheel): a query one, an
item one of its title, one of its body and, with three columns, one of both texts together. Histories of MovieLens-1M
and Amazon's Beauty, and their items, become three vectors each (`vectors_gated_histories`). Nothing but the gate of
`vectors-gated` is trained, for equal steps, batches and negatives, in three seeds. Against it: each pair of vectors
alone; all pairs that may be compared at equal weights, which is the cosine of the concatenated vectors; and the best
fixed weights, by a search along the weights on the validation split. What is compared is NDCG@10 of the test split,
over the whole corpus, less what a history holds.

    python -m jobs.benches.vectors_gated [--data FOLDER] [--sets tldr ml-1m] [--steps 1000] [--seeds 0 1 2]

A yes is a gate above the best fixed weights with p at most 0.01, by a paired bootstrap of the queries' means over
seeds.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console

from jobs.benches import pretrained
from jobs.benches.quality_measures import Quality, quality_of
from jobs.benches.quality_models import HISTORIES
from jobs.benches.record import Record
from jobs.benches.vectors_gated_histories import NAMES, histories_of
from rails_ray.data.dataset import DataSet
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import as_column
from rails_ray.families.config import RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import vectors_gated
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.similarities.mol import GateInput, component_logits
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.values import FILLED_TEXT, ID, TEXT
from rails_ray.training.evaluation.bootstrap import RESAMPLES, resampled_means
from rails_ray.training.piece import Given, fit

GATES: tuple[tuple[GateInput, ...], ...] = (
    ("query",),
    ("logits",),
    ("query", "logits"),
    ("query", "item"),
    ("query", "item", "logits"),
)
COLUMNS = (("title", "body"), ("title", "body", "both"))  # of items
STEPS = (0.2, 0.1, 0.05, 0.02, 0.01)  # of the search along a weight
LEAST_WEIGHT = 1e-6
SEARCHED = 4000  # validation queries that weights are searched on
LOW = 10.0


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        data: folder with the data sets.
        sets: their names.
        state: where what `quality` keeps lies.
    """

    data: Path = Path("../shared/data")
    sets: tuple[str, ...] = ("tldr", "scifact", "ml-1m", "amazon-beauty")
    state: Path = Path("quality-state")
    steps: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2)


def main(arguments: Arguments) -> None:
    record, console = Record("vectors_gated"), Console()
    for name in arguments.sets:
        with tempfile.TemporaryDirectory(prefix="rails-ray-vectors-gated-") as folder:
            for columns, config, read in tasks_of(name, Path(folder), arguments):
                for row in rows_of(columns, for_data(config, read), read, Storage(folder), arguments.seeds):
                    record.row(set=name, columns=columns, **row)
                    console.print(name, columns, row)


def tasks_of(name: str, folder: Path, arguments: Arguments) -> Iterator[tuple[tuple[str, ...], RunConfig, DataSet]]:
    """The vectors of items that are compared, and a run over them."""
    if name in HISTORIES:
        config = replace(vectors_gated(num_steps=arguments.steps), name="bench")
        columns = NamedVectorsConfig(query_columns=NAMES, item_columns=NAMES)
        yield NAMES, config.with_family(encoder=columns), histories_of(name, arguments.data, arguments.state)
        return
    write(arguments.data / name, folder / "data")
    for columns in COLUMNS:
        config = replace(vectors_gated(folder / "data", num_steps=arguments.steps), name="bench")
        config = config.with_family(encoder=NamedVectorsConfig(query_columns=("vector",), item_columns=columns))
        yield columns, config, read_data(config, Storage(str(folder)))


def write(texts: Path, folder: Path) -> None:
    """Write a data set whose texts are vectors: of an item's title, its body and both, and of a query."""
    folder.mkdir()
    items = Sources(str(texts)).table("items").read({"item_id": ID, "title": FILLED_TEXT, "text": FILLED_TEXT})
    titles, bodies = items["title"].to_pylist(), items["text"].to_pylist()
    both = [f"{title}\n{body}" for title, body in zip(titles, bodies, strict=True)]
    columns = {"title": titles, "body": bodies, "both": both}
    vectors = {name: as_column(pretrained.encode(own)) for name, own in columns.items()}
    pq.write_table(pa.table({"item_id": items["item_id"], **vectors}), folder / "items.parquet")
    queries = Sources(str(texts)).table("queries").read({"query_id": ID, "text": TEXT, "split": TEXT}).table
    vector = as_column(pretrained.encode(queries["text"].to_pylist()))
    pq.write_table(queries.drop_columns(["text"]).append_column("vector", vector), folder / "queries.parquet")
    relevance = Sources(str(texts)).table("relevance").read({"query_id": ID, "item_id": ID}).table
    pq.write_table(pa.table(relevance), folder / "relevance.parquet")


def rows_of(
    columns: tuple[str, ...], config: RunConfig, read: DataSet, storage: Storage, seeds: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    """The rows of fixed weights, then those of gates."""
    model = DualEncoderTraining.of(config).model().eval()
    own: Any = config.family
    pairs = own.encoder.begins_open.flatten().double().numpy()
    best = searched(cosines(model, read), pairs / pairs.sum(), read)
    fixed = {"equal weights": pairs / pairs.sum(), "best fixed weights": best}
    fixed |= {f"{columns[number % len(columns)]} alone": np.eye(len(pairs))[number] for number in np.flatnonzero(pairs)}
    against = measured(weighted(model, best), read, "test")
    for name, weights in fixed.items():
        found = measured(weighted(model, weights), read, "test")
        yield {"kind": name, "weights": [round(float(own), 3) for own in weights], **row_of([found], against)}
    for inputs in GATES:
        gated = replace(config.family.similarity, gate_inputs=inputs)
        started, runs = time.process_time(), list[DualEncoder]()
        for seed in seeds:
            own = DualEncoderTraining.of(replace(config, seed=seed).with_family(similarity=gated))
            [piece] = own.pieces()
            fitted = fit(piece, Given(read=read, storage=storage, run="r"))
            assert fitted is not None
            runs.append(own.trained_model([("model.safetensors", fitted.weights)]))
        found = [measured(run, read, "test") for run in runs]
        on_valid = [measured(run, read, "valid").row["ndcg@10"] for run in runs]
        yield {
            "kind": f"gate of {', '.join(inputs)}",
            "num_parameters": num_of_gates(runs[0]),  # without the temperature's, which scores do not read
            "cpu_seconds": round((time.process_time() - started) / len(runs), 1),
            "valid_ndcg@10": round(float(np.mean(on_valid)), 4),
            "of_seeds": [round(own.row["ndcg@10"], 4) for own in found],
            **row_of(found, against),
        }


def num_of_gates(model: DualEncoder) -> int:
    """Parameters of the gates that are trained."""
    parts = (model.query_components.gate, model.item_components.gate, model.similarity)
    own = [parameter for part in parts if part is not None for parameter in part.parameters()]
    return sum(parameter.numel() for parameter in own if parameter.requires_grad)


def row_of(found: list[Quality], against: Quality) -> dict[str, Any]:
    """Means over seeds, and the difference to the best fixed weights with its 95% interval and its p, one-sided."""
    own, other = np.mean([one.ndcg for one in found], axis=0), against.ndcg
    drawn = resampled_means((own - other)[:, None])[:, 0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    means = {name: float(np.mean([one.row[name] for one in found])) for name in ("ndcg@10", "hr@10", "mrr")}
    return {
        **{name: round(value, 4) for name, value in means.items()},
        "difference": round(float((own - other).mean()), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "p": round(float(((drawn <= 0).sum() + 1) / (RESAMPLES + 1)), 4),
    }


def measured(model: DualEncoder, read: DataSet, split: str) -> Quality:
    return quality_of(model, model.item_features(read.item_inputs), read.queries[split])


@torch.no_grad()
def cosines(model: DualEncoder, read: DataSet) -> NDArray[np.float32]:
    """Cosines of all pairs of vectors, of validation queries [P, Q, X]; far below all others where an answer must not
    hold the item."""
    queries = read.queries["valid"].head(SEARCHED)
    items = model.encode_items(model.item_features(read.item_inputs))
    found = component_logits(model.encode_queries(model.query_features(queries.inputs)), items, 1.0).numpy()
    if queries.excluded is not None:
        found[:, np.repeat(np.arange(len(queries)), queries.excluded.lengths), queries.excluded.rows] = -LOW
    return found


def searched(cosines: NDArray[np.float32], weights: NDArray[np.float64], read: DataSet) -> NDArray[np.float64]:
    """The fixed weights that place the first relevant item of a validation query best, by 1 / log2(1 + rank) up to rank
    10: from `weights`, each is moved by smaller and smaller steps as long as that helps."""
    relevant = read.queries["valid"].head(SEARCHED).relevant
    answers, rows = relevant.rows[relevant.starts[:-1]], np.arange(len(relevant))

    def value(weights: NDArray[np.float64]) -> float:
        scores = np.tensordot(weights.astype(np.float32), cosines, 1)  # [Q, X]
        ranks = 1 + (scores > scores[rows, answers][:, None]).sum(axis=1)
        return float(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean())

    best = weights
    most = value(best)
    for step in STEPS:
        is_better = True
        while is_better:
            tried = [np.clip(best + sign * step * own, 0, None) for own in np.eye(len(best)) for sign in (1, -1)]
            tried = [weights / weights.sum() for weights in tried if weights.any()]
            values = [value(weights) for weights in tried]
            is_better = max(values) > most
            if is_better:
                best, most = tried[int(np.argmax(values))], max(values)
    return best


@torch.no_grad()
def weighted(model: DualEncoder, weights: NDArray[np.float64]) -> DualEncoder:
    """The model with a gate that gives every pair of a query and an item these weights: softmax(silu(bias))."""
    wanted = np.log(np.maximum(weights, LEAST_WEIGHT))
    grid = np.linspace(0, 60, 600_001)
    bias = np.interp(wanted - wanted.min(), grid / (1 + np.exp(-grid)), grid)
    for parameter in (*model.query_components.gate.parameters(), *model.similarity.parameters()):
        parameter.zero_()
    model.similarity.logit_gate[-1].bias.copy_(torch.from_numpy(bias))
    return model


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
