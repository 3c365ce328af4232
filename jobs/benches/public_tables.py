"""Do baselines here find as much as the public ones on the same data, and does a mixture find more?

Recipes for histories on Beauty, Toys and Sports of Amazon's reviews and on MovieLens-1M, each in three seeds, as
`rails-ray train` trains them, without Ray: the best weights by MRR of the validation items; training reads neither
these nor test items. Then HR@10 and NDCG@10 of the test items, all items ranked but those of the history.

A recipe with `-bce` is trained as SASRec first was, by binary cross entropy with one negative for each position. One
with `-wide` is the dot product of as many numbers as the mixture's, and each mixture is compared with its own by a
paired bootstrap of the users' means over seeds. With `--trials`, each recipe's temperature, learning rate and dropout
are first chosen among as many drawn settings, the same for all recipes.

    python -m jobs.benches.public_tables [--sets amazon-beauty] [--recipes sasrec sasrec-mol sasrec-mol-wide]
        [--seeds 0 1 2] [--state FOLDER] [--width D] [--negatives M] [--epochs N] [--trials N] [--device cuda]
    python -m jobs.benches.public_tables --only table

A training that was cut off goes on from its last checkpoint under `--state`; what has ended is not repeated. A yes:
HR@10 within 0.002 of the public figure in the table of eSASRec's authors (RecSys 2025).
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from jobs.benches.ml1m import order_of
from jobs.benches.quality_measures import difference, quality_of
from jobs.benches.record import Record, quiet, recorded
from rails_ray.cli import rendering
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.negatives import UniformNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.modules.losses.config import PointwiseConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.report import validation_mrr
from rails_ray.training.loop import Progress, train
from rails_ray.training.step import TrainingStep, in_one_process

NAME = "public_tables"
PUBLIC = {  # HR@10: SASRec with a sampled softmax, eSASRec, HSTU as the same authors ran it; -bce as they cite it
    "amazon-beauty": {"sasrec": 0.0921, "esasrec": 0.0928, "hstu": 0.0788, "sasrec-bce": 0.0605},
    "amazon-toys": {"sasrec": 0.0970, "esasrec": 0.0939, "hstu": 0.0778},
    "amazon-sports": {"sasrec": 0.0569, "esasrec": 0.0560, "hstu": 0.0437, "sasrec-bce": 0.0350},
    "ml-1m": {"sasrec": 0.2929, "esasrec": 0.3133, "hstu": 0.3037},
}
WIDE, BCE = "-wide", "-bce"
ENCODERS: dict[str, dict[str, Any]] = {  # of the public settings, where they differ from the recipes'
    "ml-1m": {"max_length": 200, "num_blocks": 2, "dropout": 0.1},
}
SWIGLU = {"amazon-toys": 1, "amazon-sports": 2}  # factors of eSASRec, where they differ
SAVE_EVERY_S = 60.0
Values = dict[str, float]
CHECKPOINT, RANKS = "checkpoint.safetensors", "ranks.npz"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    Args:
        data: folder with the data sets.
        state: folder of checkpoints and ranks.
        width: of embeddings and components; by default the recipe's.
        negatives: that a batch shares; by default the recipe's.
        epochs: at most; by default the recipe's steps.
        every: epochs between two validations; by default the recipe's steps.
        patience: epochs without a better validation that end a training; with `every`.
        trials: settings to choose among; without any, the recipe's.
        trial_epochs: of each trial.
    """

    data: Path = Path("../shared/data")
    state: Path = Path("public-tables-state")
    sets: tuple[str, ...] = ("amazon-beauty", "amazon-toys", "amazon-sports")
    recipes: tuple[str, ...] = ("sasrec", "esasrec", "hstu", "sasrec-mol", "sasrec-mol-wide")
    seeds: tuple[int, ...] = (0, 1, 2)
    width: int = 0
    negatives: int = 0
    epochs: float = 0.0
    every: float = 0.0
    patience: float = 20.0
    trials: int = 0
    trial_epochs: float = 6.0
    device: str = "cpu"
    only: Literal["all", "tune", "train", "compare", "table"] = "all"


