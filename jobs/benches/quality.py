"""What does a Mixture of Logits find that a dot product of the same encoder does not, on which data, at what price?

For each data set and encoder: a dot product, a dot product of as many stored numbers as the mixture, and the mixture,
each with settings that as many trials chose on the validation queries (optuna, seeded). HR@1/10/50/200, MRR and NDCG@10
of the test queries over the whole corpus, items of the history left out; training time, bytes of an item, milliseconds
of a query by the exact scan and by the cheapest method that finds .99 of its 100 best. The difference to both dot
products has a paired bootstrap over queries.

    python -m jobs.benches.quality tune  --cell.data ml-1m --cell.encoder sasrec --cell.similarity mol --trials 10
    python -m jobs.benches.quality train --cell.data ml-1m --cell.encoder sasrec --cell.similarity mol --epochs 100
    python -m jobs.benches.quality search | compare
    python -m jobs.plots.quality

`train` takes the settings of the best trial, or what `--settings` says where there is none, and goes on where it was
cut off: its state lies under `--state`. `--device cuda` runs the same on a GPU.

Held fixed: encoder, batches, epochs, negatives per query, seeds. A yes for a data set is a mixture that is ahead of
both dot products in NDCG@10 with p < .01.
"""

import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console

from jobs.benches.quality_models import Cell, Settings, config_of, data_of, settings_of, stored_numbers, to_row
from jobs.benches.record import Record, quiet, recorded
from rails_ray import rendering
from rails_ray.build.dual_encoder import DualEncoderFamily
from rails_ray.config import RunConfig
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import Queries
from rails_ray.evaluation.metrics import ndcg_of_queries
from rails_ray.evaluation.mixtures import measures
from rails_ray.evaluation.ranking import encode_items, query_batches, rank_all
from rails_ray.evaluation.report import HIT_RATES
from rails_ray.models.dual_encoder import DualEncoder
from rails_ray.retrieval.searchable import ByComponents, Widths
from rails_ray.training import state
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process
from rails_ray.wanted import Wanted

