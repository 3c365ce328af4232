"""Two towers over hashed character n-grams: the mean of bucket embeddings, then a small network per side.

    h(text) = LayerNorm(mean over its distinct pieces of E[bucket]),   representation = h + W_2 SiLU(W_1 h)

Both sides share E and begin with the same network, so that a query and an item that share a word are near each other
before any training.

Axes: B texts, D width of a representation, R buckets, H hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.allowed_code import AllowedCode
from rails_ray.modules.encoders.bags import Bags
from rails_ray.modules.encoders.character_ngrams import hash_texts
from rails_ray.modules.encoders.config import EncoderConfig, Form
from rails_ray.modules.encoders.words import Cut, is_blank

# Small against a step of Adam, so that a bucket which few texts hold still moves within a short run.
INITIAL_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class TwoTowerConfig(EncoderConfig):
    """Sizes of the two towers.

    Args:
        width: width D of a representation.
        hidden: hidden width H of each tower's network.
        num_buckets: number R of rows of the embedding table that both towers share.
        ngram_sizes: lengths of the character n-grams that are read beside whole words.
        words: how texts are cut into words: `unicode`, or `alphanumeric` as in runs of earlier releases.
    """

    form: ClassVar[Form] = "text"

    kind: Literal["two_tower"] = "two_tower"
    width: int = 128
    hidden: int = 256
    num_buckets: int = 2**15
    ngram_sizes: tuple[int, ...] = (3, 4)
    words: Cut = "unicode"

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "num_buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if any(size < 2 for size in self.ngram_sizes):
            raise ValueError(f"ngram_sizes must be at least 2, got {self.ngram_sizes}")

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "TwoTower":
        return TwoTower(self)


class TwoTower(nn.Module):
    """Texts to representations, queries and items each by a network of their own."""

    form: Literal["text"] = "text"
    takes_representations = True

    def __init__(self, config: TwoTowerConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.EmbeddingBag(config.num_buckets, config.width, mode="mean")
        nn.init.normal_(self.embeddings.weight, std=INITIAL_STD)
        self.norm = nn.LayerNorm(config.width)
        self.query_tower = _tower(config)
        self.item_tower = _tower(config)
        self.item_tower.load_state_dict(self.query_tower.state_dict())

    @property
    def query_width(self) -> int:
        return self.config.width

    @property
    def item_width(self) -> int:
        return self.config.width

    def query_features(self, inputs: Sequence[str]) -> Bags:
        return hash_texts(inputs, self.config.ngram_sizes, self.config.num_buckets, self.config.words)

    def item_features(self, inputs: Sequence[str]) -> Bags:
        return self.query_features(inputs)

    def is_blank(self, query: str) -> bool:
        return is_blank(query, self.config.words)

    def queries(self, features: Bags) -> Float[Tensor, "B D"]:
        bag = self._bag(features)
        change: Tensor = self.query_tower(bag)
        return bag + change

    def items(self, features: Bags) -> Float[Tensor, "B D"]:
        bag = self._bag(features)
        change: Tensor = self.item_tower(bag)
        return bag + change

    def _bag(self, features: Bags) -> Tensor:
        mean: Tensor = self.norm(self.embeddings(features.tokens, features.starts))
        return mean


def _tower(config: TwoTowerConfig) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(config.width, config.hidden),
        nn.SiLU(),
        nn.Linear(config.hidden, config.width),
    )