@dataclass(frozen=True)
class Run:
    """One training, from its data to its rows."""

    set: str
    recipe: str
    config: RunConfig
    home: Path
    before: str  # digest of what is trained, before a trial changes settings

    @property
    def name(self) -> str:
        """A folder's name: another config is another run."""
        return f"{self.set}-{self.recipe}-{self.config.seed}-{hashlib.sha256(to_json(self.config)).hexdigest()[:8]}"

    @property
    def width(self) -> int:
        own: Any = self.config.family
        width: int = own.encoder.width
        return width

    @property
    def facts(self) -> dict[str, Any]:
        own: Any = self.config.family
        return {
            "set": self.set,
            "recipe": self.recipe,
            "seed": self.config.seed,
            "run": self.name,
            "settings": digest_of(self.config),
            "width": self.width,
            "numbers": own.numbers_of_item,
            "negatives": own.negatives.num_items,
            "temperature": own.similarity.temperature,
            "learning_rate": self.config.training.learning_rate,
            "dropout": own.encoder.dropout,
            "item_dropout": own.encoder.item_dropout,
        }

    @property
    def has_ended(self) -> bool:
        return (self.home / self.name / RANKS).exists()


def digest_of(config: RunConfig) -> str:
    """Digest of a config, alike for all seeds."""
    return hashlib.sha256(to_json(replace(config, seed=0))).hexdigest()[:8]


def main(arguments: Arguments) -> None:
    record, console = Record(NAME), Console()
    tasks = {"tune": tune_all, "train": train_all, "compare": compare_all}
    for name, task in tasks.items():
        if arguments.only in ("all", name):
            task(arguments, record, console)
    if arguments.only in ("all", "table"):
        console.print(table())


def tune_all(arguments: Arguments, record: Record, console: Console) -> None:
    """Trials of the first seed, each a row; those that are recorded already are not repeated."""
    if not arguments.trials:
        return
    short = replace(arguments, epochs=arguments.trial_epochs)
    for run, read in runs(replace(arguments, seeds=arguments.seeds[:1])):
        known = {row["number"] for row in trials_of(run, arguments)}
        for number in (number for number in range(arguments.trials) if number not in known):
            config = config_of(run.recipe, run.set, read, run.config.seed, short, drawn(number))
            fitting = Fitting.of(config, read, arguments.device)
            progress = fitting.run(report=quiet)
            mrr = max((own.value for own in progress.validations), default=None)
            if mrr is None:
                fitting.step.eval()
                mrr = fitting.validated()
            facts = {**tried(run, arguments), "number": number}
            record.row(kind="trial", **facts, values=drawn(number), mrr=mrr)
            console.print(facts, drawn(number), mrr)


def drawn(number: int) -> Values:
    """The settings of a trial."""
    generator = np.random.default_rng([0, number])
    return {
        "temperature": round(float(np.exp(generator.uniform(*np.log([0.03, 0.15])))), 3),
        "learning_rate": round(float(np.exp(generator.uniform(*np.log([3e-4, 2e-3])))), 5),
        "dropout": float(generator.choice([0.1, 0.2, 0.3, 0.5])),
        "item_dropout": float(generator.choice([0.0, 0.2, 0.4])),
    }


def tried(run: Run, arguments: Arguments) -> dict[str, Any]:
    """Describe the trials that a run chooses among."""
    facts = {"set": run.set, "recipe": run.recipe, "width": run.width, "epochs": arguments.trial_epochs}
    return {**facts, "before": run.before}


def trials_of(run: Run, arguments: Arguments) -> list[dict[str, Any]]:
    """The recorded trials of a run, as many as all recipes have."""
    wanted = {"kind": "trial", **tried(run, arguments)}
    rows = [row for row in recorded(NAME) if wanted.items() <= row.items()]
    return [row for row in rows if row["number"] < arguments.trials]


def train_all(arguments: Arguments, record: Record, console: Console) -> None:
    for run, read in runs(arguments):
        if not run.has_ended:
            trained(run, read, arguments.device, record, console)


