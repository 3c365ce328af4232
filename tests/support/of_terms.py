"""Queries and items by their terms, for the suites that every similarity's items pass."""

import torch

import oracles.scores
from rails_ray.modules.similarities.bm25 import NO_TERM, TermCounts, TermWeights

NUM_TERMS = 9  # so few that many are shared
LONGEST_QUERY, LONGEST_ITEM = 4, 5


def random_terms(num_queries: int, num_items: int, seed: int = 0) -> tuple[TermCounts, TermWeights]:
    """Lines of distinct terms, of any length up to the longest; some have none."""
    generator = torch.Generator().manual_seed(seed)

    def lines(num: int, width: int) -> torch.Tensor:
        distinct = torch.rand(num, NUM_TERMS, generator=generator).argsort(dim=1)[:, :width]
        lengths = torch.randint(width + 1, (num, 1), generator=generator)
        return distinct.masked_fill(torch.arange(width) >= lengths, NO_TERM)

    asked, held = lines(num_queries, LONGEST_QUERY), lines(num_items, LONGEST_ITEM)
    counts = torch.randint(1, 4, asked.shape, generator=generator).float() * (asked != NO_TERM)
    weights = torch.rand(held.shape, generator=generator) * (held != NO_TERM)
    return TermCounts(asked, counts, torch.ones(num_queries)), TermWeights(held, weights)


def sums(query: TermCounts, items: TermWeights) -> list[list[float]]:
    """The scores of all items, in float32."""
    counts = [of_terms(*line) for line in zip(query.terms.tolist(), query.counts.tolist(), strict=True)]
    weights = [of_terms(*line) for line in zip(items.terms.tolist(), items.weights.tolist(), strict=True)]
    scores = [[oracles.scores.sum_over_shared_terms(own, item) for item in weights] for own in counts]
    return torch.tensor(scores, dtype=torch.float64).float().tolist()


def of_terms(terms: list[int], values: list[float]) -> dict[int, float]:
    """A line as a mapping."""
    return {term: value for term, value in zip(terms, values, strict=True) if term != NO_TERM}
