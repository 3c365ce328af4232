"""Rank the whole corpus for each query of a split.

Axes: Q queries of the split, B queries of a batch, X items, k length of the lists kept, M relevant pairs, S items
sampled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.counting import advance
from rails_ray.data.encoding import QUERY_BATCH, query_batches
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.kernels.top_k import select
from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.search.zeros import NO_COSINE, zero_rows

MOST_SCORES = 2**25  # of one batch: 128 MB, so that fewer queries of a large corpus are scored at a time
NOT_FOUND = 2**62  # a rank beyond all k, whose reciprocal is as good as 0
NUM_SAMPLED = 32  # items of the corpus per query: 64,000 scores of 2,000 queries give a Beta's parameters to a percent


@dataclass(frozen=True)
class Ranking:
    """
    best_rank: rank of the first relevant item among all items, from 1; NOT_FOUND if the corpus has none [Q].
    scores: scores of the k best items, descending [Q, k].
    is_relevant: whether each of these items is relevant [Q, k].
    num_relevant: how many items are relevant, in the corpus or not [Q].
    temperature: tau_q [Q].
    pair_query, pair_score: query number and score of each relevant item that the query can find [M].
    sampled_scores: scores of items drawn from the corpus at random; -inf if no answer may hold the item [Q, S].
    log_normaliser: the log-sum-exp of the logits of all items that the query can find [Q]; None without a logit.
    """

    best_rank: NDArray[np.int64]
    scores: NDArray[np.float32]
    is_relevant: NDArray[np.bool_]
    num_relevant: NDArray[np.int64]
    temperature: NDArray[np.float32]
    pair_query: NDArray[np.int64]
    pair_score: NDArray[np.float32]
    sampled_scores: NDArray[np.float32]
    log_normaliser: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class AllScores:
    """A batch of queries with the scores of all items, for who wants more of them than a `Ranking` keeps.

    first: number of the batch's first query.
    scores: -inf where the query cannot find the item [B, X].
    temperature: tau_q [B].
    line, row: query of the batch and item of each relevant pair that can be found [M].
    """

    first: int
    scores: Float[Tensor, "B X"]
    temperature: Float[Tensor, " B"]
    line: Int[Tensor, " M"]
    row: Int[Tensor, " M"]


def rank_all(
    model: Model,
    items: AnyItems,
    queries: Queries,
    k: int,
    logit: ScoreLogit | None = None,
    watching: Sequence[Callable[[AllScores], None]] = (),
) -> Ranking:
    """Score every item that an answer may hold, for every query, and keep the k best.

    Args:
        logit: the logit of the model's loss, from scores [B, X] and tau_q [B]; only the log-normaliser needs it.
        watching: called with each batch, in order.
    """
    [ranking] = _rankings(model, items, queries, k, [queries.excluded], logit, watching)
    return ranking


def rank_both(model: Model, items: AnyItems, queries: Queries, k: int) -> tuple[Ranking, Ranking]:
    """The rankings with seen items excluded and with them allowed, from the same scores."""
    allowed, excluded = _rankings(model, items, queries, k, [None, queries.seen])
    return excluded, allowed


def _rankings(
    model: Model,
    items: AnyItems,
    queries: Queries,
    k: int,
    exclusions: Sequence[ItemLists | None],
    logit: ScoreLogit | None = None,
    watching: Sequence[Callable[[AllScores], None]] = (),
) -> list[Ranking]:
    """A ranking for each of the exclusions, which add up: an item stays excluded in those that follow."""
    kept: list[dict[str, list[Tensor]]] = [{field.name: [] for field in fields(Ranking)} for _ in exclusions]
    compared: Any = items  # a model that finds zeros last compares components
    zeros = zero_rows(compared.components) if model.finds_zeros_last else None
    size = min(QUERY_BATCH, max(MOST_SCORES // len(items), 1))
    for first, query in query_batches(model, queries.inputs, size):
        scores: Tensor = model.similarity.scores(query, items)
        if zeros is not None:
            scores[:, zeros] = NO_COSINE
        some = slice(first, first + len(query))
        is_relevant = _are_listed(queries.relevant.take(some), scores)
        blank = [line for line in range(len(query)) if model.is_blank(queries.inputs[first + line])]
        scores[blank] = -torch.inf  # a server refuses such a query: nothing is found
        for found, excluded in zip(kept, exclusions, strict=True):
            if excluded is not None:
                scores.masked_fill_(_are_listed(excluded.take(some), scores), -torch.inf)
            number, row = (is_relevant & (scores > -torch.inf)).nonzero(as_tuple=True)
            scored = AllScores(first, scores, query.temperature, number, row)
            for name, tensor in _kept(scored, is_relevant, k, logit).items():
                found[name].append(tensor)
            for watch in watching:
                watch(scored)
        advance(some.stop, len(queries), "queries ranked")
    joined = [{name: torch.cat(own).cpu().numpy() for name, own in found.items() if own} for found in kept]
    return [Ranking(num_relevant=queries.relevant.lengths, **own) for own in joined]


def _kept(batch: AllScores, is_relevant: Bool[Tensor, "B X"], k: int, logit: ScoreLogit | None) -> dict[str, Tensor]:
    """Compute the fields of a ranking for one batch."""
    scores, top = batch.scores, select(batch.scores, k)
    generator = torch.Generator().manual_seed(batch.first)
    sampled = torch.randint(scores.shape[1], (len(scores), NUM_SAMPLED), generator=generator).to(scores.device)
    found: dict[str, Tensor] = {
        "best_rank": rank_of_best(scores, is_relevant),
        "scores": top.scores,
        "is_relevant": is_relevant.gather(1, top.item_rows),
        "temperature": batch.temperature,
        "pair_query": batch.first + batch.line,
        "pair_score": scores[batch.line, batch.row],
        "sampled_scores": scores.gather(1, sampled),
    }
    if logit is not None:
        logits = logit(scores, batch.temperature).masked_fill(scores.isneginf(), -torch.inf)
        found["log_normaliser"] = logits.double().logsumexp(dim=1)
    return found


def _are_listed(lists: ItemLists, scores: Float[Tensor, "B X"]) -> Bool[Tensor, "B X"]:
    """Return whether an item is on a query's list; lists may name items that the corpus lacks."""
    num_items = scores.shape[1]
    is_held = lists.rows < num_items
    places = np.repeat(np.arange(len(lists)) * num_items, lists.lengths)[is_held] + lists.rows[is_held]
    found = torch.zeros_like(scores, dtype=torch.bool)
    found.view(-1)[torch.from_numpy(places).to(scores.device)] = True
    return found


def rank_of_best(scores: Float[Tensor, "B X"], is_relevant: Bool[Tensor, "B X"]) -> Int[Tensor, " B"]:
    """The rank, from 1, of the first relevant item; among equal scores the lower row comes first (as in `top_k`).

    NOT_FOUND for a query without a relevant item that its answer may hold.
    """
    best = scores.masked_fill(~is_relevant, -torch.inf).max(dim=1, keepdim=True).values
    rows = torch.arange(scores.shape[1], device=scores.device)
    best_row = torch.where(is_relevant & (scores == best), rows, scores.shape[1]).min(dim=1, keepdim=True).values
    rank = ((scores > best) | ((scores == best) & (rows < best_row))).sum(dim=1) + 1
    return torch.where(best[:, 0].isneginf(), NOT_FOUND, rank)
