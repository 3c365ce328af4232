"""Which items the queries of a batch are compared with, and how that is shared out: from states to a loss.

| member              | a query's items                                                                            |
|---------------------|--------------------------------------------------------------------------------------------|
| `WithinBatch`       | the items of its worker's batch                                                            |
| `Gathered`          | all workers' items, gathered: MoPQ, Section 3.2 (DCS); its baseline NCS by another gather   |
| `PrimaryAndImage`   | the same, by the paper's Algorithm 1                                                       |
| `Streamed`          | the same, block by block round the ring                                                    |

The last three give the loss and the gradient of one process that has the whole batch. Losses are sums over a
worker's queries, each times its weight.

Axes: B queries, N items of a worker's batch, G items of all workers, P pairs of components.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.data.batch import Groups, TrainingBatch, weighted_sum
from rails_ray.kernels.product_softmax import product_softmax
from rails_ray.modules.losses.negatives import Roles, are_copies, roles_among_copies
from rails_ray.modules.losses.sampled_softmax import ScaledLogit
from rails_ray.modules.losses.streaming_log_sum_exp import Sums
from rails_ray.modules.model import PairModel
from rails_ray.modules.similarities.dot_product import DotProduct
from rails_ray.modules.similarities.states import ItemState, QueryState, take, tensors_of, with_tensors
from rails_ray.training.collectives import gather as gathering
from rails_ray.training.collectives.dcs import primary_and_image
from rails_ray.training.collectives.group import Place, place_of
from rails_ray.training.collectives.ring import Ring, Shift, over_all_items, shift_on_ring
from rails_ray.training.objectives import Contrastive, Objective
from rails_ray.training.parts import equal_parts, sum_in_parts

Gates = Float[Tensor, "B P"] | None


@runtime_checkable
class Contrast(Protocol):
    """Compares a worker's queries with items."""

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Float[Tensor, ""], Gates]:
        """The sum of the losses of this worker's queries, in nats, and the gates of their positives."""


class WithinBatch:
    """The items of the worker's own batch: all, those that its queries share, or each query's own."""

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Gates]:
        place_of(tensors_of(items), "embeddings of items")
        if batch.num_shared is None:
            loss = loss_over(model, objective, query, items, batch.roles(), batch.weights)
            return loss, own_gates(model, query, items, batch)
        alone = model.score(query, take(items, batch.positive.unsqueeze(1)))
        gates = None if alone.gates is None else alone.gates.squeeze(1)
        if batch.groups is None:
            items = take(items, slice(batch.num_shared))
        weights, groups = batch.weights, batch.groups
        return loss_over(model, objective, query, items, batch.roles(), weights, alone.scores, groups), gates


def loss_over(
    model: PairModel,
    objective: Objective,
    query: QueryState,
    items: ItemState,
    roles: Roles,
    weights: Float[Tensor, " B"] | None,
    alone: Float[Tensor, "B 1"] | None = None,
    groups: Groups | None = None,
) -> Float[Tensor, ""]:
    """The sum of the losses of queries against items, some queries at a time.

    Args:
        roles: what each candidate is to each query.
        weights: what each query counts; None for 1.
        alone: scores of one more candidate of each query, which comes last.
        groups: which items are a query's candidates; by default all.
    """
    if groups is None and is_softmax_of_products(model, objective, query.components.device):
        return softmax_of_products(objective, query, items, roles, weights, alone)
    of_query = tensors_of(query)
    num_candidates, device = len(items), query.temperature.device
    has_copies = groups is not None and (groups.is_one_each or prefers_copies(device))
    numbers = model.similarity.numbers_per_pair(query, is_shared=not has_copies)
    if groups is None:
        parts = equal_parts(len(query), numbers * num_candidates, device)
    elif has_copies:
        numbers += items.components[0].numel()
        parts = equal_parts(len(query), numbers * groups.negatives.shape[1], device)
    else:
        parts = groups.parts()

    def candidates_of(part: slice, items: ItemState) -> ItemState:
        if groups is None:
            return items
        return take(items, groups.negatives[groups.of_query[part if has_copies else part.start]])

    def loss_of(part: slice, lines: list[Tensor], shared: list[Tensor]) -> Tensor:
        own = with_tensors(query, lines[: len(of_query)])
        candidates = candidates_of(part, with_tensors(items, shared))
        scores = torch.cat([model.similarity.training_scores(own, candidates), *lines[len(of_query) :]], dim=1)
        losses = objective(scores, own, roles.of_queries(part))
        return weighted_sum(losses, None if weights is None else weights[part])

    lines = of_query if alone is None else [*of_query, alone]
    trained = [*_trained(model.similarity), *_trained(objective)]
    return sum_in_parts(loss_of, lines, tensors_of(items), trained, parts)


def is_softmax_of_products(model: PairModel, objective: Objective, device: torch.device) -> bool:
    """Return whether a loss is the softmax of inner products, for which a CPU has a kernel."""
    return (
        device.type == "cpu"
        and isinstance(model.similarity, DotProduct)
        and isinstance(objective, Contrastive)
        and isinstance(objective.logit, ScaledLogit)
        and not objective.pointwise_weight
    )


