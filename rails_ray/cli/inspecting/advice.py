"""Advice on what to try first on a data set, and why: decided from its facts alone.

A model of texts that is trained from nothing needs queries to learn from. HR@10 on the test queries (docs/data.md):

    |         | training queries | BM25  | towers, trained | transformer, trained |
    | SciFact | 729              | 0.803 | 0.633           | 0.527                |
    | TLDR    | 25,820           | 0.354 | 0.655           | 0.547                |
"""

from collections.abc import Collection, Mapping
from typing import Any

FEW_QUERIES = 4_000  # about the geometric mean of the two data sets above; nothing in between was measured
ENCODE = "encode --recipe baseline-bm25 --folder {folder}"
PRETRAINED = "train vector-cosine --encoder.kind sentence_transformer --encoder.pretrained MODEL --data.folder {folder}"
WITHOUT_QUERIES = "there are no queries with relevance, so that nothing can be trained or measured"


def first(facts: Mapping[str, Any], fits: Collection[str], folder: str) -> list[str]:
    """Say what to try first, and warn of too few queries.

    Args:
        facts: of one reading, as `facts.of` gives them.
        fits: the recipes of that reading that fit.
        folder: where the data are, as a command names it.
    """
    return (_of_texts if "texts" in facts["items"] else _of_others)(facts, fits, folder)


def _of_texts(facts: Mapping[str, Any], fits: Collection[str], folder: str) -> list[str]:
    encode, train = (f"`rails-ray {command.format(folder=folder)}`" for command in (ENCODE, PRETRAINED))
    untrained = (
        f"baseline-bm25 ({encode}), then a pretrained encoder of sentence-transformers in a folder MODEL ({train})"
    )
    if "queries" not in facts:
        return [f"try first {untrained}: {WITHOUT_QUERIES}"]
    num_train = facts["queries"]["train"]
    if num_train >= FEW_QUERIES and "text-dot" in fits:
        return [
            f"try first text-dot: {num_train:,} training queries are enough to learn words from; baseline-bm25 is the "
            "number to beat, and text-mol takes longer and promises nothing over text-dot"
        ]
    return [
        f"try first {untrained}: neither is trained, and a model that learnt words from few queries found less than "
        "BM25 (SciFact, 729 training queries: HR@10 0.633 and 0.803)",
        _few(num_train, facts["relevance"]),
    ]


def _few(num_train: int, relevance: Mapping[str, Any]) -> str:
    """Warn of few training queries."""
    return (
        f"{num_train:,} training quer{'y' if num_train == 1 else 'ies'}: a model that learns words needs about "
        f"{FEW_QUERIES:,}; the {relevance['training_pairs']:,} training pairs name "
        f"{relevance['items_named_in_training_fraction']:.1%} of the items"
    )


def _of_others(facts: Mapping[str, Any], fits: Collection[str], folder: str) -> list[str]:
    if "queries" not in facts and "vector-cosine" in fits:
        encode = f"rails-ray encode --recipe vector-cosine --folder {folder}"
        return [f"try first vector-cosine (`{encode}`): {WITHOUT_QUERIES}"]
    if {"vector-cosine", "vector-dot"} <= set(fits):
        return [
            "try first vector-cosine, which trains nothing, then vector-dot, which begins as a cosine: 729 training "
            "queries of SciFact moved HR@10 from 0.67 to 0.82"
        ]
    choices = {
        "vector-dot": "queries and items differ in width, so that their vectors have no cosine before it is trained",
        "sasrec": "a dot product trains fastest, and popularity is the number to beat",
        "features-solar": "it is the only recipe that reads features, and popularity is the number to beat",
        "vector-solar": "no vectors of items are read, and their codes are learnt; popularity is the number to beat",
    }
    return [f"try first {recipe}: {why}" for recipe, why in choices.items() if recipe in fits][:1]
