"""SOLAR's query side: K models that never hear of each other, each with a probability for every bucket of its chunk.

    x_k     = hash_k(words of the query)                  another seed for each chunk; features and vectors as they are
    h_k     = relu(E_k x_k + a_k)                         E_k [H, num_inputs]; |x_k| = 1, of a vector any length
    z_k     = W_k h_k + b_k                               a logit for each of the R buckets
    T_q[k]  = sigmoid(z_k) / K                            what an item scores whose code has that bucket

An item has no encoder: its code, a bucket in each chunk, is drawn at random and stays: see
`modules.quantizers.random_codes`.

Source: SOLAR, Sections 3.1 to 3.3 and Figure 1.
Differs from the source: words that training did not see are left out before hashing, where they would bring in rows
that other words trained; bags have length 1; b_k begins at the logit of a bucket's share of the positives.

Axes: B queries, K chunks, R buckets, H hidden width, D width of a dense input, V tokens that training saw.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.modules.encoders.bags import Bags, known_only, of_length_one, without_zeros
from rails_ray.modules.encoders.character_ngrams import hash_texts
from rails_ray.modules.encoders.hashing import hashed
from rails_ray.modules.encoders.words import Cut

NUM_TOKENS = 2**36  # numbers for words: among 100,000 words, two share one with a probability of 7%
INITIAL_STD = 0.5  # of the first layer's weights; docs/log/codes.md compares it with others
USUAL_BUCKETS = 5000  # two cores train so many in minutes; the paper has 10,000 to 30,000 (Table 4)
MOST_CHUNKS = 1000  # three digits number them


@dataclass(frozen=True, kw_only=True)
class ChunksConfig:
    """Sizes of the chunks.

    Args:
        num_chunks: number K of chunks.
        num_buckets: number R of buckets of each chunk; 0 for 5,000, or one per item if there are fewer items.
        codes: how items get their buckets: `balanced` fills them equally, `hashed` is as in the paper. Items that come
            later take buckets that are not full.
        hidden: hidden width H of each chunk's model.
        input: what a query is: a `text`; `features`, each a number with its value; or a `vector`.
        num_inputs: places that each chunk hashes the words of a text to.
        ngram_sizes: lengths of the character n-grams that are read beside whole words of a text.
        words: how texts are cut into words: `unicode`, or `alphanumeric` as in runs of earlier releases.
        reads_items: whether an item's own text is also a training query, which the item answers; for texts only.
        width: how many features there can be, or width D of a vector; 0 for the data set's.
    """

    num_chunks: int = 16
    num_buckets: int = 0
    codes: Literal["balanced", "hashed"] = "balanced"
    hidden: int = 512
    input: Literal["text", "features", "vector"] = "text"
    num_inputs: int = 2**13
    ngram_sizes: tuple[int, ...] = ()
    words: Cut = "unicode"
    reads_items: bool = False
    width: int = 0

    def __post_init__(self) -> None:
        for name, least in {"num_chunks": 1, "num_buckets": 0, "hidden": 1, "num_inputs": 1, "width": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("codes", "input"):
            known = get_args(get_type_hints(ChunksConfig)[name])
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.num_chunks > MOST_CHUNKS:
            raise ValueError(f"num_chunks must be at most {MOST_CHUNKS}, got {self.num_chunks}")
        if self.reads_items and self.input != "text":
            raise ValueError(f"reads_items needs input text, got {self.input}")
        if any(size < 2 for size in self.ngram_sizes):
            raise ValueError(f"ngram_sizes must be at least 2, got {self.ngram_sizes}")


@dataclass(frozen=True)
class InputVectors:
    """Dense queries."""

    values: Float[Tensor, "B D"]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        return self.values.device

    def take(self, rows: Int[Tensor, " M"]) -> "InputVectors":
        return InputVectors(self.values[rows])

    def to(self, device: torch.device | str) -> "InputVectors":
        return InputVectors(self.values.to(device))


class Chunk(nn.Module):
    """One of the K models: queries to logits of its buckets.

    Args:
        seed: seeds this chunk's own hashing of words; stored with the weights.
        expected_buckets: mean number of positive buckets per query.
    """

    def __init__(self, config: ChunksConfig, seed: int, expected_buckets: float = 1.0) -> None:
        super().__init__()
        self.config = config
        self.seed = seed
        self.input: nn.Module
        if config.input == "vector":
            self.input = nn.Linear(config.width, config.hidden, bias=False)
        else:
            num_inputs = config.num_inputs if config.input == "text" else config.width
            self.input = nn.EmbeddingBag(num_inputs, config.hidden, mode="sum")
            nn.init.normal_(self.input.weight, std=INITIAL_STD)
        self.hidden_bias = nn.Parameter(torch.zeros(config.hidden))
        self.output = nn.Linear(config.hidden, config.num_buckets)
        share = min(expected_buckets / config.num_buckets, 0.5)
        nn.init.constant_(self.output.bias, torch.logit(torch.tensor(share, dtype=torch.float64)).item())
        self.known = torch.empty(0, dtype=torch.int64)  # tokens, ascending

    def get_extra_state(self) -> Tensor:  # weights are of no use without the seed and the tokens that they are for
        return torch.cat([torch.tensor([self.seed]), self.known])

    def set_extra_state(self, state: Tensor) -> None:
        seed = int(state[0])
        if seed != self.seed:
            raise ValueError(f"weights of a chunk must be of seed {self.seed}, got seed {seed}: train it again")
        self.known = state[1:].cpu()

    def learn(self, inputs: Any) -> Bags | InputVectors:
        """Learn the tokens of the training queries, once, before training; return the queries' features."""
        if self.config.input == "vector":
            return self.features(inputs)
        tokens = tokens_of(self.config, inputs)
        self.known = tokens.tokens.unique()
        return of_length_one(tokens)

    def features(self, inputs: Any) -> Bags | InputVectors:
        """Queries as the tensors that `forward` reads."""
        if self.config.input == "vector":
            return InputVectors(torch.as_tensor(np.asarray(inputs), dtype=torch.float32))
        return of_length_one(known_only(tokens_of(self.config, inputs), self.known))

    def hidden(self, features: Bags | InputVectors) -> Float[Tensor, "B H"]:
        """relu(sum of the tokens' rows + bias), or relu(product with the vector + bias)."""
        if isinstance(features, InputVectors):
            summed = self.input(features.values)
        else:
            places = features.tokens
            if self.config.input == "text":
                places = hashed(places, self.seed, self.config.num_inputs)
            summed = self.input(places, features.starts, per_sample_weights=features.weights)
        return F.relu(summed + self.hidden_bias)

    def forward(self, features: Bags | InputVectors, buckets: Int[Tensor, " C"] | None = None) -> Float[Tensor, "B C"]:
        """Logits of all buckets, or of some."""
        hidden = self.hidden(features)
        if buckets is None:
            logits: Tensor = self.output(hidden)
            return logits
        return F.linear(hidden, self.output.weight[buckets], self.output.bias[buckets])


def tokens_of(config: ChunksConfig, inputs: Any) -> Bags:
    """The tokens of queries, known or not; a feature of value 0 is no token."""
    if config.input == "text":
        return hash_texts(inputs, config.ngram_sizes, NUM_TOKENS, config.words)
    indices, values, starts = (torch.from_numpy(getattr(inputs, name)) for name in ("indices", "values", "starts"))
    return without_zeros(Bags(indices.long(), starts[:-1], values.float()))


def chunk_seed(seed: int, number: int) -> int:
    """The seed of a chunk's hashing, initial weights and batches."""
    return seed * MOST_CHUNKS + number
