"""Training batches, drawn from the seed and the step's number alone.

Every worker draws the same global batch and keeps its own slice of the queries, so that the number of workers changes
nothing, and a run can begin at any step.

| member          | a query's negatives                                                                     |
|-----------------|-----------------------------------------------------------------------------------------|
| `PairSampler`   | items that are drawn, the same for the whole batch; queries are drawn that some answer  |
| `WindowSampler` | items that are drawn, for the batch, a window or a position, each of which is a query   |
| `in_batch`      | a module of its own: the positives of the batch's other queries                         |

Where training pairs have weights w, a batch counts its queries by them:

    L = sum_i w_i l_i / sum_i w_i          over the global batch

Axes: B queries of a worker's batch, N items of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.data.drawing import Drawing, Uniform
from rails_ray.data.epochs import Epochs
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.modules.encoders.histories import Histories
from rails_ray.modules.losses.glas import CoOccurrence
from rails_ray.modules.losses.negatives import BatchRelevance, Roles, are_relevant, roles

SharedBy = Literal["batch", "history", "query"]


@runtime_checkable
class FeatureRows(Protocol):
    """Features of many inputs, from which some can be taken."""

    def __len__(self) -> int: ...

    def take(self, rows: Int[Tensor, " M"]) -> "FeatureRows": ...

    def to(self, device: torch.device | str) -> "FeatureRows": ...


@runtime_checkable
class Batch(Protocol):
    """Batch of a training step: anything that can be moved to its device."""

    def to(self, device: torch.device | str) -> Any: ...


@runtime_checkable
class Sampler(Protocol):
    """Gives the batch of any step."""

    def batch(self, step: int) -> Batch:
        """This worker's slice of the global batch of a step."""


