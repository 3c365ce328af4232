"""Words of a text in any script, for all that compares, counts or hashes them.

A word is a run of letters and digits, each with the marks that belong to it: vowel signs of Indic scripts and of Thai,
points of Hebrew and Arabic, accents. Everything else parts words, an apostrophe too: in "l'avion", "avion" is a word.

Han, kana, Thai, Lao, Khmer and Burmese put no spaces between words, and Unicode (UAX 29) leaves them to a dictionary.
Here each character is a word, and so is each pair of neighbours in a run of Han, or of the others. A query is then cut
like the text that holds it, wherever it begins, which a dictionary does not promise. A pair is rare enough to tell
texts apart; a character alone answers a query of one.

Texts that differ only by case, or by how Unicode writes a letter, have the same words: `normalise` is its compatibility
caseless matching (The Unicode Standard, D146), without characters that are never seen (a soft hyphen, a joiner), and
with one i, as I is the upper case of both that Turkish has.

Runs and versions say how they cut words: `unicode`, or `alphanumeric` as all did before, which parts a word at each
mark that has no composed letter.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

Cut = Literal["unicode", "alphanumeric"]
FORMER: Cut = "alphanumeric"  # of what is stored without a name

LETTER = r"\p{L}\p{N}"
UNSPACED = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Line_Break=Complex_Context}"
SPACED = rf"[{LETTER}][{LETTER}\p{{M}}]*+"  # where a text has no other
ANY = (
    rf"([[{LETTER}]--[{UNSPACED}]][[{LETTER}\p{{M}}]--[[{LETTER}]&&[{UNSPACED}]]]*+)"
    rf"|((?:[[{LETTER}]&&\p{{Han}}]\p{{M}}*+)++)"
    rf"|((?:[[{LETTER}]&&[[{UNSPACED}]--\p{{Han}}]]\p{{M}}*+)++)"
)
UNSEEN = r"[\p{Default_Ignorable_Code_Point}--\u200b]"  # a space of no width parts words
ASCII_RUN = re.compile("[a-z0-9]+")
DOTTED = re.compile("[iı]\u0307*")

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
KANA = "\u3041-\u30ff"
ALPHANUMERIC = re.compile(rf"[{HAN}]|[{KANA}]+|(?:(?![{HAN}{KANA}])[^\W_])+")


class Runs(NamedTuple):
    """The runs of letters of a text: of scripts with spaces, which are words; of Han; of the others without spaces."""

    spaced: list[str]
    han: list[str]
    spelled: list[str]


def runs(text: str, cut: Cut = "unicode") -> Runs:
    """The runs of letters of a text, normalised."""
    if cut == FORMER:
        return Runs(ALPHANUMERIC.findall(folded(text)), [], [])
    text = normalise(text)
    if text.isascii():
        return Runs(ASCII_RUN.findall(text), [], [])
    if not _pattern(f"[{UNSPACED}]").search(text):
        return Runs(_pattern(SPACED).findall(text), [], [])
    found = Runs([], [], [])
    for match in _pattern(ANY).finditer(text):
        found[match.lastindex - 1].append(match[0])
    return found


def characters(parts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The characters of runs, with their marks, and the pairs of neighbours among them."""
    cut = [_pattern(r"\X").findall(part) for part in parts]
    return list(chain(*cut)), [first + second for part in cut for first, second in pairwise(part)]


def words(text: str, cut: Cut = "unicode") -> list[str]:
    """All words of a text, normalised."""
    spaced, han, spelled = runs(text, cut)
    alone, pairs = characters(han + spelled)
    return spaced + alone + pairs


def num_words(text: str) -> int:
    """How many words a text has, without pairs of characters."""
    spaced, han, spelled = runs(text)
    return len(spaced) + len(characters(han + spelled)[0])


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


@cache
def _pattern(pattern: str) -> Any:
    import regex  # only texts need it

    return regex.compile(pattern, regex.VERSION1)
