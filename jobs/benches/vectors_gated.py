"""Several frozen vectors of an item, its title's and its body's: does a gate that is trained find more than the best
fixed weights?

Texts of TLDR and SciFact become vectors of `wordllama` (256 numbers, its weights are in its wheel): a query one, an
item one of its title, one of its body and, with three columns, one of both texts together. Nothing but the gate of
`vectors-gated` is trained, for equal steps, batches and negatives, in three seeds. Against it: each pair of vectors
alone; all pairs at equal weights, which is the cosine of the concatenated vectors; and the best fixed weights, by a
search along the weights on the validation split. What is compared is NDCG@10 of the test split, over the whole corpus.

    python -m jobs.benches.vectors_gated [--data FOLDER] [--steps 1000] [--seeds 0 1 2]

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
from jobs.benches.quality_measures import RESAMPLES, Quality, quality_of, resampled_means
from jobs.benches.record import Record
from rails_ray.data.dataset import DataSet
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import as_column
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import vectors_gated
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.similarities.mol import GateInput, component_logits
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.values import FILLED_TEXT, ID, TEXT
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


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        data: folder with the data sets.
        sets: their names.
    """

    data: Path = Path("../shared/data")
    sets: tuple[str, ...] = ("tldr", "scifact")
    steps: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2)


def main(arguments: Arguments) -> None:
    record, console = Record("vectors_gated"), Console()
    for name in arguments.sets:
        with tempfile.TemporaryDirectory(prefix="rails-ray-vectors-gated-") as folder:
            write(arguments.data / name, Path(folder) / "data")
            for columns in COLUMNS:
                for row in rows_of(columns, Path(folder), arguments):
                    record.row(set=name, columns=columns, **row)
                    console.print(name, columns, row)


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


def rows_of(columns: tuple[str, ...], folder: Path, arguments: Arguments) -> Iterator[dict[str, Any]]:
    storage = Storage(str(folder))
    config = replace(vectors_gated(folder / "data", num_steps=arguments.steps), name="bench").with_family(
        encoder=NamedVectorsConfig(query_columns=("vector",), item_columns=columns)
    )
    read = read_data(config, storage)
    config = for_data(config, read)
    model = DualEncoderTraining.of(config).model().eval()
    valid = cosines(model, read, "valid")
    best = searched(valid, read)
    del valid
    singles = np.eye(len(columns))
    fixed = {"equal weights": np.full(len(columns), 1 / len(columns)), "best fixed weights": best}
    fixed |= {f"{name} alone": weights for name, weights in zip(columns, singles, strict=True)}
    against = measured(weighted(model, best), read, "test")
    for name, weights in fixed.items():
        found = measured(weighted(model, weights), read, "test")
        yield {"kind": name, "weights": [round(float(own), 3) for own in weights], **row_of([found], against)}
    for inputs in GATES:
        gated = replace(config.family.similarity, gate_inputs=inputs)
        started, runs = time.process_time(), list[DualEncoder]()
        for seed in arguments.seeds:
            own = DualEncoderTraining.of(replace(config, seed=seed).with_family(similarity=gated))
            [piece] = own.pieces()
            fitted = fit(piece, Given(read=read, storage=storage, run="r"))
            assert fitted is not None
            runs.append(own.trained_model([("model.safetensors", fitted.weights)]))
        found = [measured(run, read, "test") for run in runs]
        on_valid = [measured(run, read, "valid").row["ndcg@10"] for run in runs]
        yield {
            "kind": f"gate of {', '.join(inputs)}",
            "num_parameters": sum(own.numel() for own in runs[0].parameters() if own.requires_grad),
            "cpu_seconds": round((time.process_time() - started) / len(runs), 1),
            "valid_ndcg@10": round(float(np.mean(on_valid)), 4),
            "of_seeds": [round(own.row["ndcg@10"], 4) for own in found],
            **row_of(found, against),
        }


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
def cosines(model: DualEncoder, read: DataSet, split: str) -> NDArray[np.float32]:
    """Cosines of all pairs of vectors [P, Q, X]."""
    query = model.encode_queries(model.query_features(read.queries[split].inputs))
    return component_logits(query, model.encode_items(model.item_features(read.item_inputs)), 1.0).numpy()


def searched(cosines: NDArray[np.float32], read: DataSet) -> NDArray[np.float64]:
    """The fixed weights that place the first relevant item of a validation query best, by 1 / log2(1 + rank) up to rank
    10: from equal weights, each is moved by smaller and smaller steps as long as that helps."""
    relevant = read.queries["valid"].relevant
    answers, rows = relevant.rows[relevant.starts[:-1]], np.arange(len(relevant))

    def value(weights: NDArray[np.float64]) -> float:
        scores = np.tensordot(weights.astype(np.float32), cosines, 1)  # [Q, X]
        ranks = 1 + (scores > scores[rows, answers][:, None]).sum(axis=1)
        return float(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean())

    best = np.full(len(cosines), 1 / len(cosines))
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