def softmax_of_products(
    objective: Objective,
    query: QueryState,
    items: ItemState,
    roles: Roles,
    weights: Float[Tensor, " B"] | None,
    alone: Float[Tensor, "B 1"] | None,
) -> Float[Tensor, ""]:
    """`loss_over` by that kernel."""
    assert isinstance(objective, Contrastive)
    assert isinstance(objective.logit, ScaledLogit)
    return product_softmax(
        query.components[:, 0],
        items.components[:, 0],
        alone,
        roles.positive,
        roles.is_hidden,
        roles.log_weights,
        weights,
        objective.logit.tau,
    )


@dataclass(frozen=True)
class Gathered:
    """The items of all workers, on each of them.

    gather: how items are exchanged; `gather_constants` is non-differentiable cross-device sampling, the baseline.
    """

    gather: Callable[[list[Tensor], Place], list[Tensor]] = gathering.gather

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Gates]:
        shared = Shared.of(items, batch)
        of_all = with_tensors(items, self.gather(tensors_of(items), shared.place))
        loss = loss_over(model, objective, query, of_all, shared.roles(batch), batch.weights)
        return loss, own_gates(model, query, items, batch)


class PrimaryAndImage:
    """Compute it by primary and image losses, as the paper has it."""

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Gates]:
        shared = Shared.of(items, batch)
        parts = tensors_of(query)

        def loss_of(queries: list[Tensor], facts: list[Tensor], lines: list[Tensor]) -> Tensor:
            of_queries = with_tensors(query, queries)
            scores = model.similarity.training_scores(of_queries, with_tensors(items, lines))
            return weighted_sum(objective(scores, of_queries, Roles(*facts[:3])), next(iter(facts[3:]), None))

        query_place = place_of(parts, "embeddings of queries")
        facts = [*shared.roles(batch)[:3], *([] if batch.weights is None else [batch.weights])]
        loss = primary_and_image(loss_of, parts, facts, tensors_of(items), query_place, shared.place)
        return loss, own_gates(model, query, items, batch)


@dataclass(frozen=True)
class Streamed:
    """The items of all workers, block by block; for a `Contrastive` objective.

    block_size: items that are scored at once.
    """

    block_size: int
    shift: Shift = shift_on_ring

    def __call__(
        self, model: PairModel, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Gates]:
        assert isinstance(objective, Contrastive)
        shared = Shared.of(items, batch)
        is_copy = are_copies(shared.item_rows)[shared.place.own]
        num_tensors = len(tensors_of(items))

        def sums_of(queries: list[Tensor], piece: list[Tensor], first: int) -> Sums:
            of_queries = with_tensors(query, queries)
            scores = model.similarity.training_scores(of_queries, with_tensors(items, piece[:num_tensors]))
            positive = shared.positive(batch) - first
            item_rows, is_copy = piece[num_tensors:]
            roles = roles_among_copies(item_rows, is_copy, positive, batch.positive_rows, batch.relevance)
            return objective.sums(scores, of_queries, roles)

        loss = over_all_items(
            sums_of,
            lambda sums: weighted_sum(objective.loss_of_sums(sums), batch.weights),
            tensors_of(query),
            [*tensors_of(items), batch.item_rows, is_copy],
            [*_trained(model.similarity), *_trained(objective)],
            Ring(shared.place, self.shift, self.block_size),
        )
        return loss, own_gates(model, query, items, batch)


@dataclass(frozen=True)
class Shared:
    """
    place: where this worker's items stand among all workers' items.
    item_rows: rows of all workers' items.
    """

    place: Place
    item_rows: Int[Tensor, " G"]

    @staticmethod
    def of(items: ItemState, batch: TrainingBatch) -> "Shared":
        """Raises:
        ValueError, FloatingPointError, LostWorkerError: as `group.place_of`.
        """
        place = place_of(tensors_of(items), "embeddings of items")
        (item_rows,) = gathering.gather_constants([batch.item_rows], place)
        return Shared(place, item_rows)

    def positive(self, batch: TrainingBatch) -> Int[Tensor, " B"]:
        """Column of each query's positive among the items of all workers."""
        columns: Tensor = batch.positive + self.place.own.start
        return columns

    def roles(self, batch: TrainingBatch) -> Roles:
        """Return the role of each item, of any worker, for each query."""
        is_copy = are_copies(self.item_rows)
        return roles_among_copies(self.item_rows, is_copy, self.positive(batch), batch.positive_rows, batch.relevance)


def prefers_copies(device: torch.device) -> bool:
    """Return whether queries take their group's candidates as copies of their own, many groups at once: a GPU copies
    faster than it starts as many kernels as a group takes, and a CPU does not."""
    return device.type != "cpu"


def own_gates(model: PairModel, query: QueryState, items: ItemState, batch: TrainingBatch) -> Gates:
    """The gates of each query and its positive."""
    if items.gate is None:
        return None
    gates = model.score(query, take(items, batch.positive.unsqueeze(1))).gates
    assert gates is not None
    own: Tensor = gates.squeeze(1)
    return own


def _trained(module: object) -> list[torch.nn.Parameter]:
    assert isinstance(module, torch.nn.Module)
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
