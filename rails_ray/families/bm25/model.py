"""BM25 as a model: queries and items become terms, weighted by what was counted in the items of the run.

    w(t, x) = idf(t) * n_x(t) (k1 + 1) / (n_x(t) + k1 (1 - b + b |x| / mean length))
    idf(t)  = log(1 + (N - n(t) + 1/2) / (n(t) + 1/2))

n_x(t) is how often term t stands in item x, n(t) in how many of the N items, |x| the words of x.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, Section 3.
Differs from the source: idf is the one that stays above 0 (as in Lucene); a term is a 63-bit hash of a word; items keep
the `max_terms` terms of the largest weight.

Axes: B queries, X items, T terms of a query, M terms of an item, W terms of all texts, V terms of the corpus.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.modules.encoders.bags import Bags
from rails_ray.modules.encoders.words import Cut, is_blank, words
from rails_ray.modules.similarities.bm25 import NO_TERM, Bm25, TermCounts, TermWeights
from rails_ray.modules.similarities.states import to


class Bm25Model(nn.Module):
    """The contract of `Model`. Words are counted on the CPU; what they become lies on the device of the model.

    Args:
        k1, b: as in the equation.
        max_terms: M, terms that an item keeps at most.
        words: how texts become words.
    """

    form = "text"
    representation_width = None
    finds_zeros_last = False
    vector_width = None

    def __init__(self, *, k1: float, b: float, max_terms: int, words: Cut = "unicode") -> None:
        super().__init__()
        self.k1, self.b, self.max_terms, self.words = k1, b, max_terms, words
        self.similarity: Any = Bm25()
        self.terms = torch.empty(0, dtype=torch.int64)  # ascending
        self.num_holding = torch.empty(0, dtype=torch.int64)  # n(t), items that hold each
        self.num_items, self.num_words = 0, 0  # N, and the words of all of them
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # says which device the states are to be on

    def fit(self, texts: Sequence[str]) -> None:
        """Count the words of these items."""
        bags = counted(texts, self.words)
        self.terms, self.num_holding = bags.tokens.unique(return_counts=True)
        self.num_items, self.num_words = len(texts), int(bags.every_weight.double().sum())

    def get_extra_state(self) -> Tensor:
        sizes = torch.tensor([self.num_items, self.num_words, len(self.terms)])
        return torch.cat([sizes, self.terms, self.num_holding])

    def set_extra_state(self, state: Tensor) -> None:
        self.num_items, self.num_words, num_terms = (int(number) for number in state[:3])
        self.terms, self.num_holding = state[3:].cpu().split(num_terms) if num_terms else (state[3:], state[3:])

    def query_features(self, inputs: Sequence[str]) -> Bags:
        return counted(inputs, self.words)

    def item_features(self, inputs: Sequence[str]) -> Bags:
        return counted(inputs, self.words)

    def encode_queries(self, features: Bags) -> TermCounts:
        features = features.to("cpu")
        terms, counts = padded(features, features.every_weight)
        return to(TermCounts(terms, counts, torch.ones(len(features))), self.place.device)

    def represent(self, features: Any, *, are_items: bool = False) -> Float[Tensor, "B D"]:
        raise ValueError("a query must have one representation, got a model of BM25")

    def query_state(self, representation: Float[Tensor, "B D"]) -> TermCounts:
        raise ValueError("a query of BM25 must be a text, got a representation")

    def encode_items(self, features: Bags) -> TermWeights:
        """States with `max_terms` places, so that all parts of an index have one shape. Among words of equal weight the
        first are kept, so that an item does not depend on its neighbours in the batch."""
        features = features.to("cpu")
        terms, weights = padded(features, self.weights(features))
        by_weight = weights.sort(dim=1, descending=True, stable=True).indices
        best = by_weight[:, : self.max_terms].sort(dim=1).values
        more = self.max_terms - best.shape[1]
        kept = TermWeights(
            nn.functional.pad(terms.gather(1, best), (0, more), value=NO_TERM),
            nn.functional.pad(weights.gather(1, best), (0, more)),
        )
        return to(kept, self.place.device)

    def weights(self, items: Bags) -> Float[Tensor, " W"]:
        """w(t, x) of each term of each item."""
        counts = items.every_weight.double()
        lengths = torch.zeros(len(items), dtype=torch.float64).index_add(0, items.input_of, counts)[items.input_of]
        mean_length = self.num_words / max(self.num_items, 1) or 1.0
        held = self._num_holding(items.tokens).double()
        idf = torch.log1p((self.num_items - held + 0.5) / (held + 0.5))
        damped = counts + self.k1 * (1 - self.b + self.b * lengths / mean_length)
        return (idf * counts * (self.k1 + 1) / damped).float()

    def _num_holding(self, terms: Int[Tensor, " W"]) -> Int[Tensor, " W"]:
        """n(t); 0 for a term that no item of the run holds."""
        if not len(self.terms):
            return torch.zeros_like(terms)
        place = torch.searchsorted(self.terms, terms).clamp(max=len(self.terms) - 1)
        return self.num_holding[place] * (self.terms[place] == terms)

    def is_blank(self, query: str) -> bool:
        return is_blank(query, self.words)

    def are_known(self, inputs: Sequence[str]) -> list[bool]:
        """For each query, whether an item of the run holds any of its words."""
        bags = counted(inputs, self.words)
        return (bags.counts(self._num_holding(bags.tokens) > 0) > 0).tolist()


def counted(texts: Sequence[str], cut: Cut) -> Bags:
    """The terms of each text, each once, with how often it stands there."""
    counts = [Counter(words(text, cut)) for text in texts]
    number_of = {word: term_of(word) for own in counts for word in own}
    starts = np.cumsum([0, *map(len, counts)])[:-1]
    tokens = [number_of[word] for own in counts for word in own]
    weights = [float(count) for own in counts for count in own.values()]
    return Bags(torch.tensor(tokens, dtype=torch.int64), torch.tensor(starts, dtype=torch.int64), torch.tensor(weights))


def term_of(word: str) -> int:
    """The number of a word, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") >> 1


def padded(bags: Bags, values: Float[Tensor, " W"]) -> tuple[Int[Tensor, "B _"], Float[Tensor, "B _"]]:
    """Terms and their values as lines of one length, at least 1."""
    line = bags.input_of
    place = torch.arange(len(line)) - bags.starts[line]
    width = max(int(torch.bincount(line).max()) if len(line) else 0, 1)
    terms = torch.full((len(bags), width), NO_TERM)
    found = torch.zeros(len(bags), width)
    terms[line, place], found[line, place] = bags.tokens, values
    return terms, found
