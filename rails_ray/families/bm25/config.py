"""BM25: the words that a query and an item share. It has no gradient: a run counts words."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rails_ray.modules.encoders.words import Cut


@dataclass(frozen=True, kw_only=True)
class Bm25Config:
    """How words count.

    Args:
        k1: how much repeats of a word in an item add to its weight, at least 0; 0 counts each word once.
        b: how much less the words of long items count, in [0, 1].
        max_terms: words that an index keeps of each item, the ones with the largest weights; 12 bytes each.
        words: how texts are cut into words: `unicode`, or `alphanumeric` as in runs of earlier releases.
    """

    kind: Annotated[Literal["bm25"], tyro.conf.Suppress] = "bm25"
    k1: float = 1.2
    b: float = 0.75
    max_terms: int = 256
    words: Cut = "unicode"

    def __post_init__(self) -> None:
        if self.k1 < 0:
            raise ValueError(f"k1 must be at least 0, got {self.k1}")
        if not 0 <= self.b <= 1:
            raise ValueError(f"b must be in [0, 1], got {self.b}")
        if self.max_terms < 1:
            raise ValueError(f"max_terms must be at least 1, got {self.max_terms}")
