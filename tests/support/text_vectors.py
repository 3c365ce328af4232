"""Text encoders that a run names by their import path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmh3
import numpy as np

WIDTH = 12


def encode(texts: Sequence[str]) -> np.ndarray:
    """The sum of a random vector for each word."""
    return np.array([sum((_of_word(word) for word in text.split()), np.full(WIDTH, 0.1)) for text in texts])


def _of_word(word: str) -> np.ndarray:
    return np.random.default_rng(mmh3.hash(word, signed=False)).standard_normal(WIDTH)


def known_words(texts: Sequence[str]) -> np.ndarray:
    """As `encode`, but zeros for a text without words and for words that it does not know."""
    known = [[word for word in text.split() if word not in ("unheard", "of")] for text in texts]
    return np.array([sum((_of_word(word) for word in own), np.zeros(WIDTH)) for own in known])


def nothing(texts: Sequence[str]) -> np.ndarray:
    return np.full((len(texts), WIDTH), np.nan)


def too_few(texts: Sequence[str]) -> np.ndarray:
    return np.zeros((len(texts) - 1, WIDTH))


NO_FUNCTION = 3


def save_sentence_transformer(
    folder: Path, words: Sequence[str], *, is_normalised: bool = False, width: int = 16, **options: Any
) -> Any:
    """A tiny model of sentence-transformers with random weights: static embeddings of whole words.

    Args:
        is_normalised: whether it ends in Dense, from 16 numbers to the width, and Normalize.
        options: of `SentenceTransformer`: prompts, similarity.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    torch.manual_seed(0)
    last = [Dense(16, width), Normalize()] if is_normalised else []
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16), *last], device="cpu", **options)
    model.save(str(folder))
    return model