class Groups(NamedTuple):
    """Queries that share negatives with their neighbours alone, and not with the whole batch.

    of_query: the group of each query, ascending.
    negatives: which items of the batch are the negatives of a group's queries.
    """

    of_query: Int[Tensor, " B"]
    negatives: Int[Tensor, "G C"]

    @property
    def is_one_each(self) -> bool:
        """Return whether every query has negatives of its own."""
        return len(self.of_query) == len(self.negatives)

    def parts(self) -> list[slice]:
        """The queries of each group."""
        ends = torch.bincount(self.of_query, minlength=len(self.negatives)).cumsum(0).tolist()
        return [slice(first, end) for first, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class TrainingBatch:
    """Queries, and items among which each query has one positive; the others are its negatives unless relevant too.

    positive: which of `items` is each query's positive.
    item_rows: item row of each of `items`.
    relevance: which item rows answer the queries.
    weight: what one query counts: the number of workers divided by the queries of the global batch, so that the mean
        over workers of weighted sums is the mean over all queries.
    weights: what each query counts, relative to the mean of the global batch; None if all count alike.
    num_shared: None if all items are candidates of all queries. Otherwise the first `num_shared` are, and after them
        each query's positive has a column of its own and is no candidate of the other queries.
    groups: queries that share negatives of their own; None if the first `num_shared` items are for all.
    log_weights: what a negative's logit is corrected by, for each of `items`; None for nothing.
    glas_targets: targets of the items' cosines; None if the run does not use GLaS.
    """

    queries: Any
    items: Any
    positive: Int[Tensor, " B"]
    item_rows: Int[Tensor, " N"]
    relevance: BatchRelevance
    weight: float
    weights: Float[Tensor, " B"] | None = None
    num_shared: int | None = None
    groups: Groups | None = None
    log_weights: Float[Tensor, " N"] | None = None
    glas_targets: Float[Tensor, "N N"] | None = None

    @property
    def positive_rows(self) -> Int[Tensor, " B"]:
        """Item row of each query's positive."""
        return self.item_rows[self.positive]

    def roles(self) -> Roles:
        """Return the role of each candidate for each query."""
        weights = None if self.log_weights is None else self.log_weights.expand(len(self.positive), -1)
        if self.num_shared is None:
            return roles(self.item_rows, self.positive, self.relevance)._replace(log_weights=weights)
        is_relevant = are_relevant(self.item_rows, len(self.positive), self.relevance)
        if self.groups is None:
            is_relevant = is_relevant[:, : self.num_shared]
            weights = None if weights is None else weights[:, : self.num_shared]
        else:
            columns = self.groups.negatives[self.groups.of_query]
            is_relevant = is_relevant.gather(1, columns)
            weights = None if weights is None else weights.gather(1, columns)
        own = is_relevant.new_ones(len(self.positive), 1)
        return Roles(
            torch.full_like(self.positive, is_relevant.shape[1]),
            torch.cat([is_relevant, own], dim=1),
            torch.cat([~is_relevant, ~own], dim=1),
            None if weights is None else torch.cat([weights, torch.zeros_like(weights[:, :1])], dim=1),
        )

    def to(self, device: torch.device | str) -> "TrainingBatch":
        return replace(
            self,
            queries=self.queries.to(device),
            items=self.items.to(device),
            positive=self.positive.to(device),
            item_rows=self.item_rows.to(device),
            relevance=BatchRelevance(*(column.to(device) for column in self.relevance)),
            weights=None if self.weights is None else self.weights.to(device),
            groups=None if self.groups is None else Groups(*(column.to(device) for column in self.groups)),
            log_weights=None if self.log_weights is None else self.log_weights.to(device),
            glas_targets=None if self.glas_targets is None else self.glas_targets.to(device),
        )


class PairSampler:
    """Draws items, then queries that they answer: every item of a batch serves all its queries.

    By default items are drawn uniformly, and are uniform negatives of each query. They are encoded once for all
    queries, as a step of a text model spends its time on encoding. A query with many relevant items comes up more often
    than a query with one.
    """

    def __init__(
        self,
        queries: Queries,
        query_features: FeatureRows,
        item_features: FeatureRows,
        *,
        batch_size: int,
        num_items: int,
        seed: int,
        rank: int = 0,
        num_workers: int = 1,
        drawing: Drawing | None = None,
        hard_rows: Callable[[int], Int[Tensor, "Q H"]] | None = None,
        co_occurrence: CoOccurrence | None = None,
    ) -> None:
        """Args:
            batch_size: queries of the global batch, a multiple of num_workers.
            num_items: N, items of the global batch, which all workers share.
            drawing: how items are drawn; by default uniformly.
            hard_rows: hard negatives of every training query at a step, -1 for none: a batch has those of its queries
                too, for all of them.
            rank: this worker's rank, in 0 .. num_workers - 1.
            co_occurrence: the items' co-occurrence in all training queries, if batches shall have `glas_targets`.

        Raises:
            ValueError: if the batch cannot be divided among the workers.
        """
        self.queries = queries
        self.query_features = query_features
        self.item_features = item_features
        self.batch_size = batch_size
        self.num_items = num_items
        self.seed = seed
        self.num_workers = num_workers
        self.drawing = drawing or Uniform(len(item_features))
        self.hard_rows = hard_rows
        self.co_occurrence = co_occurrence
        self.mine = slice_of(rank, num_workers, batch_size)
        # Queries by item: item x answers _answers[_starts[x] : _starts[x + 1]].
        query_of = np.repeat(np.arange(len(queries)), queries.relevant.lengths)
        by_item = np.argsort(queries.relevant.rows, kind="stable")
        self._answers = query_of[by_item]
        self._weights = None if queries.relevant.weights is None else queries.relevant.weights[by_item]
        self._starts = np.concatenate(
            [[0], np.cumsum(np.bincount(queries.relevant.rows, minlength=len(item_features)))]
        )

    def batch(self, step: int) -> TrainingBatch:
        """This worker's slice of the global batch of a step."""
        generator = np.random.default_rng([self.seed, step])
        rows = self.drawing.draw(generator, [self.num_items])
        num_answers = self._starts[rows + 1] - self._starts[rows]
        if not num_answers.any():  # none of the items answers a training query: let one in that does
            rows[0] = generator.choice(self.queries.relevant.rows)
            num_answers = self._starts[rows + 1] - self._starts[rows]
        positive = generator.choice(np.flatnonzero(num_answers), size=self.batch_size)
        pairs = self._starts[rows[positive]] + generator.integers(num_answers[positive])
        chosen = self._answers[pairs]
        weights = None if self._weights is None else relative(self._weights[pairs])

        chosen, positive = chosen[self.mine], positive[self.mine]
        if self.hard_rows is not None:
            hard = np.unique(self.hard_rows(step)[chosen].numpy())
            rows = np.concatenate([rows, hard[hard >= 0]])
        item_rows = torch.from_numpy(rows)
        return TrainingBatch(
            queries=self.query_features.take(torch.from_numpy(chosen)),
            items=self.item_features.take(item_rows),
            positive=torch.from_numpy(positive),
            item_rows=item_rows,
            relevance=relevance_of(self.queries.relevant.take(chosen)),
            weight=self.num_workers / self.batch_size,
            weights=None if weights is None else weights[self.mine],
            log_weights=_tensor(self.drawing.log_weights(rows)),
            glas_targets=None if self.co_occurrence is None else self.co_occurrence.targets(item_rows),
        )


class WindowSampler:
    """Draws windows of training sequences; every position of a window asks for the item that comes next.

    Each user comes up once in an epoch. A user's window begins at a random place if the sequence is longer than it.
    Negatives are the same for the whole batch, for each window, or for one position.

    Source: RAILS, Section 5.1, where each position draws its own.
    """

    def __init__(
        self,
        histories: Visits,
        next_rows: NDArray[np.int64],
        next_weights: NDArray[np.float64] | None = None,
        *,
        num_corpus_items: int,
        max_length: int,
        batch_size: int,
        num_items: int,
        shared_by: SharedBy = "batch",
        drawing: Drawing | None = None,
        seed: int,
        rank: int = 0,
        num_workers: int = 1,
    ) -> None:
        """Args:
            histories: the histories of the training split.
            next_rows: the item that comes after each of them.
            next_weights: what this item counts, if histories have weights.
            max_length: T, longest window.
            batch_size: windows of the global batch, a multiple of num_workers.
            num_items: negatives that are drawn for the global batch, for each window or for each position.
            shared_by: which of them.
            drawing: how they are drawn; by default uniformly.
            rank: this worker's rank, in 0 .. num_workers - 1.

        Raises:
            ValueError: if the batch cannot be divided among the workers.
        """
        self.histories = histories
        self.next_rows = next_rows
        self.next_weights = next_weights
        self.drawing = drawing or Uniform(num_corpus_items)
        self.max_length = max_length
        self.batch_size = batch_size
        self.num_items = num_items
        self.shared_by = shared_by
        self.seed = seed
        self.num_workers = num_workers
        self.mine = slice_of(rank, num_workers, batch_size)
        self._epochs = Epochs([seed, 0], len(histories))

    def batch(self, step: int) -> TrainingBatch:
        """This worker's slice of the global batch of a step."""
        generator = np.random.default_rng([self.seed, 1, step])
        shared = self.drawing.draw(generator, [self.num_items if self.shared_by == "batch" else 0])
        users = self._epochs.through(step, self.batch_size)
        lengths = self.histories.lengths[users]
        sizes = np.minimum(lengths, self.max_length)
        first = generator.integers(lengths - sizes + 1)
        own = self._own_negatives(generator, sizes)
        weights, ends = self._weights(users, first, sizes), np.concatenate([[0], sizes.cumsum()])

        users, first, last = users[self.mine], first[self.mine], sizes[self.mine, None]
        at = np.arange(self.max_length)
        is_asked = at < last  # [B, T]
        place = (self.histories.starts[users] + first)[:, None] + np.minimum(at, last - 1)
        rows, times, names = self.histories.rows[place], self.histories.times, self.histories.users
        following = self.histories.rows[np.minimum(place + 1, len(self.histories.rows) - 1)]
        is_end = first[:, None] + at == lengths[self.mine, None] - 1
        rows_asked = np.flatnonzero(is_asked)
        after = np.where(is_end, self.next_rows[users, None], following).reshape(-1)[rows_asked]
        distinct, columns = np.unique(np.concatenate([own.reshape(-1), after]), return_inverse=True)
        rows_of_items = np.concatenate([shared, distinct])
        items, groups = torch.from_numpy(rows_of_items), None
        if len(own):
            of_query = np.arange(len(rows_asked)) if self.shared_by == "query" else rows_asked // self.max_length
            negatives = columns[: own.size].reshape(own.shape)
            groups = Groups(torch.from_numpy(of_query), torch.from_numpy(negatives))
        return TrainingBatch(
            queries=Histories(
                torch.from_numpy(rows),
                torch.from_numpy(rows_asked),
                None if times is None else torch.from_numpy(times[place]),
                None if names is None else torch.from_numpy(names[users]),
            ),
            items=items,
            positive=torch.from_numpy(len(shared) + columns[own.size :]),
            item_rows=items,
            relevance=BatchRelevance(torch.arange(len(rows_asked)), torch.from_numpy(after)),
            weight=float(self.num_workers / sizes.sum()),
            weights=None if weights is None else weights[ends[self.mine.start] : ends[self.mine.stop]],
            num_shared=len(shared),
            groups=groups,
            log_weights=_tensor(self.drawing.log_weights(rows_of_items)),
        )

    def _weights(
        self, users: NDArray[np.int64], first: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Float[Tensor, " M"] | None:
        """Weights of all positions of the windows of the global batch, by the items that come next."""
        of_rows, of_next = self.histories.weights, self.next_weights
        if of_rows is None or of_next is None:
            return None
        lengths = self.histories.lengths[users]
        lines = [
            np.append(of_rows[start : start + length], of_next[user])[begin + 1 : begin + 1 + size]
            for user, start, length, begin, size in zip(
                users, self.histories.starts[users], lengths, first, sizes, strict=True
            )
        ]
        return relative(np.concatenate(lines))

    def _own_negatives(self, generator: np.random.Generator, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The negatives of this worker's groups, a line each; without lines if the batch shares its negatives.

        Args:
            sizes: positions of each window of the global batch.
        """
        ends = np.concatenate([[0], sizes.cumsum() if self.shared_by == "query" else np.arange(1, len(sizes) + 1)])
        num_groups = 0 if self.shared_by == "batch" else int(ends[-1])
        drawn = self.drawing.draw(generator, [num_groups, self.num_items])
        return drawn[ends[self.mine.start] : ends[self.mine.stop]]


def relative(weights: NDArray[np.float64]) -> Float[Tensor, " B"] | None:
    """Weights of a global batch, divided by their mean; None if all are equal. Zeros stay, if there is nothing else."""
    if (weights == weights[:1]).all() and weights[:1].any():
        return None
    shares = weights / max(weights.max(initial=0.0), np.finfo(np.float64).tiny)  # whose sum is finite
    return torch.from_numpy(shares / max(shares.mean(), np.finfo(np.float64).tiny)).float()


def weighted_sum(losses: Float[Tensor, " B"], weights: Float[Tensor, " B"] | None) -> Float[Tensor, ""]:
    """The sum of losses, each times its weight."""
    return losses.sum() if weights is None else (losses * weights).sum()


def _tensor(array: NDArray[np.float32] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)


def relevance_of(relevant: ItemLists) -> BatchRelevance:
    """The pairs of queries and the items that answer them."""
    query = np.repeat(np.arange(len(relevant)), relevant.lengths)
    return BatchRelevance(torch.from_numpy(query), torch.from_numpy(relevant.rows))


def slice_of(rank: int, num_workers: int, batch_size: int) -> slice:
    """A worker's part of a global batch.

    Raises:
        ValueError: if the batch cannot be cut into equal parts.
    """
    if batch_size % num_workers:
        raise ValueError(f"batch_size must be a multiple of the {num_workers} workers, got {batch_size}")
    size = batch_size // num_workers
    return slice(rank * size, (rank + 1) * size)