def runs(arguments: Arguments) -> Iterator[tuple[Run, DataSet]]:
    """All trainings, seed by seed, so that each table is full early."""
    for name in arguments.sets:
        folder = arguments.data / name
        read = read_data(replace(by_name("sasrec"), data=DataConfig(folder=str(folder))), Storage("."))
        for seed in arguments.seeds:
            for recipe in arguments.recipes:
                config = config_of(recipe, name, read, seed, arguments, {})
                before = digest_of(replace(config, training=TrainingConfig()))
                run = Run(name, recipe, config, arguments.state, before)
                if trials := trials_of(run, arguments):
                    best = max(trials, key=lambda row: row["mrr"])["values"]
                    run = replace(run, config=config_of(recipe, name, read, seed, arguments, best))
                yield run, read


def config_of(recipe: str, name: str, read: DataSet, seed: int, arguments: Arguments, values: Values) -> RunConfig:
    """A recipe, or the dot product of as many numbers as its mixture's, with the settings of a data set and a trial."""
    config = by_name(recipe.removesuffix(WIDE).removesuffix(BCE))
    own: Any = config.family
    fields = dict(ENCODERS.get(name, {}))
    if getattr(own.encoder, "layers", "") == "ligr":
        fields["swiglu_factor"] = SWIGLU.get(name, own.encoder.swiglu_factor)
    fields |= {field: values[field] for field in ("dropout", "item_dropout") if field in values}
    components = own.components
    if arguments.width:
        fields["width"] = arguments.width
        components = replace(components, width=arguments.width)
    similarity = replace(own.similarity, temperature=values.get("temperature", own.similarity.temperature))
    negatives = replace(own.negatives, num_items=arguments.negatives or own.negatives.num_items)
    config = config.with_family(
        encoder=replace(own.encoder, **fields), components=components, similarity=similarity, negatives=negatives
    )
    if recipe.removesuffix(WIDE).endswith(BCE):
        config = config.with_family(loss=PointwiseConfig(), negatives=UniformNegatives(num_items=1, shared_by="query"))
    training = replace(config.training, learning_rate=values.get("learning_rate", config.training.learning_rate))
    per_epoch = len(read.queries["train"]) / training.batch_size
    if arguments.epochs:
        training = replace(training, num_steps=max(int(arguments.epochs * per_epoch), 1))
    if arguments.every:
        every, patience = max(int(arguments.every * per_epoch), 1), round(arguments.patience / arguments.every)
        training = replace(training, validate_every=every, patience=max(patience, 1))
    config = for_data(replace(config, name=recipe, seed=seed, training=training), read)
    if not recipe.endswith(WIDE):
        return config
    wide = DualEncoderTraining.of(config).as_dot_product()
    if wide is None:
        raise ValueError(f"a recipe with {WIDE} must be of a mixture, got {recipe}")
    return wide


@dataclass(frozen=True)
class Fitting:
    """A model to train, on its device."""

    config: RunConfig
    read: DataSet
    model: DualEncoder
    step: TrainingStep
    batch: Callable[[int], Any]

    @staticmethod
    def of(config: RunConfig, read: DataSet, device: str) -> "Fitting":
        family = DualEncoderTraining.of(config)
        model = family.model()
        step = family.training_step(model.to(device), in_one_process).to(device)
        return Fitting(config, read, model, step, family.sampler(model, read).batch)

    def validated(self) -> float:
        """MRR of the validation items."""
        return validation_mrr(self.model, self.model.item_features(self.read.item_inputs), self.read.queries["valid"])

    def run(self, report: Callable[[int, float], None], **checkpoints: Any) -> Progress:
        """Train to the end, and keep the best weights.

        Args:
            checkpoints: arguments of `train` that begin from one and save others.
        """
        seed = [self.config.seed, 0]
        return train(
            self.step,
            self.batch,
            self.config.training,
            seed=seed,
            report=report,
            validate=self.validated,
            **checkpoints,
        )


