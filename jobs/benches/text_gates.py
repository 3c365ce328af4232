"""Which mixture over texts does not lose to a dot product of as many numbers?

Towers of hashed n-grams, or frozen vectors of wordllama, under a dot product and under mixtures whose gates learn less
of the pairs of training:

    way               what differs from the mixture of the paper (4 x 4 components, gates of query, item and logits)
    wide              a dot product of as many stored numbers
    mixture           nothing
    query             its gates read the query alone
    relu              ReLU between the two layers of w
    gate-dropout      trials choose 0.5 or 0.8 in place of 0.2
    gate-decay        the squares of the gates' weights are added to the loss, times what trials choose
    distilled         its scores are drawn to those of the trained `wide`: KL over the items of a batch, times what
                      trials choose
    negatives         batches of four times as many pairs, for as many epochs
    early-stopping    the best of 20 validations is kept, and three without a better one end the training
    rotations         on vectors: components begin as parts of the vectors, so that the mixture begins near their cosine

Each way has as many trials, on MRR of at most 1,000 validation queries after a part of the epochs, over temperature,
learning rate and what is its own; widths are 64 a component. Then it is trained in each seed, and compared with `wide`
by NDCG@10 of the test queries over the whole corpus, with a paired bootstrap of the queries' means over seeds.

    python -m jobs.benches.text_gates [--sets tldr scifact wordnet] [--encoders towers vectors] [--ways wide query]
        [--trials 4] [--seeds 0 1 2] [--state FOLDER]

What is recorded is not repeated. A yes is a way that is level with `wide` or ahead on all sets: no p at most 0.05 for a
loss.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from jobs.benches.quality_measures import Quality, quality_of
from jobs.benches.quality_models import Cell, Settings, config_of, data_of
from jobs.benches.record import Record, quiet, recorded
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import RunConfig, to_json
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.training.evaluation.bootstrap import difference
from rails_ray.training.evaluation.report import validation_mrr
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process
from rails_ray.training.terms import Compared, Term

NAME = "text_gates"
EPOCHS = {"scifact": 60.0, "tldr": 12.0, "wordnet": 4.0}
BATCHES = {"scifact": 64, "tldr": 256, "wordnet": 512}
TRIED = 0.25  # of the epochs, in a trial
VALIDATED, TESTED = 1000, 4000  # queries at most
NUM_VALIDATIONS, PATIENCE = 20, 3
Values = dict[str, float]


@dataclass(frozen=True)
class Way:
    """
    similarity: what quality's cells are compared by.
    tries: name and values of the number that is its own.
    batches: how many times as many pairs a batch has.
    encoders: that it is for.
    """

    similarity: Any = "mol"
    fields: dict[str, Any] = field(default_factory=dict)
    tries: tuple[str, tuple[float, ...]] | None = None
    batches: int = 1
    stops_early: bool = False
    encoders: tuple[str, ...] = ("towers", "vectors")


WAYS = {
    "wide": Way(similarity="wide"),
    "mixture": Way(),
    "query": Way(fields={"gate_inputs": ("query",)}),
    "relu": Way(fields={"gate_activation": "relu"}),
    "gate-dropout": Way(tries=("gate_dropout", (0.5, 0.8))),
    "gate-decay": Way(tries=("gate_decay", (1e-4, 1e-3, 1e-2))),
    "distilled": Way(tries=("distilled", (0.3, 1.0, 3.0))),
    "negatives": Way(batches=4),
    "early-stopping": Way(stops_early=True),
    "rotations": Way(encoders=("vectors",)),
}


@dataclass(frozen=True)
class Arguments:
    """
    data: folder of the data sets.
    state: where quality keeps vectors, and this bench the measures of each query.
    trials: of each way.
    """

    data: Path = Path("../shared/data")
    state: Path = Path("quality-state")
    sets: tuple[str, ...] = ("scifact", "tldr", "wordnet")
    encoders: tuple[str, ...] = ("towers", "vectors")
    ways: tuple[str, ...] = tuple(WAYS)
    trials: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Task:
    """One way on one data set under one encoder."""

    set: str
    encoder: str
    way: str
    arguments: Arguments
    read: DataSet

    @property
    def own(self) -> Way:
        return WAYS[self.way]

    @property
    def facts(self) -> dict[str, str]:
        return {"set": self.set, "encoder": self.encoder, "way": self.way}

    def rows(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """The recorded rows of this task."""
        wanted = {"kind": kind, **self.facts, **facts}
        return [row for row in recorded(NAME) if wanted.items() <= row.items()]

    def config(self, values: Values, epochs: float, seed: int = 0) -> RunConfig:
        """The run with what a trial has chosen."""
        own = self.own
        cell = Cell(self.set, self.encoder, own.similarity, seed)
        settings = Settings(
            temperature=values["temperature"],
            learning_rate=values["learning_rate"],
            gate_dropout=values.get("gate_dropout", 0.2),
        )
        config = config_of(cell, settings, self.read, epochs, own.batches * BATCHES[self.set])
        family: Any = config.family
        config = config.with_family(similarity=replace(family.similarity, **own.fields))
        if not own.stops_early:
            return config
        every = max(config.training.num_steps // NUM_VALIDATIONS, 1)
        return replace(config, training=replace(config.training, validate_every=every, patience=PATIENCE))

    def trained(self, values: Values, epochs: float, seed: int = 0) -> DualEncoder:
        config = self.config(values, epochs, seed)
        family = DualEncoderTraining.of(config)
        model = family.model()
        family.learn_tokens(model, self.read)
        if self.way == "rotations":
            begin_as_parts(model)
        step = family.training_step(model, in_one_process)
        step.terms = [*step.terms, *self.terms(model, values)]
        features, held_out = model.item_features(self.read.item_inputs), self.validation
        train(
            step,
            family.sampler(model, self.read).batch,
            config.training,
            seed=[seed, 0],
            report=quiet,
            validate=lambda: validation_mrr(model, features, held_out),
        )
        return model.eval()

    def terms(self, model: DualEncoder, values: Values) -> list[Term]:
        """Terms that this way adds to the loss."""
        added: list[Term] = []
        if "gate_decay" in values:
            added.append(GateDecay(model, values["gate_decay"]))
        if "distilled" in values:
            added.append(Distillation(model, self.teacher, values["distilled"], values["temperature"]))
        return added

    @cached_property
    def teacher(self) -> DualEncoder:
        """The trained `wide`, by its best trial."""
        task = replace(self, way="wide")
        return task.trained(best_of(task), EPOCHS[self.set]).requires_grad_(False)

    @property
    def validation(self) -> Any:
        return self.read.queries["valid"].head(VALIDATED)

    def tested(self, model: DualEncoder) -> Quality:
        features = model.item_features(self.read.item_inputs)
        return quality_of(model, features, self.read.queries["test"].head(TESTED))


@dataclass(frozen=True)
class GateDecay:
    """The squares of all weights of the gates, times `weight`."""

    model: DualEncoder
    weight: float

    def __call__(self, compared: Compared) -> Float[Tensor, ""]:
        parts: Any = (self.model.query_components.gate, self.model.item_components.gate, self.model.similarity)
        squares = [one.square().sum() for part in parts if part is not None for one in part.parameters()]
        return self.weight * torch.stack(squares).sum()


@dataclass(frozen=True)
class Distillation:
    """KL of the model's distribution over the items of a batch from the teacher's, in the mean over its queries."""

    model: DualEncoder
    teacher: DualEncoder
    weight: float
    temperature: float

    def __call__(self, compared: Compared) -> Float[Tensor, ""]:
        batch, teacher = compared.batch, self.teacher
        with torch.no_grad():
            query, items = teacher.encode_queries(batch.queries), teacher.encode_items(batch.items)
            taught = teacher.similarity.training_scores(query, items) / teacher.similarity.temperature
        own = self.model.similarity.training_scores(compared.query, compared.items) / self.temperature
        distance = F.kl_div(own.log_softmax(dim=1), taught.softmax(dim=1), reduction="batchmean")
        return self.weight * distance


@torch.no_grad()
def begin_as_parts(model: DualEncoder) -> None:
    """Component p of a query and of an item are numbers p d to (p + 1) d of its vector, turned by one rotation.

    Raises:
        ValueError: if all components have more numbers than the vector.
    """
    query, item = model.query_components.project, model.item_components.project
    width, generator = item.in_features, torch.Generator().manual_seed(0)
    if (most := max(query.out_features, item.out_features)) > width:
        raise ValueError(f"components must have at most the {width} numbers of a vector together, got {most}")
    turned = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
    for layer in (query, item):
        layer.weight.copy_(turned[: layer.out_features])
        layer.bias.zero_()


def main(arguments: Arguments) -> None:
    record, console = Record(NAME), Console()
    for task in tasks(arguments):
        for number in range(len(task.rows("trial")), arguments.trials):
            values = drawn(task.own, number)
            model = task.trained(values, TRIED * EPOCHS[task.set])
            mrr = validation_mrr(model, model.item_features(task.read.item_inputs), task.validation)
            record.row(kind="trial", **task.facts, number=number, values=values, mrr=mrr)
            console.print(task.facts, number, values, mrr)
        for seed in (seed for seed in arguments.seeds if not place_of(task, seed).exists()):
            found = task.tested(task.trained(best_of(task), EPOCHS[task.set], seed))
            place_of(task, seed).parent.mkdir(parents=True, exist_ok=True)
            np.save(place_of(task, seed), found.ndcg)
            record.row(kind="end", **task.facts, seed=seed, values=best_of(task), **found.row)
            console.print(task.facts, seed, found.row)
        if row := compared(task):
            record.row(kind="comparison", **task.facts, **row)
            console.print(task.facts, row)


def tasks(arguments: Arguments) -> Iterator[Task]:
    for name in arguments.sets:
        for encoder in arguments.encoders:
            read = data_of(Cell(name, encoder, "mol"), arguments.data, arguments.state, is_final=False)
            for way in arguments.ways:
                if encoder in WAYS[way].encoders:
                    yield Task(name, encoder, way, arguments, read)


def drawn(way: Way, number: int) -> Values:
    """The settings of a trial: all ways have the same, and each value of what is a way's own in turn."""
    generator = np.random.default_rng([0, number])
    logarithms = {"temperature": (0.02, 0.1), "learning_rate": (5e-4, 4e-3)}
    values = {name: float(np.exp(generator.uniform(*np.log(ends)))) for name, ends in logarithms.items()}
    if way.tries is not None:
        name, tried = way.tries
        values[name] = tried[number % len(tried)]
    return values


