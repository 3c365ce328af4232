"""Words of all scripts."""

import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from rails_ray.modules.encoders.words import is_blank, normalise, num_words, runs, words

SAMPLES = (
    "हिन्दी किताबें", "বাংলা ভাষা", "தமிழ் மொழி", "ഫ്രാൻസ്", "ភាសាខ្មែរ", "ภาษาไทยกำลัง", "မြန်မာစာ",
    "ລາວນ້ຳ", "བོད་ཡིག", "ಕನ್ನಡ", "שָׁלוֹם", "السَّلامُ", "می\u200cخواهم", "İIıi ΐΣςσ ŉǰẞß",
    "Å\u212be\u0301ệ", "ｆｕｌｌ ﾋﾟｻﾞ ㈱ ﬁ ½ x²", "小狗の店人々𠮷", "강아지 \u1100\u1161",
    "co\u00adop a\u034f\u0323\u0301", "l'avion, 8:30 foo_bar", "🍕👩\u200d🚀 1\ufe0f\u20e3",
    "i\u0307\u0323 i\u0345\u034f\u0307",
)  # fmt: skip
anything = st.characters(exclude_categories=("Cs",))
letters = st.characters(categories=("L", "M", "N", "Cf"))
texts = st.lists(st.one_of(st.sampled_from(SAMPLES), st.text(letters), st.text(anything)), max_size=4).map("".join)
of_samples = st.text(st.sampled_from(sorted(set("".join(SAMPLES)))))
any_text = st.one_of(texts, of_samples)
SCRIPTS = (
    "Common",
    "Inherited",
    "Latin",
    "Devanagari",
    "Bengali",
    "Tamil",
    "Khmer",
    "Thai",
    "Myanmar",
    "Han",
    "Hebrew",
)
FILLERS = "\u115f\u1160\u3164\uffa0"  # letters that are never seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dog FACE", ["dog", "face"]),
        ("woman: medium-light, 8:30", ["woman", "medium", "light", "8", "30"]),
        ("l'avion foo_bar", ["l", "avion", "foo", "bar"]),
        ("हिन्दी में किताबें", ["हिन्दी", "में", "किताबें"]),
        ("বাংলা ভাষা", ["বাংলা", "ভাষা"]),
        ("தமிழ் മലയാളം", ["தமிழ்", "മലയാളം"]),
        ("שָׁלוֹם עולם", ["שָׁלוֹם", "עולם"]),
        ("السَّلامُ عليكم", ["السَّلامُ", "عليكم"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("小狗 face", ["face", "小", "狗", "小狗"]),
        ("人々と𠮷", ["人", "々", "𠮷", "と", "人々"]),
        ("ピザ・の", ["ピ", "ザ", "の", "ピザ"]),
        ("ที่นี่", ["ที่", "นี่", "ที่นี่"]),
        ("ខ្មែរ", ["ខ្មែ", "រ", "ខ្មែរ"]),
        ("강아지", ["강아지"]),
        ("Straße ﬁne", ["strasse", "fine"]),
        ("Ｆｕｌｌ ﾋﾟ", ["full", "ピ"]),
        ("İstanbul ISPARTA ısparta", ["istanbul", "isparta", "isparta"]),
        ("e\u0301te\u0301 co\u00adop", ["été", "coop"]),
        ("one\u200btwo", ["one", "two"]),
        ("_ | : 🍕 \u0301", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dog FACE, 8:30", ["dog", "face", "8", "30"]),
        ("小狗 face", ["小", "狗", "face"]),
        ("ピザの店", ["ピザの", "店"]),
        ("Straße", ["strasse"]),
        ("e\u0301te\u0301", ["été"]),
        ("علم فرنسا", ["علم", "فرنسا"]),
        ("हिन्दी", ["ह", "न", "द"]),
        ("ｆｕｌｌ İs", ["ｆｕｌｌ", "i", "s"]),
        ("_ | :", []),
    ],
)
def test_runs_of_before_cut_as_they_did(text: str, expected: list[str]) -> None:
    assert words(text, "alphanumeric") == expected
    assert is_blank(text, "alphanumeric") == (not expected)


@given(any_text)
def test_no_letter_is_lost(text: str) -> None:
    wanted = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold().replace("ı", "i"))
    alone = words(text)[: num_words(text)]
    found = unicodedata.normalize("NFKD", "".join(alone))
    assert Counter(found) == Counter(unicodedata.normalize("NFKD", "".join(chain(*runs(text)))))
    assert seen(found) == seen(wanted)
    assert is_blank(text) == (not seen(wanted))


def seen(text: str) -> Counter[str]:
    return Counter(char for char in text if unicodedata.category(char)[0] in "LN" and char not in FILLERS)


@given(any_text)
def test_a_letter_keeps_its_marks(text: str) -> None:
    """No word ends within what a reader sees as one letter, a grapheme cluster of UAX 29, unless it mixes scripts."""
    found = words(text)[: num_words(text)]
    for cluster in regex.findall(r"\X", normalise(text)):
        own = "".join(char for char in cluster if unicodedata.category(char)[0] in "LMN")
        if len(set(map(script, own)) - {"Common", "Inherited"}) == 1 and unicodedata.category(own[0])[0] != "M":
            assert any(own in word for word in found), (cluster, found)


def script(char: str) -> str:
    return next((name for name in SCRIPTS if regex.fullmatch(rf"\p{{Script={name}}}", char)), "")


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(any_text)
def test_composed_and_decomposed_letters_have_the_same_words(form: Any, text: str) -> None:
    written = unicodedata.normalize(form, text)
    assert words(written) == words(text)
    assert normalise(written) == normalise(text)


@pytest.mark.parametrize("change", [str.casefold, str.upper, str.lower, str.title, str.swapcase])
@given(any_text)
def test_case_makes_no_difference(change: Callable[[str], str], text: str) -> None:
    """The text is composed, as a change of case leaves marks in an order that no text has; nor does it have U+0345, a
    Greek mark whose capital is a letter, to which the next mark belongs."""
    text = unicodedata.normalize("NFC", text)
    assume("\u0345" not in text)
    assert words(change(text)) == words(text)


@given(any_text)
def test_a_normal_text_stays_as_it_is(text: str) -> None:
    normal = normalise(text)
    assert normalise(normal) == normal == unicodedata.normalize("NFKC", normal)
    assert words(normal) == words(text)


@given(any_text, any_text)
def test_a_text_has_the_words_of_its_parts(text: str, other: str) -> None:
    assert Counter(words(f"{text} | {other}")) == Counter(words(text)) + Counter(words(other))
