"""Models of `mopq`: dense ones, and each method's codebooks over them, trained by the product's own piece.

One process stands for D workers, each with a slice of the batch. With cross-device negatives its gradient is theirs, as
tests hold. With in-batch ones, queries of a slice are compared with the items of that slice alone. What a method adds
to the softmax (a teacher's, evenness) reads a worker's own slice in both.
"""

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from jobs.benches.record import quiet
from rails_ray.data.batch import TrainingBatch
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.data.queries import Queries
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.negatives import InBatchNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items.quantizer_piece import QuantizerPiece
from rails_ray.families.vector_items.storing import Method, PqItems, TrainedConfig
from rails_ray.families.vector_items.trained_codes import ENCODER, QUANTIZER, trained_quantizer
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.losses.negatives import Roles
from rails_ray.modules.model import PairModel
from rails_ray.modules.quantizers.learned import Assigned, Matched, Quantized
from rails_ray.modules.quantizers.opq import OpqConfig
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.storage import quantizers, runs
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import Storage
from rails_ray.training.contrast import Gates
from rails_ray.training.loop import train
from rails_ray.training.objectives import Objective
from rails_ray.training.piece import Given
from rails_ray.training.step import TrainingStep
from rails_ray.training.terms import Compared

NUM_WORKERS = 8  # the paper's
WIDTH = 128
KS = (10, 50, 100)
OPQ_ROUNDS = 20
DENSE_STEPS = {"tldr": 1500, "wordnet": 3000}


@dataclass(frozen=True)
class Bench:
    """One data set, seed and folder of runs."""

    data: str
    folder: Path
    storage: Storage
    seed: int

    def config(self) -> RunConfig:
        """The dense model."""
        base = by_name("text-dot")
        steps = DENSE_STEPS[self.data]
        return replace(
            base,
            seed=self.seed,
            data=DataConfig(folder=str(self.folder / self.data)),
            training=replace(base.training, num_steps=steps, batch_size=512, learning_rate=3e-3),
        ).with_family(
            encoder=TwoTowerConfig(width=WIDTH, hidden=256, num_buckets=2**15),
            components=ComponentsConfig(width=WIDTH, query_hidden=0, gate_hidden=64),
            similarity=DotProductConfig(),
            loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
            negatives=InBatchNegatives(),
        )

    def run(self, *parts: object) -> str:
        """A name."""
        return "-".join(str(part) for part in (self.data, self.seed, *parts))


