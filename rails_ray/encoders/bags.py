"""Queries as bags of numbered tokens with weights: words of a text, or features that a data set names itself.

Axes: B queries, W tokens of all queries together, V tokens that training saw.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.encoders.character_ngrams import BASE, Bags, mixed, places_of, signed


@dataclass(frozen=True)
class WeightedBags:
    """The distinct tokens of B queries, one query after the other; query b begins at `starts[b]`."""

    tokens: Int[Tensor, " W"]
    weights: Float[Tensor, " W"]
    starts: Int[Tensor, " B"]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def device(self) -> torch.device:
        return self.starts.device

    def take(self, rows: Int[Tensor, " M"]) -> "WeightedBags":
        """The bags of some queries, in the order of `rows`, repeats allowed."""
        places, starts = places_of(self.starts, len(self.tokens), rows)
        return WeightedBags(self.tokens[places], self.weights[places], starts)

    def to(self, device: torch.device | str) -> "WeightedBags":
        return WeightedBags(self.tokens.to(device), self.weights.to(device), self.starts.to(device))


def of_length_one(bags: WeightedBags) -> WeightedBags:
    """The same tokens, weighted so that the squares of a query's weights sum to 1."""
    query = _query_of(bags.starts, len(bags.tokens))
    weights = bags.weights.double()  # whose squares neither vanish nor overflow
    lengths = torch.zeros(len(bags), dtype=torch.float64).index_add(0, query, weights.square()).sqrt()
    divisors = lengths.clamp(min=torch.finfo(torch.float64).tiny)[query]
    return WeightedBags(bags.tokens, (weights / divisors).float(), bags.starts)


def known_only(bags: WeightedBags, known: Int[Tensor, " V"]) -> WeightedBags:
    """The same queries without the tokens that are not known.

    Args:
        known: ascending.
    """
    return _of(bags, are_known(bags.tokens, known))


def without_zeros(bags: WeightedBags) -> WeightedBags:
    """The same queries without the tokens of weight 0."""
    return _of(bags, bags.weights != 0)


def num_known(bags: WeightedBags, known: Int[Tensor, " V"]) -> Int[Tensor, " B"]:
    """How many tokens of each query are known.

    Args:
        known: ascending.
    """
    return _counts(bags, are_known(bags.tokens, known))


def are_known(tokens: Int[Tensor, " W"], known: Int[Tensor, " V"]) -> Bool[Tensor, " W"]:
    """Which of the tokens are known.

    Args:
        known: ascending.
    """
    if not len(known):
        return torch.zeros_like(tokens, dtype=torch.bool)
    return known[torch.searchsorted(known, tokens).clamp(max=len(known) - 1)] == tokens


def unweighted(bags: Bags) -> WeightedBags:
    """Every token counts the same."""
    return WeightedBags(bags.buckets, torch.ones(len(bags.buckets)), bags.starts)


def hashed(tokens: Int[Tensor, " W"], seed: int, num_inputs: int) -> Int[Tensor, " W"]:
    """Feature hashing: a token's place among `num_inputs`, another for another seed."""
    return mixed(tokens + signed(seed * BASE % 2**64)).bitwise_and(2**63 - 1) % num_inputs


def _of(bags: WeightedBags, is_kept: Bool[Tensor, " W"]) -> WeightedBags:
    """The same queries with some of their tokens."""
    counts = _counts(bags, is_kept)
    return WeightedBags(bags.tokens[is_kept], bags.weights[is_kept], counts.cumsum(0) - counts)


def _counts(bags: WeightedBags, is_kept: Bool[Tensor, " W"]) -> Int[Tensor, " B"]:
    """How many tokens of each query are kept."""
    counts = torch.zeros(len(bags), dtype=torch.int64)
    return counts.index_add(0, _query_of(bags.starts, len(bags.tokens)), is_kept.long())


def _query_of(starts: Int[Tensor, " B"], num_tokens: int) -> Int[Tensor, " W"]:
    ends = torch.cat([starts[1:], starts.new_tensor([num_tokens])]) if len(starts) else starts
    return torch.repeat_interleave(torch.arange(len(starts)), ends - starts)
