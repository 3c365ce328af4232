"""What trains a dual encoder: its batches, its loss and what is added to it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.data.batch import PairSampler, Sampler, WindowSampler, relevance_of
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.drawing import Drawing, Mixture, Popularity, Uniform
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import Visits
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import (
    CrossDeviceNegatives,
    DrawnNegatives,
    DualEncoderConfig,
    HardNegatives,
    InBatchNegatives,
    MixedNegatives,
    PopularityNegatives,
)
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.modules.encoders.histories import HistoryConfig
from rails_ray.modules.encoders.text import TextTransformer
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.losses.config import ContrastiveConfig, MaximumLikelihoodConfig, NoneConfig, PointwiseConfig
from rails_ray.modules.losses.exp_nce import exp_logit
from rails_ray.modules.losses.glas import CoOccurrence
from rails_ray.modules.losses.sampled_softmax import scaled_logit
from rails_ray.modules.schedule import PRECISIONS
from rails_ray.training.collectives.first import from_first
from rails_ray.training.contrast import Contrast, Gathered, Streamed, WithinBatch
from rails_ray.training.mining import Mining, hardest
from rails_ray.training.objectives import Contrastive, MaximumLikelihood, Objective, Pointwise
from rails_ray.training.step import TrainingStep
from rails_ray.training.terms import Glas, MutualInformation, Term


@dataclass(frozen=True)
class DualEncoderTraining:
    """The half of `DualEncoderFamily` that training asks.

    own: this family's part of the config.
    """

    config: RunConfig
    own: DualEncoderConfig

    def training_step(self, trained: DualEncoder, mean_over_workers: Callable[[Tensor], Tensor]) -> TrainingStep:
        """What trains `trained` by the losses of the run."""
        return TrainingStep(
            trained,
            self.objective(trained),
            self.contrast(),
            terms=self.terms(mean_over_workers),
            has_gates_of_others=self.own.terms.mutual_information_of == "all",
            encode_size=self.own.encode_size,
            precision=PRECISIONS[self.config.training.precision],
        )

    def terms(self, mean_over_workers: Callable[[Tensor], Tensor]) -> list[Term]:
        """What is added to the loss of the queries."""
        weights = self.own.terms
        added = list[Term]()
        if weights.mutual_information_weight:
            added.append(MutualInformation(weights.mutual_information_weight, mean_over_workers))
        if weights.glas_weight:
            added.append(Glas(weights.glas_weight))
        return added

    def contrast(self) -> Contrast:
        """Which items a query is compared with."""
        match self.own.negatives:
            case DrawnNegatives() | InBatchNegatives():
                return WithinBatch()
            case CrossDeviceNegatives(block_size=0):
                return Gathered()
            case CrossDeviceNegatives(block_size=block_size):
                return Streamed(block_size)
            case _:
                assert_never(self.own.negatives)

    def objective(self, trained: DualEncoder) -> Objective:
        """What the scores of a batch are trained by; its own initial weights depend on the seed alone."""
        match self.own.loss:
            case ContrastiveConfig(pointwise_weight=weight):
                return Contrastive(self.logit(), weight)
            case PointwiseConfig():
                return Pointwise(self.logit())
            case MaximumLikelihoodConfig():
                num_query_components, _ = trained.similarity.num_components
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.config.seed)
                    return MaximumLikelihood(num_query_components * self.own.components.width)
            case NoneConfig():
                raise AssertionError("a run without a loss takes no step")
            case _:
                assert_never(self.own.loss)

    def logit(self) -> ScoreLogit:
        """The logit of a score that the loss compares; score / tau if the loss has none of its own."""
        match self.own.loss.kind:
            case "beta_nce":
                return beta_logit
            case "exp_nce":
                return exp_logit
            case "sampled_softmax" | "pointwise" | "maximum_likelihood":
                return partial(scaled_logit, tau=self.own.similarity.temperature)
            case "none":
                raise AssertionError("a run without a loss has no logit")
            case _:
                assert_never(self.own.loss.kind)

    def learn_tokens(
        self,
        built: DualEncoder,
        read: DataSet,
        *,
        is_first: bool = True,
        from_first: Callable[[Tensor], Tensor] = lambda tokens: tokens,
    ) -> None:
        """Let a model whose encoder has tokens learn them from all texts that training sees, before it trains.

        Args:
            is_first: whether this is the run's first worker; the others take its tokens.
            from_first: gives the first worker's tensor to every worker.
        """
        if not isinstance(built.encoder, TextTransformer):
            return
        if is_first:
            queries = read.queries["train"].inputs
            assert isinstance(read.item_inputs, Texts)
            assert isinstance(queries, Texts)
            built.encoder.learn(read.item_inputs.and_then(queries))
        built.encoder.set_extra_state(from_first(built.encoder.get_extra_state()))

    def sampler(
        self,
        trained: DualEncoder,
        read: DataSet,
        rank: int = 0,
        num_workers: int = 1,
        mining: Mining | None = None,
    ) -> Sampler:
        """The training batches of a worker.

        Args:
            mining: finds the hard negatives, if the run has some.
        """
        queries, negatives = read.queries["train"], self.own.negatives
        shared: dict[str, Any] = {
            "batch_size": self.config.training.batch_size,
            "seed": self.config.seed,
            "rank": rank,
            "num_workers": num_workers,
        }
        if isinstance(negatives, DrawnNegatives):
            shared["num_items"] = negatives.num_items
        if isinstance(self.own.encoder, HistoryConfig):
            assert isinstance(queries.inputs, Visits)
            assert isinstance(negatives, DrawnNegatives)
            return WindowSampler(
                queries.inputs,
                queries.relevant.rows,
                num_corpus_items=len(read.item_ids),
                max_length=self.own.encoder.max_length,
                shared_by=negatives.shared_by,
                drawing=self.drawing(read),
                **shared,
            )
        features = trained.query_features(queries.inputs), trained.item_features(read.item_inputs)
        if isinstance(negatives, InBatchNegatives | MixedNegatives):
            return InBatchSampler(queries, *features, is_corrected=negatives.is_corrected, **shared)
        if isinstance(negatives, CrossDeviceNegatives):
            return InBatchSampler(queries, *features, **shared)
        co_occurrence = None
        if self.own.terms.glas_weight:
            co_occurrence = CoOccurrence(relevance_of(queries.relevant), len(read.item_ids))
        hard_rows = None if mining is None else mining.at_batch
        drawing = self.drawing(read)
        return PairSampler(
            queries, *features, drawing=drawing, hard_rows=hard_rows, co_occurrence=co_occurrence, **shared
        )

    def drawing(self, read: DataSet) -> Drawing:
        """How negatives are drawn."""
        negatives, counts = self.own.negatives, training_counts(read)
        match negatives:
            case PopularityNegatives():
                return Popularity(counts, negatives.power, is_corrected=negatives.is_corrected)
            case MixedNegatives():
                return Mixture(Popularity(counts, 1.0, is_corrected=negatives.is_corrected))
            case _:
                return Uniform(len(read.item_ids))

    def mining(self, trained: DualEncoder, read: DataSet, *, is_first: bool = True) -> Mining | None:
        """What finds hard negatives; None if the run has none."""
        negatives, queries = self.own.negatives, read.queries["train"]
        if not isinstance(negatives, HardNegatives):
            return None
        features = trained.query_features(queries.inputs), trained.item_features(read.item_inputs)
        find = partial(hardest, trained, queries, *features, negatives.num_hard)
        shape = (len(queries), negatives.num_hard)
        every = negatives.mine_every * self.config.training.num_batches
        return Mining(find, shape, every, from_first=from_first, is_first=is_first)


def training_counts(read: DataSet) -> NDArray[np.int64]:
    """How many training queries each item answers [X]. In histories every position but the first is one's answer."""
    train = read.queries["train"]
    counts = np.bincount(train.relevant.rows, minlength=len(read.item_ids))
    if isinstance(train.inputs, Visits):
        is_first = np.zeros(len(train.inputs.rows) + 1, dtype=bool)
        is_first[train.inputs.starts] = True
        counts = counts + np.bincount(train.inputs.rows[~is_first[:-1]], minlength=len(read.item_ids))
    return counts
