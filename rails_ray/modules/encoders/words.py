"""Words of a text in any script, for all that compares, counts or hashes them.

A word is a run of letters and digits, each with the marks that belong to it: vowel signs of Indic scripts and of Thai,
points of Hebrew and Arabic, accents. Everything else parts words, an apostrophe too: in "l'avion", "avion" is a word.

Han, kana, Thai, Lao, Khmer and Burmese put no spaces between words, and Unicode (UAX 29) leaves them to a dictionary.
Here each character is a word, and so is each pair of neighbours. A query is then cut like the text that holds it,
wherever it begins, which a dictionary does not promise. A pair is rare enough to tell texts apart; a character alone
answers a query of one.

Texts that differ only by case, or by how Unicode writes a letter, have the same words: `normalise` is its compatibility
caseless matching (The Unicode Standard, D146), without characters that are never seen (a soft hyphen, a joiner), and
with one i, as I is the upper case of both that Turkish has.

Runs and versions say how they cut words: `unicode`, or `alphanumeric` as all did before, which parts a word at each
mark that has no composed letter.
"""

import re
import unicodedata
from functools import cache
from typing import Any, Literal

Cut = Literal["unicode", "alphanumeric"]
FORMER: Cut = "alphanumeric"  # of what is stored without a name

LETTER = r"\p{L}\p{N}"
UNSPACED = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Line_Break=Complex_Context}"
RUN = rf"[{LETTER}][{LETTER}\p{{M}}]*+"
SPACED_WORD = rf"[[{LETTER}]--[{UNSPACED}]][[{LETTER}\p{{M}}]--[[{LETTER}]&&[{UNSPACED}]]]*+"
WORD = rf"{SPACED_WORD}|(?:[[{LETTER}]&&[{UNSPACED}]]\p{{M}}*+)++"
CHARACTER = r"\X"
UNSEEN = r"[\p{Default_Ignorable_Code_Point}--\u200b]"  # a space of no width parts words
ASCII_RUN = re.compile("[a-z0-9]+")
DOTTED = re.compile("[iı]\u0307*")

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
KANA = "\u3041-\u30ff"
ALPHANUMERIC = re.compile(rf"[{HAN}]|[{KANA}]+|(?:(?![{HAN}{KANA}])[^\W_])+")


def words(text: str, cut: Cut = "unicode") -> list[str]:
    """The words of a text, normalised; pairs of characters follow all others."""
    if cut == FORMER:
        return ALPHANUMERIC.findall(folded(text))
    found, pairs = _segments(normalise(text))
    return found + pairs


def num_words(text: str) -> int:
    """How many words a text has, without pairs of characters."""
    found, _ = _segments(normalise(text))
    return len(found)


def is_blank(text: str, cut: Cut = "unicode") -> bool:
    """Return whether a text has no word."""
    return not words(text, cut)


def normalise(text: str) -> str:
    """Fold case, and write equal letters alike, composed."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text).casefold()
    text = _pattern(UNSEEN).sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", DOTTED.sub("i", unicodedata.normalize("NFKD", text)))


def folded(text: str) -> str:
    """Fold case and compose letters, as `alphanumeric` does."""
    return unicodedata.normalize("NFC", text.casefold())


def _segments(text: str) -> tuple[list[str], list[str]]:
    """The words of a normalised text, and the pairs of characters of scripts without spaces."""
    if text.isascii():
        return ASCII_RUN.findall(text), []
    starts = _pattern(f"[{UNSPACED}]")
    if not starts.search(text):
        return _pattern(RUN).findall(text), []
    found, pairs = list[str](), list[str]()
    for word in _pattern(WORD).findall(text):
        parts = _pattern(CHARACTER).findall(word) if starts.match(word) else [word]
        found += parts
        pairs += map(str.__add__, parts, parts[1:])
    return found, pairs


@cache
def _pattern(pattern: str) -> Any:
    import regex  # only texts need it

    return regex.compile(pattern, regex.VERSION1)
