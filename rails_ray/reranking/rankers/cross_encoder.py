"""A heavy ranker that reads a query and an item together: a small transformer over the tokens of both.

    h^0 = [E[w_1] + p_1 + s_1 + m_1, ..]        over the query's tokens, then the item's
    score = W_2 GELU(W_1 mean_t h_t)

p is a token's place in its own text, s says which text it is of, and m whether the other text has the same token:
without it, a transformer that is trained from scratch must first learn what being equal means.

Differs from the field's usual: trained here, of a size for a CPU, where a cross-encoder begins as a language model.
`transformers_ranker` loads such a model.

Axes: N pairs, T tokens of a query, U tokens of an item, D width.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rails_ray.modules.encoders.text import INITIAL_STD
from rails_ray.modules.encoders.tokenizer import PADDING
from rails_ray.modules.encoders.transformer import Block
from rails_ray.modules.encoders.words import FORMER, Cut
from rails_ray.reranking.rankers import TEXT, Candidate

CONFIG, WEIGHTS, TOKENIZER = "config.json", "weights.safetensors", "tokenizer.json"  # files of a ranker's folder
AT_ONCE = 64  # pairs of one pass: a matrix of them fits the caches of a CPU


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig:
    """Sizes of the transformer.

    Args:
        width: D.
        num_blocks: blocks of attention and network.
        num_heads: attention heads of each block; width is a multiple of it.
        hidden: width of each network's hidden layer.
        query_length: T; only the first T tokens of a query are read.
        item_length: U, likewise of an item.
        vocabulary_size: most tokens that are learnt from the texts; at least 258.
        dropout: share of attention outputs and network outputs that training drops, in [0, 1).
        words: as in `TransformerConfig`.
    """

    width: int = 64
    num_blocks: int = 2
    num_heads: int = 4
    hidden: int = 256
    query_length: int = 24
    item_length: int = 96
    vocabulary_size: int = 8192
    dropout: float = 0.1
    words: Cut = "unicode"

    def __post_init__(self) -> None:
        least = dict.fromkeys(("width", "num_blocks", "num_heads", "hidden", "query_length", "item_length"), 1)
        for name, number in (least | {"vocabulary_size": 258}).items():
            if getattr(self, name) < number:
                raise ValueError(f"{name} must be at least {number}, got {getattr(self, name)}")
        if self.width % self.num_heads:
            raise ValueError(f"width must be a multiple of the {self.num_heads} heads, got {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


class CrossEncoder(nn.Module):
    """The score of pairs of a query and an item, by their tokens."""

    def __init__(self, config: CrossEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocabulary_size, config.width)
        self.query_positions = nn.Embedding(config.query_length, config.width)
        self.item_positions = nn.Embedding(config.item_length, config.width)
        self.matches = nn.Embedding(2, config.width)
        self.blocks = nn.ModuleList(
            Block(config.width, config.num_heads, config.hidden, nn.GELU(), config.dropout)
            for _ in range(config.num_blocks)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Sequential(nn.Linear(config.width, config.width), nn.GELU(), nn.Linear(config.width, 1))
        for table in (self.embeddings, self.query_positions, self.item_positions, self.matches):
            nn.init.normal_(table.weight, std=INITIAL_STD)

    def forward(self, queries: Int[Tensor, "N T"], items: Int[Tensor, "N U"]) -> Float[Tensor, " N"]:
        """One score for each pair. Tokens that are PADDING are not read."""
        equal = (queries[:, :, None] == items[:, None, :]) & (queries != PADDING)[:, :, None]  # [N, T, U]
        hidden = torch.cat(
            [
                self._embedded(queries, self.query_positions, equal.any(dim=2)),
                self._embedded(items, self.item_positions, equal.any(dim=1)),
            ],
            dim=1,
        )
        is_read = torch.cat([queries, items], dim=1) != PADDING
        for block in self.blocks:
            hidden = block(hidden, is_read)
        read = is_read[:, :, None].float()
        mean = (self.norm(hidden) * read).sum(dim=1) / read.sum(dim=1).clamp(min=1)
        scores: Tensor = self.head(mean)[:, 0]
        return scores

    def _embedded(
        self, tokens: Int[Tensor, "N T"], positions: nn.Embedding, is_matched: Bool[Tensor, "N T"]
    ) -> Float[Tensor, "N T D"]:
        embedded: Tensor = (
            self.embeddings(tokens) + positions.weight[: tokens.shape[1]] + self.matches(is_matched.long())
        )
        return embedded


class PairReader:
    """Texts to tokens.

    Args:
        learnt: a tokenizer as JSON.
    """

    def __init__(self, learnt: bytes, config: CrossEncoderConfig) -> None:
        from rails_ray.modules.encoders import tokenizer  # of a library that is loaded only where texts are read

        self.json, self.config = learnt, config
        self._encode = tokenizer.encode
        self._tokenizer = tokenizer.read(learnt)

    @staticmethod
    def of(texts: Iterable[str], config: CrossEncoderConfig) -> "PairReader":
        """A reader that learns the tokens of these texts."""
        from rails_ray.modules.encoders import tokenizer

        return PairReader(tokenizer.learn(texts, config.vocabulary_size, config.words), config)

    def queries(self, texts: Sequence[str]) -> Int[Tensor, "N T"]:
        return self._encode(self._tokenizer, texts, self.config.query_length, self.config.words)

    def items(self, texts: Sequence[str]) -> Int[Tensor, "N U"]:
        return self._encode(self._tokenizer, texts, self.config.item_length, self.config.words)


class CrossEncoderRanker:
    """The contract of `HeavyRanker`.

    Args:
        folder: what `rails-ray train-ranker` wrote.
        device: where the transformer goes; by default a GPU if there is one.

    Raises:
        ValueError: if it did not.
    """

    def __init__(self, folder: str, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.reader = load(Path(folder))
        self.model.to(self.device).eval()

    @torch.no_grad()
    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        query_tokens = self.reader.queries([str(query[TEXT])]).to(self.device)
        items = self.reader.items([str(one.fields[TEXT]) for one in candidates]).to(self.device)
        order = (items != PADDING).sum(dim=1).argsort()  # texts of like lengths together
        scores = torch.zeros(len(items))
        for rows in order.split(AT_ONCE):
            length = int((items[rows] != PADDING).sum(dim=1).max())
            scores[rows.cpu()] = self.model(query_tokens.expand(len(rows), -1), items[rows, :length]).cpu()
        found: list[float] = scores.tolist()
        return found


def save(folder: Path, model: CrossEncoder, reader: PairReader) -> None:
    """Write a ranker."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(asdict(model.config), indent=1))
    (folder / TOKENIZER).write_bytes(reader.json)
    safetensors.torch.save_file({name: own.contiguous() for name, own in model.state_dict().items()}, folder / WEIGHTS)


def load(folder: Path) -> tuple[CrossEncoder, PairReader]:
    """Raises:
    ValueError: if the folder has none.
    """
    try:
        config = CrossEncoderConfig(**{"words": FORMER, **json.loads((folder / CONFIG).read_text())})
        model = CrossEncoder(config)
        model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
        return model, PairReader((folder / TOKENIZER).read_bytes(), config)
    except (OSError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder} must hold a cross-encoder, got: {reason}") from None