NAME = "quality"
SAVE_EVERY_S = 120.0
RESAMPLES = 10_000
K, LEAST_RECALL, NUM_SEARCHED, REPEATS = 100, 0.99, 320, 5  # of `search`


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    data: folder of the data sets.
    state: folder of checkpoints, weights and ranks.
    epochs: passes over the training queries; of each trial, if it tunes.
    batch_size: histories or pairs of a step.
    settings: what to train with if no trial says it.
    curve: points of the learning curve, spread over the epochs.
    """

    task: tyro.conf.Positional[Literal["tune", "train", "search", "compare"]]
    cell: Cell = field(default_factory=lambda: Cell("ml-1m", "sasrec", "mol"))
    data: Path = Path("../shared/data")
    state: Path = Path("quality-state")
    epochs: float = 100.0
    batch_size: int = 32
    trials: int = 10
    settings: Settings = field(default_factory=Settings)
    curve: int = 10
    device: str = "cpu"


def main(arguments: Arguments) -> None:
    match arguments.task:
        case "tune":
            tune(arguments)
        case "train":
            train_cell(arguments)
        case "compare":
            compare(arguments)
        case "search":
            search(arguments)


def tune(arguments: Arguments) -> None:
    """Trials of one cell, each a row; those that are recorded already are not repeated."""
    import optuna

    record, cell = Record(NAME), arguments.cell
    read = data_of(cell, arguments.data, arguments.state, is_final=False)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=cell.seed))

    def objective(trial: Any) -> float:
        settings = settings_of(trial, cell)
        known = [
            row for row in _trials(cell) if row["settings"] == asdict(settings) and row["epochs"] == arguments.epochs
        ]
        if known:
            return float(known[0]["mrr"])
        config = config_of(cell, settings, read, arguments.epochs, arguments.batch_size)
        started = time.monotonic()
        found = _quality(_trained(config, read, arguments.device), read, read.queries["valid"])
        record.row(
            kind="trial",
            **to_row(cell, settings),
            epochs=arguments.epochs,
            number=trial.number,
            seconds=time.monotonic() - started,
            **found.row,
        )
        return found.row["mrr"]

    study.optimize(objective, n_trials=arguments.trials)


def train_cell(arguments: Arguments) -> None:
    """The final training of a cell: a row for each point of its learning curve and one for its end."""
    record, cell = Record(NAME), arguments.cell
    home = arguments.state / cell.name
    home.mkdir(parents=True, exist_ok=True)
    trials = _trials(cell)
    settings = Settings(**max(trials, key=lambda row: row["mrr"])["settings"]) if trials else arguments.settings
    read = data_of(cell, arguments.data, arguments.state, is_final=True)
    config = config_of(cell, settings, read, arguments.epochs, arguments.batch_size)
    config = replace(
        config, training=replace(config.training, validate_every=config.training.num_steps // arguments.curve)
    )
    facts = {**to_row(cell, settings), "epochs": arguments.epochs, "numbers": stored_numbers(config)}

    def point(model: DualEncoder, step: int, loss: float) -> None:
        found = _quality(model, read, read.queries["test"])
        record.row(kind="curve", **facts, step=step, loss=loss, **found.row, **_gates(model, read))

    model, seconds = _resumed(config, read, home, arguments.device, point)
    found = _quality(model, read, read.queries["test"])
    np.savez(home / "ranks.npz", best_rank=found.best_rank, ndcg=found.ndcg)
    (home / "weights.safetensors").write_bytes(state.to_bytes(model))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    record.row(kind="cell", **facts, seconds=seconds, parameters=parameters, **found.row, **_gates(model, read))
    Console().print(cell.name, found.row)


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


def _quality(model: DualEncoder, read: DataSet, queries: Queries) -> Quality:
    items = encode_items(model, model.item_features(read.item_inputs))
    ranking = rank_all(model, items, queries, 10)
    return Quality(ranking.best_rank, ndcg_of_queries(ranking.is_relevant, ranking.num_relevant, 10))


def _gates(model: DualEncoder, read: DataSet) -> dict[str, float]:
    return measures(model, model.item_features(read.item_inputs), read.queries["test"])


def _trained(config: RunConfig, read: DataSet, device: str) -> DualEncoder:
    family = DualEncoderFamily.of(config)
    model = family.model()
    family.learn_tokens(model, read)
    step = family.training_step(model.to(device), in_one_process).to(device)
    sampler = family.sampler(model, read)
    train(step, sampler.batch, config.training, seed=[config.seed, 0], report=quiet)
    return model


def _resumed(config: RunConfig, read: DataSet, home: Path, device: str, point: Any) -> tuple[DualEncoder, float]:
    """A trained model and the seconds that its training took, from the last checkpoint on if there is one."""
    family = DualEncoderFamily.of(config)
    model, place = family.model(), home / "checkpoint.safetensors"
    checkpoint = place.read_bytes() if place.exists() else None
    family.learn_tokens(model, read)
    step = family.training_step(model.to(device), in_one_process).to(device)
    sampler = family.sampler(model, read)
    saved = [time.monotonic()]
    losses: list[float] = []

    def save(data: bytes) -> None:
        (home / "checkpoint.new").write_bytes(data)
        (home / "checkpoint.new").replace(place)
        saved[0] = time.monotonic()

    with rendering.bar(Console(), config.name) as on_progress:

        def report(done: int, loss: float) -> None:
            losses.append(loss)
            on_progress(done, config.training.num_steps, f"loss {loss:.3f}")
            if done % config.training.validate_every == 0:
                step.eval()
                point(model, done, float(np.mean(losses[-200:])))
                step.train()

        progress = train(
            step,
            sampler.batch,
            config.training,
            seed=[config.seed, 0],
            report=report,
            checkpoint=checkpoint,
            save=save,
            is_due=lambda: time.monotonic() - saved[0] > SAVE_EVERY_S,
        )
    return model, progress.seconds


def compare(arguments: Arguments) -> None:
    """The mixture's differences in NDCG@10 and HR@10 to both dot products, each with its p by a paired bootstrap."""
    record, console = Record(NAME), Console()
    cells = {(row["data"], row["encoder"], row["seed"]) for row in recorded(NAME) if row.get("kind") == "cell"}
    for data, encoder, seed in sorted(cells):
        for own in (Cell(data, encoder, "mol", seed), Cell(data, encoder, "mol", seed, user=True)):
            for other in (Cell(data, encoder, "dot", seed), Cell(data, encoder, "wide", seed)):
                if all((arguments.state / cell.name / "ranks.npz").exists() for cell in (own, other)):
                    row = _difference(arguments.state, own, other)
                    record.row(kind="comparison", **asdict(own), other=other.similarity, **row)
                    console.print(own.name, "against", other.similarity, row)


