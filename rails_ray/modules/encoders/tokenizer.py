"""A byte-level BPE tokenizer: learnt from the texts of a data set, without an unknown token in any script.

Learning it twice from the same texts gives the same tokens. (The WordPiece of the same library does not: ties are
broken at random.)

A token lies within a run of letters, of digits or of other signs, with the space before it. Marks belong to the letters
before them, so that a vowel sign of Hindi parts no word. Texts are normalised as `words` says; a tokenizer of
`alphanumeric` has a normaliser of its own, and parts runs at each mark.

The library is imported when a text is read: a model that is only loaded needs none.

Axes: B texts, T tokens of the longest.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from rails_ray.modules.encoders.words import FORMER, Cut, normalise
from rails_ray.optional import optional

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING, BLANK = 0, 1  # tokens that no text has: after its end, and alone for a text without any
BLOCK_TEXTS = 2**14  # whose tokens are Python objects at once
RUNS = r"'(?:s|t|re|ve|m|ll|d)| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"  # GPT-2's, with marks
SPECIAL = {PADDING: "[PADDING]", BLANK: "[BLANK]"}


def learn(texts: Iterable[str], vocabulary_size: int, cut: Cut = "unicode") -> bytes:
    """A tokenizer of at most `vocabulary_size` tokens, as JSON."""
    library = _library()
    normalizers, pre_tokenizers = library.normalizers, library.pre_tokenizers
    tokenizer: Tokenizer = library.Tokenizer(library.models.BPE())
    if cut == FORMER:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Prepend(" ")])
        runs = pre_tokenizers.Split(library.Regex(RUNS), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [runs, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[SPECIAL[number] for number in range(len(SPECIAL))],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_written(texts, cut), trainer)
    return tokenizer.to_str().encode()


def read(json: bytes) -> "Tokenizer":
    """Raises:
    ValueError: if it is not what `learn` gave.
    """
    library = _library()
    try:
        tokenizer: Tokenizer = library.Tokenizer.from_str(json.decode())
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"a model's tokenizer must be as it was stored, got: {error}") from None
    tokenizer.encode_special_tokens = True  # a text that says "[PADDING]" is a text
    return tokenizer


def _library() -> Any:
    return optional("tokenizers", needed_by="a tokenizer", package="tokenizers", install="'rails-ray[ray]'")


def encode(tokenizer: Any, texts: Sequence[str], max_length: int, cut: Cut = "unicode") -> Int[Tensor, "B T"]:
    """The first tokens of each text, filled up with `PADDING`; a text without any is one `BLANK`."""
    blocks = range(0, max(len(texts), 1), BLOCK_TEXTS)
    parts = [
        _encoded(tokenizer, list(_written(texts[first : first + BLOCK_TEXTS], cut)), max_length) for first in blocks
    ]
    longest = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, longest - part.shape[1]), value=PADDING) for part in parts])


def _encoded(tokenizer: Any, texts: list[str], max_length: int) -> Int[Tensor, "B T"]:
    """Encode a few texts."""
    lines = [encoding.ids[:max_length] or [BLANK] for encoding in tokenizer.encode_batch_fast(texts)]
    ids = torch.full((len(lines), max(map(len, lines), default=1)), PADDING)
    for number, line in enumerate(lines):
        ids[number, : len(line)] = torch.tensor(line)
    return ids


def _written(texts: Iterable[str], cut: Cut) -> Iterable[str]:
    """Texts as a tokenizer reads them."""
    return texts if cut == FORMER else map(normalise, texts)
