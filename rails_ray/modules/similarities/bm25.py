"""BM25: the terms that a query and an item share, each with its weight in the item.

    score(q, x) = sum over terms t of n_q(t) * w(t, x)

A term is a number. Items keep w(t, x), which holds all that BM25 says of a term in an item; a query keeps how often
each term stands in it. Terms are added up in float64 and rounded once, so that a score does not depend on their order.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, Section 3.

Axes: B queries, X items, C candidates, T terms of a query, M terms of an item, V terms of all items, P postings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.kernels.uploads import upload
from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import AnyItems, AnyQuery

NO_TERM = -1  # at the end of a line that has fewer terms than the longest


@dataclass(frozen=True)
class TermCounts(AnyQuery):
    """A batch of queries by their terms, each once.

    counts: how often each term stands in the query; 0 at places without a term.
    temperature: 1, as no tau_q is trained.
    """

    kind: ClassVar[str] = "term_counts"
    stays_on_host: ClassVar[bool] = True

    terms: Int[Tensor, "B T"]
    counts: Float[Tensor, "B T"]
    temperature: Float[Tensor, " B"]

    def __len__(self) -> int:
        return len(self.terms)


@dataclass(frozen=True)
class TermWeights(AnyItems):
    """Items by their terms, each once.

    weights: w(t, x); 0 at places without a term.
    """

    kind: ClassVar[str] = "term_weights"

    terms: Int[Tensor, "*X M"]
    weights: Float[Tensor, "*X M"]

    def __len__(self) -> int:
        return len(self.terms)

    def columns(self) -> dict[str, Tensor]:
        """Return what an index stores of each item, by name."""
        return {"terms": self.terms, "weights": self.weights}

    @staticmethod
    def from_columns(columns: Mapping[str, Tensor]) -> "TermWeights":
        return TermWeights(columns["terms"], columns["weights"])


class Bm25(nn.Module):
    """The sum over shared terms. It learns nothing, and has no gradient."""

    num_components = (1, 1)
    has_bounded_vectors = False

    def forward(self, query: TermCounts, items: TermWeights) -> Scored:
        return Scored(self.scores(query, items), None)

    @torch.no_grad()
    def scores(
        self, query: TermCounts, items: TermWeights, floor: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B X"]:
        """The contract of `Similarity`; no item is passed over."""
        if items.terms.dim() == 3:
            return shares(query, items).sum(dim=2).float()
        return sums_of(query, TermPostings.of(items), len(items))


@dataclass(frozen=True)
class TermPostings:
    """The items of each term, by term and then by item row.

    terms: those that occur, ascending, in the host's memory, where the few of a query are looked up.
    offsets: where the postings of each term begin, and the number of all; in the host's memory.
    """

    terms: Int[Tensor, " V"]
    offsets: Int[Tensor, " V+1"]
    item_rows: Int[Tensor, " P"]
    weights: Float[Tensor, " P"]

    @staticmethod
    def of(items: TermWeights) -> "TermPostings":
        item_rows, place = (items.terms != NO_TERM).nonzero(as_tuple=True)
        terms = items.terms[item_rows, place]
        order = terms.argsort(stable=True)
        known, num = terms[order].unique_consecutive(return_counts=True)
        offsets = F.pad(num.cumsum(dim=0), (1, 0)).cpu()
        return TermPostings(known.cpu(), offsets, item_rows[order], items.weights[item_rows, place][order])


def sums_of(query: TermCounts, postings: TermPostings, num_items: int) -> Float[Tensor, "B X"]:
    """The scores of all items, on their device, which nobody waits for if the query is in the host's memory."""
    device, terms = postings.weights.device, query.terms.cpu().flatten()
    if not len(postings.terms):
        return torch.zeros(len(query), num_items, device=device)
    place = torch.searchsorted(postings.terms, terms).clamp(max=len(postings.terms) - 1)
    num = (postings.offsets[place + 1] - postings.offsets[place]) * (postings.terms[place] == terms)
    before, total = num.cumsum(dim=0) - num, int(num.sum())
    first_cell = num_items * torch.arange(len(query))[:, None].expand_as(query.terms).flatten()
    num, shift, first_cell = upload(torch.stack([num, postings.offsets[place] - before, first_cell]), device)
    counts = upload(query.counts.flatten().double(), device)
    of_posting = torch.arange(len(terms), device=device).repeat_interleave(num, output_size=total)
    posting = torch.arange(total, device=device) + shift[of_posting]
    cell = first_cell[of_posting] + postings.item_rows[posting]
    shares = counts[of_posting] * postings.weights[posting].double()
    sums = torch.zeros(len(query) * num_items, dtype=torch.float64, device=device).index_add(0, cell, shares)
    return sums.view(len(query), num_items).float()


def shares(query: TermCounts, items: TermWeights) -> Float[Tensor, "B X T"]:
    """Return what each term of a query adds to the score of each item, in float64; for few items, or for candidates [B
    C]."""
    candidates = items.terms if items.terms.dim() == 3 else items.terms.expand(len(query), -1, -1)
    weights = items.weights if items.weights.dim() == 3 else items.weights.expand(len(query), -1, -1)
    is_shared = (
        candidates.unsqueeze(2) == query.terms.masked_fill(query.terms == NO_TERM, NO_TERM - 1)[:, None, :, None]
    )
    return (is_shared * weights.double().unsqueeze(2)).sum(dim=3) * query.counts.double()[:, None]
