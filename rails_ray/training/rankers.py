"""Training of heavy rankers: a cross-encoder on queries with the items that answer them, boosted trees on features.

    cross-encoder:  L = -log softmax(s(q, x+), s(q, x-_1), ..)      x- drawn from all items
    boosted trees:  binary cross entropy of s(q, x+) against s(q, x-), by LightGBM

Axes: B queries, N negatives, P positive pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import ItemLists, check_unweighted
from rails_ray.modules.encoders.tokenizer import PADDING
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.optional import optional
from rails_ray.reranking.rankers import RANKERS, boosted, cross_encoder
from rails_ray.reranking.rankers.boosted import PairFeatures, TreesConfig
from rails_ray.reranking.rankers.cross_encoder import CrossEncoder, CrossEncoderConfig, PairReader
from rails_ray.training.loop import Progress, train


@dataclass(frozen=True)
class PairBatch:
    """Queries with their candidates, the first of which answers each.

    queries: tokens of each query.
    items: tokens of its candidates.
    """

    queries: Int[Tensor, "B T"]
    items: Int[Tensor, "B C U"]

    def to(self, device: torch.device | str) -> "PairBatch":
        return PairBatch(self.queries.to(device), self.items.to(device))


class CrossEncoderStep(nn.Module):
    """Loss of a cross-encoder on a batch."""

    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PairBatch) -> Float[Tensor, ""]:
        """The mean over queries, in nats."""
        loss: Tensor = -F.log_softmax(self.scores(batch), dim=1)[:, 0].mean()
        return loss

    def scores(self, batch: PairBatch) -> Float[Tensor, "B C"]:
        num_candidates = batch.items.shape[1]
        queries = batch.queries.repeat_interleave(num_candidates, dim=0)
        scores: Tensor = self.model(queries, batch.items.flatten(0, 1)).unflatten(0, (-1, num_candidates))
        return scores


@dataclass(frozen=True)
class RankerPairSampler:
    """Queries drawn at random, each with one item that answers it and with negatives that do not."""

    queries: Int[Tensor, "Q T"]
    items: Int[Tensor, "X U"]
    relevant: ItemLists
    batch_size: int
    num_negatives: int
    seed: int

    def batch(self, step: int) -> PairBatch:
        draws = np.random.default_rng([self.seed, step])
        rows = draws.integers(len(self.queries), size=self.batch_size)
        candidates = draws.integers(len(self.items), size=(self.batch_size, 1 + self.num_negatives))
        for line, row in enumerate(rows):
            own = self.relevant[int(row)]
            candidates[line, 0] = draws.choice(own)
            while (is_relevant := np.isin(candidates[line, 1:], own)).any() and len(own) < len(self.items):
                candidates[line, 1:][is_relevant] = draws.integers(len(self.items), size=is_relevant.sum())
        return PairBatch(_trimmed(self.queries[rows]), _trimmed(self.items[torch.from_numpy(candidates)]))


def _trimmed(tokens: Int[Tensor, "*N T"]) -> Int[Tensor, "*N _"]:
    """No wider than the longest text."""
    return tokens[..., : int((tokens != PADDING).sum(dim=-1).max())]


def train_cross_encoder(
    read: DataSet,
    folder: Path,
    config: CrossEncoderConfig,
    training: TrainingConfig,
    *,
    num_negatives: int = 7,
    seed: int = 0,
    device: str = "cpu",
    report: Callable[[int, float], None] = lambda done, loss: None,
) -> Progress:
    """Train a cross-encoder on the training queries of texts, and write it to a folder.

    Raises:
        FloatingPointError: if the loss is not finite.
        ValueError: if the items or the queries are no texts, or there are no negatives to compare with.
    """
    if num_negatives < 1:
        raise ValueError(f"num_negatives must be at least 1, got {num_negatives}")
    queries, items = read.queries["train"], read.item_inputs
    if not isinstance(queries.inputs, Texts) or not isinstance(items, Texts):
        raise ValueError("a cross-encoder needs queries and items that are texts, got others")
    check_unweighted(queries, "a cross-encoder")
    reader = PairReader.of([*items, *queries.inputs], config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CrossEncoder(config).to(device)
    sampler = RankerPairSampler(
        queries=reader.queries(list(queries.inputs)),
        items=reader.items(list(items)),
        relevant=queries.relevant,
        batch_size=training.batch_size,
        num_negatives=num_negatives,
        seed=seed,
    )
    progress = train(CrossEncoderStep(model), sampler.batch, training, seed=[seed], report=report)
    cross_encoder.save(folder, model, reader)
    return progress


def train_boosted(
    features: PairFeatures,
    positives: Int[NDArray[np.int64], "P 2"],
    folder: Path,
    config: TreesConfig,
    *,
    num_negatives: int = 4,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda done, loss: None,
) -> None:
    """Train boosted trees on pairs that are relevant, each against items drawn at random, and write them to a folder.

    Args:
        positives: rows of the query and of the item of each relevant pair.
        num_negatives: items drawn for each pair; those that are relevant are left out.

    Raises:
        UnsupportedError: if lightgbm is not installed.
        ValueError: if there are no negatives to compare with.
    """
    if num_negatives < 1:
        raise ValueError(f"num_negatives must be at least 1, got {num_negatives}")
    lightgbm = optional("lightgbm", needed_by="a boosted ranker", package="lightgbm", install=RANKERS)
    draws = np.random.default_rng(seed)
    drawn = draws.integers(len(features.items), size=len(positives) * num_negatives)
    negatives = np.stack([np.repeat(positives[:, 0], num_negatives), drawn], axis=1)
    drawn, relevant = (pairs[:, 0] * len(features.items) + pairs[:, 1] for pairs in (negatives, positives))
    negatives = negatives[~np.isin(drawn, relevant)]
    rows, shared = np.concatenate([positives, negatives]), features.num_shared
    queries, found = features.queries[rows[:, 0]], features.items[rows[:, 1]]
    read = np.concatenate([queries, found, queries[:, :shared] * found[:, :shared]], axis=1).astype(np.float32)
    is_relevant = np.repeat([1.0, 0.0], [len(positives), len(negatives)])
    asked_for = {
        "objective": "binary",
        "num_leaves": config.num_leaves,
        "learning_rate": config.learning_rate,
        "seed": seed,
        "deterministic": True,
        "verbose": -1,
    }
    trees = lightgbm.train(
        asked_for,
        lightgbm.Dataset(read, is_relevant),
        num_boost_round=config.num_rounds,
        callbacks=[lambda state: report(state.iteration + 1, float("nan"))],
    )
    boosted.save(folder, features)
    trees.save_model(str(folder / boosted.TREES))