def best_of(task: Task) -> Values:
    """The settings of the trial with the best MRR on validation.

    Raises:
        ValueError: if there is no trial.
    """
    trials = task.rows("trial")
    if not trials:
        raise ValueError(f"--ways must have {task.way} among them until it has a trial on {task.set}, got none")
    best: dict[str, Any] = max(trials, key=lambda row: row["mrr"])
    values: Values = best["values"]
    return values


def place_of(task: Task, seed: int) -> Path:
    """NDCG@10 of each test query. Other settings are another file."""
    best = best_of(task)
    settings = to_json(task.config(best, EPOCHS[task.set], seed))
    of_way = json.dumps([task.way, best], sort_keys=True).encode()
    digest = hashlib.sha256(settings + of_way).hexdigest()[:8]
    return task.arguments.state / NAME / f"{task.set}-{task.encoder}-{task.way}-{seed}-{digest}.npy"


def compared(task: Task) -> dict[str, Any] | None:
    """The difference to `wide` over the seeds that both have, with the p of a gain and of a loss."""
    other = replace(task, way="wide")
    if task.way == "wide" or not other.rows("trial"):
        return None
    both = [seed for seed in task.arguments.seeds if place_of(task, seed).exists() and place_of(other, seed).exists()]
    if not both:
        return None
    own, wide = (np.mean([np.load(place_of(one, seed)) for seed in both], axis=0) for one in (task, other))
    gain, loss = difference(own, wide), difference(wide, own)
    return {
        "seeds": len(both),
        "ndcg@10": float(own.mean()),
        "difference": gain.mean,
        "relative": [gain.relative, gain.relative_low, gain.relative_high],
        "p_gain": gain.p,
        "p_loss": loss.p,
    }


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
