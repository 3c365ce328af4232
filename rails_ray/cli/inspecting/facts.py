"""Statistics of a data set as training reads it: whole columns of ids, and a sample of texts and vectors.

Axes: S rows of a sample, P vectors of an item, D width of a vector.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.cli.inspecting import sampling
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import SPLITS, DenseRows, ItemLists, SparseRows
from rails_ray.data.relevance import splits_of
from rails_ray.data.sources import Sources
from rails_ray.modules.encoders.words import num_words as words_of
from rails_ray.storage.ids import hash_of, keys_of
from rails_ray.storage.values import TEXT

QUANTILES = {"10%": 0.1, "50%": 0.5, "90%": 0.9, "max": 1.0}
UNIT_TOLERANCE = 1e-3  # a norm so near to 1 is 1: float16 rounds each number of a vector by at most 5e-4 of it
SHORT_HISTORY = 3  # a user with fewer interactions is for training alone (`data.forms.history`)
Facts = dict[str, Any]


def quantiles(numbers: NDArray[Any]) -> dict[str, float]:
    """Summarise at least one number."""
    return {name: float(np.quantile(numbers, share)) for name, share in QUANTILES.items()}


def of(read: DataSet, num_sampled: int, sources: Sources, weight_column: str = "weight") -> Facts:
    """Facts of a data set. Sections that do not apply are left out.

    Args:
        sources: where it was read from.
        weight_column: the column that has the weights of training pairs.
    """
    train, test = read.queries["train"], read.queries["test"]
    found: Facts = {"items": {"num": len(read.item_ids), **_inputs(read.item_inputs, num_sampled)}}
    if not len(train):  # items alone, which an index can be made of
        return found
    found["queries"] = {
        **{split: len(read.queries[split]) for split in SPLITS},
        **_inputs(train.inputs, num_sampled),
    }
    if isinstance(train.inputs, Texts) and isinstance(test.inputs, Texts):
        known = np.isin(keys_of(test.inputs.column), keys_of(train.inputs.column))
        found["queries"]["test_text_in_training_fraction"] = float(known.mean())
    histories = getattr(read, "histories", None)  # only the data of histories have them
    if isinstance(histories, ItemLists):
        column = sources.table("interactions").renamed.get("user_id", "user_id")
        found["histories"] = {"column": column, **of_histories(histories, len(read.item_ids)), **of_order(read)}
    found["relevance"] = of_relevance(read)
    if train.weights is not None:
        found["weights"] = of_weights(train.weights, weight_column)
    return found


def of_weights(weights: NDArray[np.float64], column: str) -> Facts:
    """
    column: the column of the table that has them.
    num_zero: training pairs that count nothing.
    """
    least, most = float(weights.min()), float(weights.max())
    return {
        "column": column,
        "min": least,
        "mean": float(weights.mean()),
        "max": most,
        "num_zero": int((weights == 0).sum()),
    }


def _inputs(inputs: Any, num_sampled: int) -> Facts:
    """Describe what queries or items are made of; nothing of what is no input."""
    if isinstance(inputs, Texts):
        return {"texts": of_texts(inputs, num_sampled)}
    if isinstance(inputs, DenseRows):
        return {"vectors": of_vectors(inputs, num_sampled)}
    if isinstance(inputs, SparseRows):
        lengths = np.diff(inputs.starts)
        blank = float((lengths == 0).mean())
        return {"features": {"width": inputs.width, "lengths": quantiles(lengths), "blank_fraction": blank}}
    return {}


def sample_of(texts: Texts, num_sampled: int) -> list[str]:
    """Some texts, or all."""
    return list(texts.take(sampling.rows(len(texts), num_sampled)))


def num_words(sample: list[str]) -> NDArray[np.int64]:
    """The words of each text; a character of a script without spaces is one [S]."""
    return np.array([words_of(text) for text in sample])


def of_texts(texts: Texts, num_sampled: int) -> Facts:
    """
    num_sampled: texts whose lengths were counted.
    blank_fraction: share of texts without a letter or digit, of the sample.
    num_duplicates: texts that are an earlier one again, of all texts (by 64-bit hashes).
    """
    sample = sample_of(texts, num_sampled)
    counts = num_words(sample)
    return {
        "num_sampled": len(sample),
        "characters": quantiles(np.array([len(text) for text in sample])),
        "words": quantiles(counts),
        "blank_fraction": float((counts == 0).mean()),
        "num_duplicates": len(texts) - len(np.unique(keys_of(texts.column))),
    }


def of_vectors(vectors: DenseRows, num_sampled: int) -> Facts:
    """
    num_vectors: of a row.
    zero_fraction, is_normalised: of the sample; whether all norms are 1.
    num_duplicates: rows that are an earlier one again, of all rows (by 64-bit hashes).
    """
    sample = vectors.values[sampling.rows(len(vectors), num_sampled)]  # [S, P, D] or [S, D]
    norms = np.linalg.norm(sample.astype(np.float64), axis=-1).ravel()
    return {
        "num_sampled": len(sample),
        "num_vectors": int(np.prod(sample.shape[1:-1])),
        "width": vectors.width,
        "norms": quantiles(norms),
        "zero_fraction": float((norms == 0).mean()),
        "is_normalised": bool((np.abs(norms - 1) <= UNIT_TOLERANCE).all()),
        "num_duplicates": len(vectors) - len(np.unique([hash_of((row + 0.0).tobytes()) for row in vectors.values])),
    }


def training_queries_of_items(read: DataSet) -> NDArray[np.int64]:
    """How many training queries each item answers. In histories every position is a query."""
    train = read.queries["train"]
    counts = np.bincount(train.relevant.rows, minlength=len(read.item_ids))
    if isinstance(train.inputs, ItemLists):
        counts = counts + np.bincount(train.inputs.rows, minlength=len(read.item_ids))
    return counts


def of_relevance(read: DataSet) -> Facts:
    """
    training_pairs: of a training query and a relevant item; in histories, of a position and its item.
    items_named_in_training_fraction: share of the items that answer a training query.
    items_per_query: of all splits.
    training_queries_per_item: of all items.
    items_without_query: items that answer no query of any split.
    test_pairs_named_in_training_fraction: share of the test queries' relevant items that answer a training query too.
    """
    counts, test = training_queries_of_items(read), read.queries["test"].relevant.rows
    lengths = np.concatenate([read.queries[split].relevant.lengths for split in SPLITS])
    is_asked = counts > 0
    for split in SPLITS:
        is_asked[read.queries[split].relevant.rows] = True
    return {
        "pairs": int(lengths.sum()),
        "training_pairs": int(counts.sum()),
        "items_named_in_training_fraction": float((counts > 0).mean()),
        "items_per_query": {"mean": float(lengths.mean()), **quantiles(lengths)},
        "training_queries_per_item": {"mean": float(counts.mean()), **quantiles(counts)},
        "items_without_query": int((~is_asked).sum()),
        "test_pairs_named_in_training_fraction": float((counts[test] > 0).mean()),
    }


def of_histories(histories: ItemLists, num_items: int) -> Facts:
    """
    density: share of all pairs of a user and an item that are an interaction, once or several times.
    num_short_users: users that are too short to be tested.
    num_single_users: those among them who have 1 interaction, and train nothing either.
    num_repeats: interactions with an item that the user had before.
    """
    lengths = histories.lengths
    pairs = np.unique(np.repeat(np.arange(len(histories)), lengths) * num_items + histories.rows)
    return {
        "users": len(histories),
        "interactions": int(lengths.sum()),
        "lengths": {"mean": float(lengths.mean()), **quantiles(lengths)},
        "density": float(len(pairs) / (len(histories) * num_items)),
        "num_short_users": int((lengths < SHORT_HISTORY).sum()),
        "num_single_users": int((lengths == 1).sum()),
        "num_repeats": int(lengths.sum()) - len(pairs),
    }


def of_order(read: Any) -> Facts:
    """Describe what decides which items of histories are held out.

    sorted_by: the column that orders the interactions of a user; the order of the table decides ties.
    num_ties: interactions that tie with the one before.
    num_tied_tests: users whose test item ties with their validation item.
    num_duplicates: interactions that are an earlier one again: user, item, and position or timestamp.
    num_seen_tests: test items that their user had before.
    """
    are_tied = read.are_tied
    of_one_time = (~are_tied).cumsum() * len(read.item_ids) + read.histories.rows
    return {
        "sorted_by": read.sorted_by,
        "num_ties": int(are_tied.sum()),
        "num_tied_tests": read.num_tied_tests,
        "num_duplicates": len(of_one_time) - len(np.unique(of_one_time)),
        "num_seen_tests": read.queries["test"].num_seen_relevant,
    }


def splits(sources: Sources) -> dict[str, int]:
    """The queries of each split, as their table says it."""
    queries = sources.read("queries", {"split": TEXT})
    return {split: int((splits_of(queries) == number).sum()) for number, split in enumerate(SPLITS)}
