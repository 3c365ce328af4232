"""What the RBE bench compares: AnnCUR and RBE by the product's own family, and a dual encoder on the same matrix.

The dual encoder has the same matrix, loss, training queries, validation and early stopping. In place of the ranker's
scores it reads features of the query and of the item, and begins as their inner product.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.rbe.config import RbeConfig
from rails_ray.families.rbe.train import RbeTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.modules.losses.distilled import distilled
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.reranking.axn import Axn
from rails_ray.reranking.rankers import boosted
from rails_ray.reranking.scored import SupportScores
from rails_ray.storage.filesystem import Storage
from rails_ray.training.loop import Progress, train
from rails_ray.training.piece import Given
from rails_ray.training.relevances import RelevanceBatch, RelevanceSampler, RelevanceStep, found_of_best

NUM_FEATURES = 256  # numbers that the dual encoder reads of a text
WIDTH = 128  # of the dual encoder's vectors, as of RBE's
NUM_BEST = 100
AXN_RIDGE, ROUNDS = 0.1, 10  # of item vectors of length 1; of .01, .1 and 1 the best on molecules (seed 0)
TRAINING = TrainingConfig(
    num_steps=3000, batch_size=64, learning_rate=1e-3, weight_decay=0.0, validate_every=100, patience=10
)


@dataclass(frozen=True)
class Estimates:
    """What a model says of the test queries.

    start: u0, the scores before any ranking [Q, X], in the ranker's units.
    vectors: E of the items [X, D].
    queries: of the test queries, in the ranker's units [Q, D].
    bytes_an_item: of storage.
    """

    start: Tensor
    vectors: Tensor
    queries: Tensor
    progress: Progress
    bytes_an_item: int


def head(found: Estimates, num_queries: int) -> Estimates:
    """The same of the first queries."""
    return replace(found, start=found.start[:num_queries])


@dataclass(frozen=True)
class Matrix:
    """A matrix by splits [Q, X]."""

    name: str
    folder: Path
    relevance: dict[str, Tensor]
    texts: dict[str, list[str]]
    item_texts: list[str]
    item_ids: list[Any]
    config: RunConfig
    read: Any

    @staticmethod
    def load(name: str, storage: Path) -> "Matrix":
        folder = storage / "relevance" / name
        config = replace(by_name("text-rbe"), data=DataConfig(folder=str(folder)), training=TRAINING)
        read = read_data(config, Storage(str(storage)))
        inputs = {split: read.queries[split].inputs for split in ("train", "valid", "test")}
        return Matrix(
            name,
            folder,
            {split: torch.from_numpy(own.scores) for split, own in inputs.items()},
            {split: [own[row] for row in range(len(own))] for split, own in inputs.items()},
            list(read.item_inputs),
            list(read.item_ids),
            config,
            read,
        )

    def own(self, seed: int, **fields: Any) -> RbeTraining:
        """The product's family on this matrix."""
        made = training_family(for_data(replace(self.config, seed=seed).with_family(**fields), self.read))
        assert isinstance(made, RbeTraining)
        assert isinstance(made.own, RbeConfig)
        return made


def anncur(matrix: Matrix, seed: int, **fields: Any) -> tuple[Estimates, Any]:
    """AnnCUR of the product: RBE before its training. Also the prepared piece."""
    own = matrix.own(seed, **fields)
    prepared = own.pieces()[0].prepare(Given(read=matrix.read, storage=Storage(str(matrix.folder)), run="bench"))
    return _estimates(matrix, prepared, Progress()), prepared


def rbe(matrix: Matrix, seed: int, training: TrainingConfig = TRAINING, **fields: Any) -> Estimates:
    """RBE of the product, trained."""
    _, prepared = anncur(matrix, seed, **fields)
    steps = prepared.steps
    progress = train(
        steps.step,
        steps.batch_of,
        training,
        seed=steps.seed,
        report=_quiet,
        validate=steps.validate,
        begins_trained=True,
    )
    return _estimates(matrix, prepared, progress)


@torch.no_grad()
def _estimates(matrix: Matrix, prepared: Any, progress: Progress) -> Estimates:
    model = prepared.module
    step: RelevanceStep = prepared.steps.step
    columns = [matrix.item_ids.index(support.item_id) for support in model.supports]
    sigma = model.embedding.sigma
    queries = SupportScores(matrix.relevance["test"][:, columns], None)
    vectors = model.embedding.items(step.combinations)
    asked = model.embedding.queries(queries.scores, queries.features) * sigma
    return Estimates(step.estimated(queries) * sigma, vectors, asked, progress, 4 * vectors.shape[1])


def dual_encoder(matrix: Matrix, seed: int, training: TrainingConfig = TRAINING) -> Estimates:
    """The baseline."""
    queries, items, num_shared = features(matrix)
    sigma = float(matrix.relevance["train"].std())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        step = DualEncoderStep(queries["train"], items, num_shared, sigma)
    batches = {
        split: RelevanceBatch(SupportScores(queries[split], None), matrix.relevance[split])
        for split in ("train", "valid", "test")
    }

    def validate() -> float:
        with torch.no_grad():
            estimated = step.estimated(batches["valid"].queries.scores)
        return float(found_of_best(estimated, batches["valid"].relevance, NUM_BEST, NUM_BEST).mean())

    sampler = RelevanceSampler(batches["train"], training.batch_size, seed)
    progress = train(step, sampler.batch, training, seed=[seed], report=_quiet, validate=validate, begins_trained=True)
    with torch.no_grad():
        asked, vectors = step.query_vectors(batches["test"].queries.scores) * sigma, step.item_vectors()
        return Estimates(asked @ vectors.T, vectors, asked, progress, 4 * vectors.shape[1])