@dataclass(frozen=True)
class Encoded:
    """Items of a model, and for each split its queries and the rows of their relevant items."""

    items: Tensor
    queries: dict[str, tuple[Tensor, Queries]]

    def sample(self) -> Tensor:
        """At most 2^16 items, evenly spread."""
        return self.items[:: -(-len(self.items) // 2**16)]

    def recalls(self, scored: Tensor, split: str = "test") -> dict[str, float]:
        """R@k: the mean share of a query's relevant items among the k best by inner product with `scored`."""
        queries, _ = self.queries[split]
        rows = torch.cat([(part @ scored.T).topk(KS[-1], dim=1).indices for part in queries.split(256)])
        return self.recalls_of(rows, split)

    def recalls_of(self, rows: Tensor, split: str = "test") -> dict[str, float]:
        """The same of rows that a search found."""
        shares: dict[int, list[float]] = {k: [] for k in KS}
        for line, found in enumerate(rows.numpy()):
            relevant = self.queries[split][1].relevant[line]
            for k in KS:
                shares[k].append(float(np.isin(relevant, found[:k]).mean()))
        return {f"R@{k}": float(np.mean(values)) for k, values in shares.items()}


def dense(bench: Bench) -> tuple[RunConfig, DataSet]:
    """Train the dense model, unless it is there."""
    config = bench.config()
    read = read_data(config, bench.storage)
    own = training_family(for_data(config, read))
    assert isinstance(own, DualEncoderTraining)
    name = bench.run("dense")
    if not runs.is_finished(bench.storage, name):
        [piece] = own.pieces()
        prepared = piece.prepare(Given(read=read, storage=bench.storage, run=name))
        assert prepared.steps is not None
        progress = train(
            prepared.steps.step,
            prepared.steps.batch_of,
            own.config.training,
            seed=prepared.steps.seed,
            report=quiet,
            clock=time.process_time,
        )
        store(bench.storage, name, own.config, weight_files.to_bytes(prepared.module), progress.seconds)
    return own.config, read


def store(storage: Storage, name: str, config: RunConfig, weights: bytes, seconds: float) -> None:
    """A run without a report."""
    runs.write(
        storage,
        name,
        weights=weights,
        validation=b'{"cutoff_mass": null}',
        training={"seconds": seconds},
        config=to_json(config),
    )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How codebooks are trained.

    negatives: in_batch, ncs (items of other workers, as constants) or dcs.
    """

    method: Method
    negatives: Literal["in_batch", "ncs", "dcs"] = "in_batch"
    num_subspaces: int = 8
    num_codewords: int = 256
    when: Literal["after", "jointly"] = "jointly"
    num_steps: int = 500
    batch_size: int = 512

    @property
    def name(self) -> str:
        """Differs if any setting differs."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return f"{self.method.kind}-{self.negatives}-{digest}"

    @property
    def items(self) -> PqItems:
        """As the run's config says it."""
        trained = TrainedConfig(
            method=self.method,
            when=self.when,
            start=OpqConfig(num_rounds=OPQ_ROUNDS),
            training=TrainingConfig(num_steps=self.num_steps, batch_size=self.batch_size, learning_rate=1e-3),
        )
        return PqItems(num_subspaces=self.num_subspaces, num_codewords=self.num_codewords, quantizer=trained)


class FromStored(QuantizerPiece):
    """Codebooks that begin as OPQ's, which is fitted once for a dense model and sizes."""

    def start(self, items: ItemState, given: Given) -> ProductQuantizer:
        own = self.family.own.items
        assert isinstance(own, PqItems)
        data, seed = given.run.split("-")[:2]
        path = f"starts/{data}-{seed}-{own.num_subspaces}x{own.num_codewords}.safetensors"
        if not given.storage.exists(path):
            given.storage.write(path, quantizers.to_bytes(super().start(items, given), None))
        return quantizers.from_bytes(given.storage.read(path))[0]


def codebooks(bench: Bench, config: RunConfig, read: DataSet, how: Trained) -> tuple[Encoded, ProductQuantizer, float]:
    """Codebooks that are trained from the dense model, unless they are there; what they encode, and the CPU seconds of
    training."""
    name, storage = bench.run(how.name), bench.storage
    own = training_family(config.with_family(items=how.items))
    assert isinstance(own, DualEncoderTraining)
    if not runs.is_finished(storage, f"{name}/{QUANTIZER}"):
        weights = storage.read(f"runs/{bench.run('dense')}/{WEIGHTS}")
        store(storage, f"{name}/{ENCODER}", own.config, weights, 0.0)
        piece = FromStored(own)
        prepared = piece.prepare(Given(read=read, storage=storage, run=name))
        steps = prepared.steps
        assert steps is not None
        assert isinstance(steps.step, TrainingStep)
        steps.step.terms = [TermOfWorkers(how.method, own.own.similarity.temperature)]
        if how.negatives == "in_batch":
            steps.step.contrast = InBatch()
        elif how.negatives == "ncs":
            steps.step.contrast = Constants()
        progress = train(
            steps.step,
            steps.batch_of,
            piece.training,
            seed=steps.seed,
            rates=steps.rates,
            report=quiet,
            clock=time.process_time,
        )
        store(storage, f"{name}/{QUANTIZER}", own.config, weight_files.to_bytes(prepared.module), progress.seconds)
    files = [(f"{part}/{WEIGHTS}", storage.read(f"runs/{name}/{part}/{WEIGHTS}")) for part in (ENCODER, QUANTIZER)]
    encoded = encoded_by(own.trained_model(files), read)
    quantizer = trained_quantizer(own.own.items, files[1][1], 1, WIDTH)
    return encoded, quantizer, runs.read_piece(storage, name, QUANTIZER).training["seconds"]


def encoded_densely(bench: Bench, config: RunConfig, read: DataSet) -> Encoded:
    """Items and queries as the dense model has them."""
    storage, name = bench.storage, bench.run("dense")
    model = training_family(config).trained_model(runs.weights(storage, runs.read(storage, name)))
    return encoded_by(model, read)


def encoded_by(model: Any, read: DataSet) -> Encoded:
    """All items, and the queries that nothing was trained on."""
    items: Any = encode_items(model, model.item_features(read.item_inputs))
    queries = {}
    for split in ("valid", "test"):
        asked = read.queries[split]
        states: list[Any] = [query for _, query in query_batches(model, asked.inputs)]
        queries[split] = torch.cat([query.components.squeeze(1) for query in states]), asked
    return Encoded(items.components.squeeze(1).float(), queries)


# D workers in one process


@dataclass(frozen=True)
class OfWorker:
    """A worker's part of a batch: the queries `lines` and the items `rows` that answer them."""

    lines: Tensor
    rows: Tensor
    roles: Roles

    def matched(self, query: QueryState, quantized: Quantized, tau: float) -> Matched:
        """What a method's own loss reads."""
        assigned = Assigned(*(tensor[self.rows] for tensor in quantized.assigned))
        vectors, soft = quantized.vectors[self.rows], quantized.soft[self.rows]
        return Matched(
            query.components[self.lines], Quantized(vectors, assigned, soft, quantized.num_components), self.roles, tau
        )


def workers(batch: TrainingBatch) -> list[OfWorker]:
    """The parts of a batch."""
    whole, parts = batch.roles(), []
    for lines in torch.arange(len(batch.positive)).tensor_split(NUM_WORKERS):
        rows, positive = batch.positive[lines].unique(return_inverse=True)
        columns = lines[:, None], rows
        parts.append(OfWorker(lines, rows, Roles(positive, whole.is_relevant[columns], whole.is_negative[columns])))
    return parts


@dataclass(frozen=True)
class InBatch:
    """The contract of `Contrast`: each worker's queries against its own items."""

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Gates]:
        losses = []
        for part in workers(batch):
            own = take(query, part.lines)
            losses.append(objective(model.score(own, take(items, part.rows)).scores, own, part.roles).sum())
        return torch.stack(losses).sum(), None


@dataclass(frozen=True)
class TermOfWorkers:
    """The contract of `Term`: a method's own loss, which on each worker reads its own part of the batch."""

    method: Method
    tau: float

    def __call__(self, compared: Compared) -> Tensor:
        assert compared.quantized is not None
        losses = [
            self.method.loss(part.matched(compared.query, compared.quantized, self.tau)).sum()
            for part in workers(compared.batch)
        ]
        return torch.stack(losses).sum() * compared.batch.weight


@dataclass(frozen=True)
class Constants:
    """The contract of `Contrast`: a gradient reaches the items of a query's own worker alone (NCS)."""

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Gates]:
        losses, whole = [], batch.roles()
        for part in workers(batch):
            is_own = torch.zeros(len(items), 1, 1, dtype=torch.bool)
            is_own[part.rows] = True
            components = torch.where(is_own, items.components, items.components.detach())
            own, roles = take(query, part.lines), Roles(*(fact[part.lines] for fact in whole))
            losses.append(objective(model.score(own, replace(items, components=components)).scores, own, roles).sum())
        return torch.stack(losses).sum(), None
