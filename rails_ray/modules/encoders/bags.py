"""Inputs as bags of numbered tokens: pieces of a text, its words, or features that a data set names itself.

Axes: B inputs, W tokens of all inputs together, V tokens that training saw.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """The distinct tokens of B inputs, one input after the other; input b begins at `starts[b]`.

    weights: weight of each token; None if each counts 1.
    """

    tokens: Int[Tensor, " W"]
    starts: Int[Tensor, " B"]
    weights: Float[Tensor, " W"] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def device(self) -> torch.device:
        return self.starts.device

    @property
    def every_weight(self) -> Float[Tensor, " W"]:
        """The weight of every token, 1 included."""
        return torch.ones(len(self.tokens), device=self.device) if self.weights is None else self.weights

    def take(self, rows: Int[Tensor, " M"]) -> "Bags":
        """The bags of some inputs, in the order of `rows`, repeats allowed."""
        ends = torch.cat([self.starts[1:], self.starts.new_tensor([len(self.tokens)])])
        lengths = ends[rows] - self.starts[rows]
        starts = lengths.cumsum(0) - lengths
        within = torch.arange(int(lengths.sum()), device=self.device) - starts.repeat_interleave(lengths)
        return self._of(self.starts[rows].repeat_interleave(lengths) + within, starts)

    def where(self, is_kept: Bool[Tensor, " W"]) -> "Bags":
        """Keep some of the tokens."""
        counts = self.counts(is_kept)
        return self._of(is_kept, counts.cumsum(0) - counts)

    def counts(self, is_counted: Bool[Tensor, " W"]) -> Int[Tensor, " B"]:
        """How many tokens of each input are counted."""
        counts = torch.zeros(len(self), dtype=torch.int64)
        return counts.index_add(0, self.input_of, is_counted.long())

    @property
    def input_of(self) -> Int[Tensor, " W"]:
        """The input that each token belongs to."""
        ends = torch.cat([self.starts[1:], self.starts.new_tensor([len(self.tokens)])]) if len(self) else self.starts
        return torch.repeat_interleave(torch.arange(len(self)), ends - self.starts)

    def to(self, device: torch.device | str) -> "Bags":
        weights = None if self.weights is None else self.weights.to(device)
        return Bags(self.tokens.to(device), self.starts.to(device), weights)

    def _of(self, which: Tensor, starts: Int[Tensor, " M"]) -> "Bags":
        return Bags(self.tokens[which], starts, None if self.weights is None else self.weights[which])


def joined(parts: Sequence[Bags]) -> Bags:
    """The bags of all parts, one after the other; parts have no weights."""
    if len(parts) == 1:
        return parts[0]
    tokens = [part.tokens for part in parts] or [torch.empty(0, dtype=torch.int64)]
    before = itertools.accumulate((len(part.tokens) for part in parts), initial=0)
    starts = [part.starts + first for part, first in zip(parts, before, strict=False)]
    return Bags(torch.cat(tokens), torch.cat(starts or [torch.empty(0, dtype=torch.int64)]))


def of_length_one(bags: Bags) -> Bags:
    """Weigh tokens so that the squares of an input's weights sum to 1."""
    input_of = bags.input_of
    weights = bags.every_weight.double()  # their squares neither vanish nor overflow
    lengths = torch.zeros(len(bags), dtype=torch.float64).index_add(0, input_of, weights.square()).sqrt()
    divisors = lengths.clamp(min=torch.finfo(torch.float64).tiny)[input_of]
    return Bags(bags.tokens, bags.starts, (weights / divisors).float())


def known_only(bags: Bags, known: Int[Tensor, " V"]) -> Bags:
    """Leave out tokens that are not known.

    Args:
        known: the known tokens, ascending.
    """
    return bags.where(are_known(bags.tokens, known))


def without_zeros(bags: Bags) -> Bags:
    """Leave out tokens of weight 0."""
    return bags.where(bags.every_weight != 0)


def num_known(bags: Bags, known: Int[Tensor, " V"]) -> Int[Tensor, " B"]:
    """How many tokens of each input are known.

    Args:
        known: the known tokens, ascending.
    """
    return bags.counts(are_known(bags.tokens, known))


def are_known(tokens: Int[Tensor, " W"], known: Int[Tensor, " V"]) -> Bool[Tensor, " W"]:
    """Which of the tokens are known.

    Args:
        known: the known tokens, ascending.
    """
    if not len(known):
        return torch.zeros_like(tokens, dtype=torch.bool)
    return known[torch.searchsorted(known, tokens).clamp(max=len(known) - 1)] == tokens