def trained(run: Run, read: DataSet, device: str, record: Record, console: Console) -> None:
    """Train, from the last checkpoint on if there is one, and record what the best weights find."""
    config, home = run.config, run.home / run.name
    home.mkdir(parents=True, exist_ok=True)
    place, saved = home / CHECKPOINT, [time.monotonic()]
    fitting = Fitting.of(config, read, device)

    def save(data: bytes) -> None:
        (home / "checkpoint.new").write_bytes(data)
        (home / "checkpoint.new").replace(place)
        saved[0] = time.monotonic()

    with rendering.bar(console, run.name) as on_progress:
        progress = fitting.run(
            lambda done, loss: on_progress(done, config.training.num_steps, f"loss {loss:.3f}"),
            checkpoint=place.read_bytes() if place.exists() else None,
            save=save,
            is_due=lambda: time.monotonic() - saved[0] > SAVE_EVERY_S,
        )
    tested(run, fitting.model.eval(), read, progress, record, console)
    place.unlink(missing_ok=True)


def tested(run: Run, model: DualEncoder, read: DataSet, progress: Progress, record: Record, console: Console) -> None:
    features = model.item_features(read.item_inputs)
    found, on_valid = (quality_of(model, features, read.queries[split]) for split in ("test", "valid"))
    best = max(progress.validations, key=lambda own: own.value, default=None)
    per_epoch = len(read.queries["train"]) / run.config.training.batch_size
    facts = {
        **run.facts,
        "epochs": round(len(progress.losses) / per_epoch, 1),
        "best_epoch": round((len(progress.losses) if best is None else best.step) / per_epoch, 1),
        "seconds": round(progress.seconds),
        "parameters": sum(one.numel() for one in model.parameters()),
        "order": order_of(read),
        "valid_hr@10": on_valid.row["hr@10"],
    }
    record.row(kind="end", **facts, **found.row)
    console.print(facts, found.row)
    place = run.home / run.name / RANKS
    np.savez_compressed(place, best_rank=found.best_rank.astype(np.int32), ndcg=found.ndcg.astype("f4"))


def compare_all(arguments: Arguments, record: Record, console: Console) -> None:
    """Each mixture with the dot product of as many numbers, over the seeds that both have."""
    ended = {(run.set, run.recipe, run.config.seed): run for run, _ in runs(arguments) if run.has_ended}
    for name in arguments.sets:
        for recipe in arguments.recipes:
            pairs = [
                (ended[name, recipe, seed], ended[name, recipe + WIDE, seed])
                for seed in arguments.seeds
                if ended.keys() >= {(name, recipe, seed), (name, recipe + WIDE, seed)}
            ]
            if pairs:
                places = [[run.home / run.name / RANKS for run in side] for side in zip(*pairs, strict=True)]
                found = {"set": name, "recipe": recipe, "seeds": len(pairs), **difference(*places)}
                record.row(kind="comparison", **found)
                console.print(found)


def table() -> Table:
    """The last end of each seed, means over the seeds of equal settings, beside the public figure."""
    ends = dict[tuple[str, str, int, str], dict[int, dict[str, Any]]]()
    for row in recorded(NAME):
        if row.get("kind") == "end":
            ends.setdefault((row["set"], row["recipe"], row["width"], row.get("settings", "")), {})[row["seed"]] = row
    shown = Table("data", "recipe", "width", "seeds", "HR@10", "NDCG@10", "public HR@10", "best epoch", "numbers")
    for (name, recipe, width, _), of_seeds in sorted(ends.items()):
        rows = list(of_seeds.values())
        means = [f"{np.mean([row[measure] for row in rows]):.4f}" for measure in ("hr@10", "ndcg@10")]
        public = PUBLIC.get(name, {}).get(recipe)
        epoch = f"{np.mean([row['best_epoch'] for row in rows]):.0f}"
        facts = ["" if public is None else f"{public:.4f}", epoch, str(rows[0]["numbers"])]
        shown.add_row(name, recipe, str(width), str(len(rows)), *means, *facts)
    return shown


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main(tyro.cli(Arguments, description=__doc__))