class DualEncoderStep(nn.Module):
    """Two towers that begin as an inner product of features, and an item's own bias and vector beside its tower.

    Args:
        queries, items: features; the first `num_shared` of both mean the same.
    """

    items: Tensor

    def __init__(self, queries: Tensor, items: Tensor, num_shared: int, sigma: float) -> None:
        super().__init__()
        self.sigma, self.num_shared = sigma, num_shared
        self.register_buffer("items", items)
        self.query_tower, self.item_tower = _tower(queries.shape[1]), _tower(items.shape[1])
        last = self.query_tower[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.scale = nn.Parameter(torch.tensor(num_shared**0.5))  # cosines of features, about 1 apart
        self.table = nn.Parameter(0.01 * torch.randn(len(items), WIDTH))
        self.bias = nn.Parameter(torch.zeros(len(items)))

    def item_vectors(self) -> Tensor:
        shared = F.normalize(self.items[:, : self.num_shared], dim=1)
        return torch.cat([shared, self.item_tower(self.items) + self.table, self.bias[:, None]], dim=1)

    def query_vectors(self, queries: Tensor) -> Tensor:
        shared = self.scale * F.normalize(queries[:, : self.num_shared], dim=1)
        return torch.cat([shared, self.query_tower(queries), queries.new_ones(len(queries), 1)], dim=1)

    def estimated(self, queries: Tensor) -> Tensor:
        return self.query_vectors(queries) @ self.item_vectors().T

    def forward(self, batch: RelevanceBatch) -> Tensor:
        return distilled(self.estimated(batch.queries.scores), batch.relevance / self.sigma, 1.0).mean()


def _tower(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 256), nn.ELU(), nn.Linear(256, WIDTH))


def features(matrix: Matrix) -> tuple[dict[str, Tensor], Tensor, int]:
    """What a dual encoder reads: the ranker's own features of users and films, or a text's n-grams of letters; and how
    many of them mean the same of both sides."""
    if matrix.name.startswith("ml_"):
        own = boosted.load(matrix.folder.parent.parent / "data" / matrix.name / "ranker")
        row_of = {key: row for row, key in enumerate(own.query_keys)}
        items = {key: row for row, key in enumerate(own.item_keys)}
        of_items = own.items[[items[str(item_id)] for item_id in matrix.item_ids]]
        of_queries = {split: own.queries[[row_of[text] for text in texts]] for split, texts in matrix.texts.items()}
        num_shared = own.num_shared
    else:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        words = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), lowercase=False, sublinear_tf=True, min_df=2)
        every = words.fit_transform([*matrix.item_texts, *matrix.texts["train"]])
        svd = TruncatedSVD(NUM_FEATURES, random_state=0).fit(every)
        of_items = svd.transform(words.transform(matrix.item_texts))
        of_queries = {split: svd.transform(words.transform(texts)) for split, texts in matrix.texts.items()}
        num_shared = NUM_FEATURES
        return {split: _scaled(own) for split, own in of_queries.items()}, _scaled(of_items), num_shared
    train = of_queries["train"]
    standard = {split: _standard(own, train) for split, own in of_queries.items()}
    return standard, _standard(of_items, of_items), num_shared


def _scaled(rows: Any) -> Tensor:
    """Rows of length sqrt(D): cosines stay what they are."""
    return F.normalize(torch.from_numpy(np.asarray(rows, np.float32)), dim=1) * rows.shape[1] ** 0.5


def _standard(rows: Any, like: Any) -> Tensor:
    deviation = like.std(axis=0)
    scaled = (rows - like.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return torch.from_numpy(np.asarray(scaled, np.float32))


def after_calls(found: Estimates, calls: int, supports: Tensor | None = None) -> Tensor:
    """Which items have a score [Q, X] once the ranker has scored the `calls` best, and the supports if any."""
    estimated = found.start
    if supports is not None:
        estimated = estimated.clone()
        estimated[:, supports] = torch.inf
        calls += len(supports)
    rows = estimated.topk(min(calls, estimated.shape[1]), dim=1).indices
    return torch.zeros_like(estimated, dtype=torch.bool).scatter(1, rows, True)


def axn(found: Estimates, relevance: Tensor, calls: int, supports: Tensor | None = None) -> Tensor:
    """The same by AXN, in equal rounds. It begins with the supports if there are any."""
    scale = float(found.vectors.square().sum(dim=1).mean())
    made = Axn(found.vectors / scale**0.5, found.start, AXN_RIDGE)
    if supports is not None:
        rows = supports.expand(len(relevance), -1)
        made.learn(rows, relevance.gather(1, rows))
        calls += len(supports)
    size = -(-(calls - made.item_rows.shape[1]) // ROUNDS)
    while made.item_rows.shape[1] < min(calls, relevance.shape[1]):
        rows = made.ask(min(size, calls - made.item_rows.shape[1]))
        made.learn(rows, relevance.gather(1, rows))
    return torch.zeros_like(relevance, dtype=torch.bool).scatter(1, made.item_rows, True)


def hits(is_scored: Tensor, relevance: Tensor, num_best: int) -> Tensor:
    """HitRate of each query, if it answers with the best of what has a score."""
    best = relevance.topk(num_best, dim=1).indices
    return is_scored.gather(1, best).float().mean(dim=1)


def _quiet(done: int, loss: float) -> None:
    """Progress is not recorded."""


Trained = Callable[[Matrix, int], Estimates]