def search(arguments: Arguments) -> None:
    """Milliseconds of a query, in batches of 32 and on one thread: the exact scan, and the cheapest method that finds
    LEAST_RECALL of the exact K best. With nothing else running."""
    torch.set_num_threads(1)
    record, console = Record(NAME), Console()
    for row in [row for row in recorded(NAME) if row.get("kind") == "cell"]:
        cell = Cell(row["data"], row["encoder"], row["similarity"], row["seed"], row["user"])
        weights = arguments.state / cell.name / "weights.safetensors"
        if cell.seed or not weights.exists():
            continue
        read = data_of(cell, arguments.data, arguments.state, is_final=True)
        config = config_of(cell, Settings(**row["settings"]), read, row["epochs"], arguments.batch_size)
        model = DualEncoderFamily.of(config).trained_model([("", weights.read_bytes())])
        found = _times(model, read)
        record.row(kind="search", **asdict(cell), **found)
        console.print(cell.name, found)


@torch.no_grad()
def _times(model: DualEncoder, read: DataSet) -> dict[str, Any]:
    items: Any = encode_items(model, model.item_features(read.item_inputs))
    searchable = ByComponents(model.similarity, items)
    asked = read.queries["test"].head(NUM_SEARCHED)
    batches: list[Any] = [state for _, state in query_batches(model, asked.inputs, 32)]

    def timed(method: str, widths: Widths) -> tuple[float, list[torch.Tensor]]:
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            rows = [searchable.search(batch, Wanted(K), method, widths).item_rows for batch in batches]
            seconds.append(time.perf_counter() - started)
        return 1e3 * float(np.median(seconds)) / len(asked), rows

    exact_ms, exact = timed("brute_force", Widths())
    cheapest: dict[str, Any] = {"method": "brute_force", "ms": exact_ms, "recall": 1.0}
    for method in searchable.methods:
        for width in (100, 150, 200, 400, 1000) if method in ("average", "gated") else ():
            ms, rows = timed(method, Widths(num_candidates=width))
            hits = [(one[:, :, None] == other[:, None]).any(2) for one, other in zip(exact, rows, strict=True)]
            recall = float(torch.cat(hits).float().mean())
            if recall >= LEAST_RECALL and ms < cheapest["ms"]:
                cheapest = {"method": method, "num_candidates": width, "ms": ms, "recall": recall}
    return {"exact_ms": exact_ms, "cheapest": cheapest, "num_items": len(searchable)}


def _difference(folder: Path, own: Cell, other: Cell) -> dict[str, float]:
    ranks = [np.load(folder / cell.name / "ranks.npz") for cell in (own, other)]
    ndcg = ranks[0]["ndcg"] - ranks[1]["ndcg"]
    hits = (ranks[0]["best_rank"] <= 10).astype(float) - (ranks[1]["best_rank"] <= 10)
    return {
        "ndcg@10": float(ndcg.mean()),
        "ndcg_p": bootstrap_p(ndcg),
        "hr@10": float(hits.mean()),
        "hr_p": bootstrap_p(hits),
        "relative_hr": float(hits.mean() / (ranks[1]["best_rank"] <= 10).mean()),
    }


def bootstrap_p(differences: NDArray[np.float64], seed: int = 0) -> float:
    """The share of resamples of the queries whose mean difference is not above 0 (one-sided)."""
    generator = np.random.default_rng(seed)
    not_above = 0
    for _ in range(RESAMPLES // 100):
        rows = generator.integers(len(differences), size=(100, len(differences)))
        not_above += int((differences[rows].mean(axis=1) <= 0).sum())
    return not_above / RESAMPLES


def _trials(cell: Cell) -> list[dict[str, Any]]:
    """Recorded trials of a cell; a mixture with users has those of the one without, and so has every seed."""
    own = asdict(replace(cell, seed=0, user=False))
    rows = [row for row in recorded(NAME) if row.get("kind") == "trial"]
    return [row for row in rows if all(row[name] == value for name, value in own.items())]


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main(tyro.cli(Arguments, description=__doc__, args=sys.argv[1:]))
