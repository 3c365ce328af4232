"""Emoji and their names in 14 languages: a real text data set that needs no file and no network.

Items are the fully qualified emoji of the `emoji` package; the text of an item is all its names and aliases. Queries
are whole names, fragments of names (two or three words in a row) and single words, in every language; an item is
relevant when one of its names holds the query's words in a row. So "flag" has hundreds of answers and "pizza" one.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rails_ray.modules.encoders.words import ALPHANUMERIC, folded
from rails_ray.optional import optional

LONGEST_FRAGMENT = 3  # words, which are cut as they always were: the queries are the data set's

# Shown by the quickstart; first in the test split, so that what it shows was not trained on.
SHOWCASE = (
    "flag", "pizza", "corazón", "chat noir", "katze", "собака", "gunung", "gatto", "bandeira brasil",
    "狗", "ピザ", "고양이", "çiçek", "قلب", "گربه",
)  # fmt: skip


@dataclass(frozen=True)
class EmojiTables:
    """The three tables of `data.forms.text`."""

    items: pa.Table
    queries: pa.Table
    relevance: pa.Table


def tables(num_valid: int, num_test: int, seed: int) -> EmojiTables:
    """The whole data set.

    Args:
        num_valid, num_test: held-out queries; all others are for training.
        seed: seeds the split.
    """
    names = names_by_item()
    relevant: dict[str, set[int]] = defaultdict(set)
    for row, item_names in enumerate(names.values()):
        for name in item_names:
            for query in queries_of(name):
                relevant[query].add(row)
    texts = sorted(relevant)
    order = np.random.default_rng(seed).permutation(len(texts))
    shown = set(SHOWCASE)
    held_out = [i for i in order if texts[i] in shown] + [i for i in order if texts[i] not in shown]
    split = np.full(len(texts), "train", dtype=object)
    split[held_out[:num_test]] = "test"
    split[held_out[num_test : num_test + num_valid]] = "valid"

    ids = np.array(list(names), dtype=object)
    rows = [sorted(relevant[text]) for text in texts]
    return EmojiTables(
        items=pa.table({"item_id": list(names), "text": [" | ".join(item_names) for item_names in names.values()]}),
        queries=pa.table({"query_id": np.arange(len(texts)), "text": texts, "split": split}),
        relevance=pa.table(
            {
                "query_id": np.repeat(np.arange(len(texts)), [len(line) for line in rows]),
                "item_id": ids[np.concatenate(rows)],
            }
        ),
    )


def names_by_item() -> dict[str, list[str]]:
    """Each fully qualified emoji with its distinct names and aliases, their words parted by spaces."""
    emoji = optional("emoji", needed_by="the emoji data set", package="emoji", install="'rails-ray[ray]'")
    emoji.config.load_language()
    names = {}
    for item_id, facts in emoji.EMOJI_DATA.items():
        if facts["status"] == emoji.STATUS["fully_qualified"]:
            found = [facts[language] for language in emoji.LANGUAGES if language in facts] + facts.get("alias", [])
            names[item_id] = list(dict.fromkeys(name.strip(":").replace("_", " ") for name in found))
    return names


def queries_of(name: str) -> set[str]:
    """List what a person may type to find an item of this name: the name and its fragments, as they are written."""
    text = folded(name)
    spans = [match.span() for match in ALPHANUMERIC.finditer(text)]
    queries = {text[spans[0][0] : spans[-1][1]]} if spans else set()
    for size in range(1, LONGEST_FRAGMENT + 1):
        for first, last in zip(spans, spans[size - 1 :], strict=False):
            queries.add(text[first[0] : last[1]])
    return {query for query in queries if len(query) > 1 or "\u3400" <= query <= "\ufaff"}
