"""Text as a bag of hashed words and character n-grams, for every script and without a vocabulary.

A text is cut into `words`. Each word, framed by a space on both sides, gives its n-grams and itself: " dog " -> " do",
"dog", "og ", " dog", "dog ", " dog ". Of Han, whose words are one or two characters, each character and each pair of
neighbours gives itself alone. A run of kana, Thai or another script without spaces counts as a word; where no n-grams
are read, its characters and pairs do. A piece c_0 .. c_{n-1} falls into bucket

    mix(sum_i c_i * BASE^i mod 2^64) mod R

and each text counts each bucket once. Differences of one cumulative sum give the hash of every piece, so the work is
a few numpy passes for all texts. A short query has so few pieces that these take longer than to hash one after the
other.

Axes: B texts, R buckets, W pieces of all texts together.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.modules.encoders.bags import Bags, joined
from rails_ray.modules.encoders.hashing import BASE, mixed, mixed_number
from rails_ray.modules.encoders.words import Cut, characters, runs

FEW_CHARACTERS = 64  # of all texts; their pieces are hashed one after the other
BLOCK_TEXTS = 2**14  # hashed at once: a pass over all pieces of so many short texts holds tens of megabytes


def hash_texts(texts: Sequence[str], sizes: Sequence[int], num_buckets: int, cut: Cut = "unicode") -> Bags:
    """The buckets of each text's words and n-grams.

    Args:
        sizes: lengths n of the n-grams in characters, framing spaces included.
        num_buckets: R, how many buckets there are.
        cut: how texts become words.
    """
    if len(texts) <= FEW_CHARACTERS and sum(map(len, texts)) <= FEW_CHARACTERS:
        return _each_hashed(texts, sizes, num_buckets, cut)
    blocks = range(0, len(texts), BLOCK_TEXTS)
    return joined([_hashed(list(texts[first : first + BLOCK_TEXTS]), sizes, num_buckets, cut) for first in blocks])


def _each_hashed(texts: Sequence[str], sizes: Sequence[int], num_buckets: int, cut: Cut) -> Bags:
    """Hash piece by piece."""
    tokens, starts = list[int](), list[int]()
    for text in texts:
        long, short = _words(text, sizes, cut)
        framed = [f" {word} " for word in long]
        pieces = {word[first : first + n] for word in framed for n in sizes for first in range(len(word) - n + 1)}
        pieces.update(framed, (f" {word} " for word in short))
        starts.append(len(tokens))
        tokens += sorted({_hash(piece) % num_buckets for piece in pieces})
    return Bags(torch.tensor(tokens, dtype=torch.int64), torch.tensor(starts, dtype=torch.int64))


def _hash(piece: str) -> int:
    """The hash of a piece below 2^64."""
    number = 0
    for code in map(ord, reversed(piece)):
        number = (number * BASE + code) & (2**64 - 1)
    return mixed_number(number)


def _words(text: str, sizes: Sequence[int], cut: Cut) -> tuple[list[str], Iterable[str]]:
    """The words of a text of which n-grams are read, and those that give themselves alone."""
    spaced, han, spelled = runs(text, cut)
    long, unspaced = (spaced + spelled, han) if sizes else (spaced, han + spelled)
    return long, chain(*characters(unspaced))


def _hashed(texts: list[str], sizes: Sequence[int], num_buckets: int, cut: Cut) -> Bags:
    """Hash a block of texts."""
    words = [_words(text, sizes, cut) for text in texts]
    long, short = ([_framed(own) for own in kind] for kind in zip(*words, strict=True))
    framed = list(map(str.__add__, long, short))
    lengths = np.array([len(text) for text in framed], dtype=np.int64)
    end_of_long = np.cumsum(lengths) - [len(text) for text in short]
    text_of = np.repeat(np.arange(len(texts)), lengths)
    codes = np.frombuffer("".join(framed).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    num_codes = len(codes)

    powers = _powers(BASE, num_codes)
    inverse_powers = _powers(pow(BASE, -1, 2**64), num_codes)
    sums = np.zeros(num_codes + 1, dtype=np.uint64)
    np.cumsum(codes * powers[:-1], out=sums[1:])

    # A piece may not reach into the next word: no space but at its ends, and not two texts.
    spaces = np.concatenate([[0], np.cumsum(codes == ord(" "))])
    spans: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # (first, end) of each piece
    for size in sizes:
        first = np.arange(max(num_codes - size + 1, 0))
        inside = spaces[np.maximum(first + size - 1, first + 1)] - spaces[first + 1]
        first = first[(inside == 0) & (first + size <= end_of_long[text_of[first]])]
        spans.append((first, first + size))
    is_space = np.flatnonzero(codes == ord(" "))
    first, last = is_space[:-1], is_space[1:]
    is_word = (text_of[first] == text_of[last]) & (last - first > 1)
    spans.append((first[is_word], last[is_word] + 1))

    first = np.concatenate([span[0] for span in spans])
    end = np.concatenate([span[1] for span in spans])
    hashes = (sums[end] - sums[first]) * inverse_powers[first]
    buckets = mixed(torch.from_numpy(hashes.view(np.int64))).numpy().view(np.uint64) % np.uint64(num_buckets)
    pieces = torch.from_numpy(text_of[first] * num_buckets + buckets.astype(np.int64))
    distinct = pieces.unique()  # by text, then by bucket
    counts = torch.bincount(distinct // num_buckets, minlength=len(texts))
    return Bags(distinct % num_buckets, counts.cumsum(0) - counts)


def _framed(words: Iterable[str]) -> str:
    """Words with a space around each; nothing for none."""
    joined_words = " ".join(words)
    return joined_words and f" {joined_words} "


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """base^0 .. base^count modulo 2^64."""
    factors = np.full(count + 1, base, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
