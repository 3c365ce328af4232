"""A small transformer over the tokens of a text, one for queries and items alike.

    h^0 = [a_1 .. a_P, E[w_1] + p_1, .., E[w_T] + p_T]          blocks of attention and network, LayerNorm at the end
    mean:         representation = mean of h over tokens                                     (no a_1 .. a_P)
    aggregation:  representation = [sum_t s_1t h_t, .., sum_t s_Pt h_t],   s_p = softmax over positions of (W h_1 + b)_p

Aggregation tokens a_p gather what each component of a Mixture of Logits is made of; the pooling that reads them is
parameterized by the first of them, text by text. There are P_Q of them on the query's side and P_X on the item's.

Source: RAILS, Section 2.2 and Appendix A.2.2.
Differs from the source: trained from scratch, at a size for a CPU; components are a linear map of all P poolings
together (`components`), where the source takes each pooling for one of them; each s_p begins with half its weight on
a_p, as P equal poolings would have to find out first which is which.

Axes: B texts, T tokens, P aggregation tokens, D width, E = P * D, or D for a mean.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rails_ray.allowed_code import AllowedCode
from rails_ray.modules.encoders import tokenizer
from rails_ray.modules.encoders.config import EncoderConfig, Form
from rails_ray.modules.encoders.tokenizer import PADDING
from rails_ray.modules.encoders.transformer import Block, dropped
from rails_ray.modules.encoders.words import Cut, is_blank

INITIAL_STD = 0.02
TOKEN_STD = 0.2  # of aggregation tokens: as much as a block adds at first; if smaller, all would be pooled alike


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(EncoderConfig):
    """Sizes of the transformer.

    Args:
        width: width D of embeddings and hidden states.
        num_blocks: number of blocks of attention and network.
        num_heads: attention heads of each block; width is a multiple of it.
        hidden: width of each network's hidden layer.
        max_length: T; only the first T tokens of a text are read.
        vocabulary_size: most tokens that are learnt from the texts; at least 258, the 256 bytes and 2 more.
        pooling: `mean` of the tokens, or `aggregation` by as many extra tokens as the similarity has components.
        dropout: share of embeddings, attention outputs and network outputs that training drops, in [0, 1).
        words: how texts are cut into words, within which tokens are: `unicode`, or `alphanumeric` as in earlier runs.
    """

    form: ClassVar[Form] = "text"
    has_tokens: ClassVar[bool] = True

    kind: Literal["transformer"] = "transformer"
    width: int = 128
    num_blocks: int = 2
    num_heads: int = 4
    hidden: int = 512
    max_length: int = 64
    vocabulary_size: int = 8192
    pooling: Literal["mean", "aggregation"] = "mean"
    dropout: float = 0.1
    words: Cut = "unicode"

    def __post_init__(self) -> None:
        least = {"width": 1, "num_blocks": 1, "num_heads": 1, "hidden": 1, "max_length": 1, "vocabulary_size": 258}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ValueError(f"{name} must be at least {number}, got {getattr(self, name)}")
        if self.width % self.num_heads:
            raise ValueError(f"width must be a multiple of the {self.num_heads} heads, got {self.width}")
        if self.pooling not in get_args(get_type_hints(TransformerConfig)["pooling"]):
            raise ValueError(f"pooling must be mean or aggregation, got {self.pooling!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "TextTransformer":
        return TextTransformer(self, num_components)

    @property
    def reads_at_most(self) -> int:
        return self.max_length


@dataclass(frozen=True)
class Tokens:
    """Tokens of texts, filled up with `PADDING` at their end."""

    ids: Int[Tensor, "B T"]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def take(self, rows: Int[Tensor, " M"]) -> "Tokens":
        """Some texts, no wider than the longest of them."""
        ids = self.ids[rows]
        return Tokens(ids[:, : int((ids != PADDING).sum(dim=1).max())] if len(ids) else ids[:, :1])

    def to(self, device: torch.device | str) -> "Tokens":
        return Tokens(self.ids.to(device))


class TextTransformer(nn.Module):
    """Texts to representations.

    Args:
        num_components: (P_Q, P_X), how many aggregation tokens either side has.
    """

    form: Literal["text"] = "text"
    takes_representations = True

    def __init__(self, config: TransformerConfig, num_components: tuple[int, int]) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.max_length, config.width)
        self.blocks = nn.ModuleList(
            Block(config.width, config.num_heads, config.hidden, nn.GELU(), config.dropout)
            for _ in range(config.num_blocks)
        )
        self.norm = nn.LayerNorm(config.width)
        for table in (self.embeddings, self.positions):
            nn.init.normal_(table.weight, std=INITIAL_STD)
        is_aggregated = config.pooling == "aggregation"
        poolings = [Pooling(config, number) if is_aggregated else None for number in num_components]
        self.query_pooling, self.item_pooling = poolings
        self.query_width, self.item_width = (
            config.width * (number if is_aggregated else 1) for number in num_components
        )
        self._tokenizer: Any = None  # of a library that is loaded only where texts are read
        self._tokenizer_json = b""

    def learn(self, texts: Iterable[str]) -> None:
        """Learn the tokens of these texts; once, before training."""
        self._set_tokenizer(tokenizer.learn(texts, self.config.vocabulary_size, self.config.words))

    def get_extra_state(self) -> Tensor:  # stored with the weights: one is of no use without the other
        return torch.frombuffer(bytearray(self._tokenizer_json), dtype=torch.uint8) if self._tokenizer_json else EMPTY

    def set_extra_state(self, state: Tensor) -> None:
        self._set_tokenizer(state.numpy(force=True).tobytes())

    def _set_tokenizer(self, json: bytes) -> None:
        self._tokenizer_json = json
        self._tokenizer = tokenizer.read(json) if json else None

    def query_features(self, inputs: Sequence[str]) -> Tokens:
        assert self._tokenizer is not None, "learn comes first"
        return Tokens(tokenizer.encode(self._tokenizer, inputs, self.config.max_length, self.config.words))

    def item_features(self, inputs: Sequence[str]) -> Tokens:
        return self.query_features(inputs)

    def is_blank(self, query: str) -> bool:
        return is_blank(query, self.config.words)

    def queries(self, features: Tokens) -> Float[Tensor, "B E"]:
        return self._representations(features, self.query_pooling)

    def items(self, features: Tokens) -> Float[Tensor, "B E"]:
        return self._representations(features, self.item_pooling)

    def _representations(self, features: Tokens, pooling: "Pooling | None") -> Tensor:
        ids = features.ids
        is_read = ids != PADDING  # [B, T]
        hidden = self.embeddings(ids) + self.positions.weight[: ids.shape[1]]
        if pooling is not None:
            hidden = torch.cat([pooling.tokens.expand(len(ids), -1, -1), hidden], dim=1)
            is_read = torch.cat([is_read.new_ones(len(ids), len(pooling.tokens)), is_read], dim=1)
        hidden = dropped(hidden, self.config.dropout, self.training)
        for block in self.blocks:
            hidden = block(hidden, is_read)
        hidden = self.norm(hidden)
        if pooling is not None:
            pooled: Tensor = pooling(hidden, is_read)
            return pooled
        mean: Tensor = (hidden * is_read.unsqueeze(2)).sum(dim=1) / is_read.sum(dim=1, keepdim=True)
        return mean


class Pooling(nn.Module):
    """Aggregation tokens, and the distribution over positions by which each component is pooled."""

    def __init__(self, config: TransformerConfig, num_tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(num_tokens, config.width) * TOKEN_STD)
        num_positions = num_tokens + config.max_length
        self.weigh = nn.Linear(config.width, num_tokens * num_positions)
        with torch.no_grad():
            bias = self.weigh.bias.view(num_tokens, num_positions)
            bias.zero_()
            bias[:, :num_tokens].fill_diagonal_(math.log(num_positions - 1))

    def forward(self, hidden: Float[Tensor, "B T D"], is_read: Bool[Tensor, "B T"]) -> Float[Tensor, "B E"]:
        logits = self.weigh(hidden[:, 0]).unflatten(1, (len(self.tokens), -1))[:, :, : hidden.shape[1]]
        shares = F.softmax(logits.masked_fill(~is_read.unsqueeze(1), -torch.inf), dim=2)  # [B, P, T]
        return (shares @ hidden).flatten(1)


EMPTY = torch.empty(0, dtype=torch.uint8)
