"""Queries as bags of numbered tokens with weights: words of a text, or features that a data set names itself.

Axes: B queries, W tokens of all queries together, V tokens that training saw.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.encoders.character_ngrams import Bags, places_of

STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: what one seed is away from the next


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
    is_known = are_known(bags.tokens, known)
    counts = torch.zeros(len(bags) + 1, dtype=torch.int64)
    counts[1:].index_add_(0, _query_of(bags.starts, len(bags.tokens)), is_known.long())
    return WeightedBags(bags.tokens[is_known], bags.weights[is_known], counts.cumsum(0)[:-1])


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
    """Feature hashing: a token's place among `num_inputs`, another for another seed.

    Mixed as by MurmurHash3's 64-bit finaliser, in arithmetic modulo 2^64.
    """
    mixed = tokens + _signed(seed * STEP % 2**64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ _shifted(mixed)) * _signed(factor)
    return (mixed ^ _shifted(mixed)).bitwise_and(2**63 - 1) % num_inputs


def _shifted(numbers: Int[Tensor, " W"]) -> Int[Tensor, " W"]:
    """Right by 33 bits, zeros coming in."""
    return (numbers >> 33).bitwise_and(2**31 - 1)


def _signed(number: int) -> int:
    """The signed 64-bit integer of the same bits."""
    return number - 2**64 if number >= 2**63 else number


def _query_of(starts: Int[Tensor, " B"], num_tokens: int) -> Int[Tensor, " W"]:
    ends = torch.cat([starts[1:], starts.new_tensor([num_tokens])]) if len(starts) else starts
    return torch.repeat_interleave(torch.arange(len(starts)), ends - starts)
