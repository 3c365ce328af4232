"""Training of RBE: supports are chosen, and one piece learns from the matrix of relevances."""

from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.scored import ScoredTexts
from rails_ray.families.config import RunConfig
from rails_ray.families.rbe.config import DistilledConfig, NoFeatures, TopShareConfig
from rails_ray.families.rbe.model import Rbe
from rails_ray.families.rbe.serve import RbeFamily
from rails_ray.families.training_family import TrainingFamily
from rails_ray.modules.encoders.config import InputFacts
from rails_ray.modules.losses.distilled import distilled
from rails_ray.modules.losses.top_share import top_share
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.reranking.rankers import candidates_of
from rails_ray.reranking.supports import select_supports
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Prepared, Steps
from rails_ray.training.relevances import QueryLoss, RelevanceBatch, RelevanceSampler, RelevanceStep

TO_CHOOSE_FROM = 2  # complete items for each support, below which queries with holes are left out
AMONG = 4  # items that are looked at for each of these


@dataclass(frozen=True)
class RbeTraining(RbeFamily, TrainingFamily):
    """The contract of `TrainingFamily`."""

    def completed(self, read: DataSet) -> RunConfig:
        """The config with the numbers of items and support queries, and the width of query features.

        Raises:
            ValueError: if the queries have no scores, or there are fewer items or queries than the config asks for.
        """
        train, num_items = self._scored(read, "train"), len(read.item_ids)
        self._scored(read, "valid")
        if self.own.num_items not in (0, num_items):
            raise ValueError(
                f"num_items must be the {num_items} items of {self.data_name}, or 0, got {self.own.num_items}"
            )
        num_queries = len(self.support_query_rows(train))
        if self.own.num_support_queries > num_queries:
            raise ValueError(
                f"num_support_queries must be at most the {num_queries} training queries of {self.data_name} with "
                f"the scores that supports need, got {self.own.num_support_queries}"
            )
        if self.own.num_supports > num_items:
            raise ValueError(
                f"num_supports must be at most the {num_items} items of {self.data_name}, got {self.own.num_supports}"
            )
        if self.own.num_best > num_items:
            raise ValueError(
                f"num_best must be at most the {num_items} items of {self.data_name}, got {self.own.num_best}"
            )
        return self.config.with_family(
            num_items=num_items,
            num_support_queries=num_queries,
            features=self._completed_features(),
            ranker=self.own.ranker.at_absolute_folder(),
        )

    def _completed_features(self) -> Any:
        features = self.own.features
        if isinstance(features, NoFeatures):
            return features
        return features.for_inputs(InputFacts(), self.data_name, self.allowed)

    def _scored(self, read: DataSet, split: str) -> ScoredTexts:
        """The queries of a split that have any score.

        Raises:
            ValueError: if there is none.
        """
        inputs = read.queries[split].inputs
        if not isinstance(inputs, ScoredTexts):
            raise ValueError(
                f"{self.data_name} must have a table of scores, got none: make them with `rails-ray relevance`"
            )
        has_any = ~np.isnan(inputs.scores).all(axis=1)
        if not has_any.any():
            raise ValueError(f"{self.data_name} must hold a query with scores in split {split!r}, got none")
        return inputs.take(np.flatnonzero(has_any))

    def check_can_be_asked(self, read: DataSet) -> None:
        """Any texts will do: what is not scored is scored."""

    @property
    def trains(self) -> bool:
        return True

    def pieces(self) -> list["RelevancePiece"]:
        return [RelevancePiece(self)]

    def loss(self) -> QueryLoss:
        match self.own.loss:
            case DistilledConfig():
                return partial(distilled, temperature=self.own.loss.temperature)
            case TopShareConfig():
                return partial(top_share, num_best=self.own.num_best)
            case _:
                assert_never(self.own.loss)

    def learned(self, read: DataSet, device: str = "cpu") -> Rbe:
        """A model that begins as AnnCUR on the training queries of a data set.

        Args:
            device: where supports are chosen; the model is on the CPU.

        Raises:
            ValueError: if too few items have all scores that a support needs.
        """
        model, train = self.model(), self._scored(read, "train")
        assert isinstance(read.item_inputs, Texts)
        rows = self.support_query_rows(train)
        relevance = torch.from_numpy(train.scores[rows]).T  # [X, Q]
        supports = self.support_rows(relevance, device)
        of_queries = train.take(np.flatnonzero(~np.isnan(train.scores[:, supports]).any(axis=1)))
        known = relevance[~relevance.isnan()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            model.learn(
                candidates_of(list(read.item_ids), list(read.item_inputs)),
                torch.from_numpy(supports),
                [train[int(row)] for row in rows],
                relevance,
                torch.from_numpy(of_queries.scores[:, supports]),
                float(known.double().std()) if len(known) > 1 else 0.0,
                None if model.reads is None else model.reads.queries(model.reads.query_features(of_queries.texts)),
            )
        return model

    def support_query_rows(self, train: ScoredTexts) -> NDArray[np.int64]:
        """Rows of the support queries among the training queries."""
        return support_queries(train, self.own.num_support_queries, self.config.seed, self.own.num_supports)

    def support_rows(self, relevance: torch.Tensor, device: str = "cpu") -> NDArray[np.int64]:
        """Rows of the supports, of items without a hole in R(I, S_Q) [X, Q]. The device does the work."""
        complete = (~relevance.isnan().any(dim=1)).nonzero().flatten()
        num_supports, num_candidates = self.own.num_supports, self.own.num_candidates or None
        if len(complete) < num_supports:
            raise ValueError(
                f"supports must have a score for each of the {relevance.shape[1]} support queries: {num_supports} items"
                f" must have all, got {len(complete)}: take fewer supports or support queries, or fill the holes"
            )
        chosen = select_supports(
            self.own.supports,
            relevance[complete].to(device),
            num_supports,
            seed=self.config.seed,
            num_candidates=None if num_candidates is None else min(num_candidates, len(complete)),
        )
        rows: NDArray[np.int64] = complete[chosen].numpy()
        return rows


def support_queries(train: ScoredTexts, num_queries: int, seed: int, num_supports: int = 1) -> NDArray[np.int64]:
    """Rows of the support queries among the training queries: all for 0, else some drawn from the seed, in order.

    A support has a score for each of them. As long as fewer than TO_CHOOSE_FROM items for each support have all, the
    query with the most holes at the items with the fewest is left out. If that does not help, all queries stay.
    """
    rows, holes = np.arange(len(train)), np.isnan(train.scores)
    wanted = min(TO_CHOOSE_FROM * num_supports, holes.shape[1])
    best = np.argsort(holes.sum(axis=0), kind="stable")[: AMONG * wanted]  # items that can become complete
    left = holes[:, best].astype(np.int64)
    of_items, of_queries, num_left = left.sum(axis=0), left.sum(axis=1), len(rows)
    while (of_items == 0).sum() < wanted and num_left > max(num_queries, num_supports):
        worst = int(of_queries.argmax())
        of_items -= left[worst]
        of_queries[worst] = -1
        num_left -= 1
    if (of_items == 0).sum() >= num_supports:
        rows = np.flatnonzero(of_queries >= 0)
    if not num_queries:
        return rows
    return np.sort(np.random.default_rng(seed).permutation(rows)[:num_queries])


@dataclass(frozen=True)
class RelevancePiece:
    """The contract of `Piece`: the embedding, on one worker, as it is small."""

    family: RbeTraining
    name: str = ""
    after: tuple[str, ...] = ()
    shares_gradient: bool = False

    @property
    def training(self) -> TrainingConfig:
        return self.family.config.training

    def check_workers(self, num_workers: int) -> None:
        """One worker trains, however many there are."""

    def prepare(self, given: Given) -> Prepared:
        family, read = self.family, given.read
        model = family.learned(read, given.device)
        step = RelevanceStep(model.embedding, model.combinations, family.loss(), family.own.num_best)
        batches = {split: self._batch(model, family._scored(read, split)) for split in ("train", "valid")}
        sampler = RelevanceSampler(batches["train"], self.training.batch_size, family.config.seed)

        def report(progress: Progress) -> dict[str, Any]:
            return family.validation(given.storage, given.run, model, read).to_dict()

        return Prepared(
            module=model,
            report=report,
            steps=Steps(
                step=step,
                batch_of=sampler.batch,
                seed=[family.config.seed],
                validate=lambda: step.hit_rate(batches["valid"], family.own.num_best),
                begins_trained=True,
            ),
        )

    def _batch(self, model: Rbe, inputs: ScoredTexts) -> RelevanceBatch:
        """The queries that have every support's score."""
        features = model.query_features(inputs)
        rows = features.scores.isfinite().all(dim=1).nonzero().flatten()
        if not len(rows):
            raise ValueError(
                f"a query of {self.family.data_name} must have the scores of all {len(model.supports)} supports, got "
                "none in a split"
            )
        return RelevanceBatch(features.take(rows), torch.from_numpy(inputs.scores)[rows])


FAMILY = RbeTraining
