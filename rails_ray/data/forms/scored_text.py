"""A query is a text that a heavy ranker scored. The data set is one of texts (`data.forms.text`), with one table more.

    scores      query_id, scores (list of floats): the ranker's score of every item, in the order of the items; NaN
                where it gave none

`rails-ray relevance` makes it. Without that table the queries are plain texts, which only a trained run can use.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms.text import TextForm, TextReader
from rails_ray.data.queries import SPLITS, Queries
from rails_ray.data.relevance import by_split
from rails_ray.data.scored import ScoredTexts
from rails_ray.data.sources import Sources
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.schema.fields import SUPPORTS
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.rows import Rows, check_distinct, rows_of
from rails_ray.storage.values import FILLED_TEXT, FLOATS, ID, TEXT


class ScoredTextForm(TextForm):
    """The contract of `QueryForm`."""

    packaged = None
    tables = "items, queries, relevance and scores"

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> DataSet:
        found = super().read(sources, needed)
        if not sources.has("scores") or not any(map(len, found.queries.values())):
            return found
        return replace(found, queries=self._scored(sources, found.item_ids, needed))

    def _scored(self, sources: Sources, item_ids: ItemIds, needed: Collection[str]) -> dict[str, Queries]:
        items = sources.read("items", {"item_id": ID})
        queries = sources.read("queries", {"query_id": ID, "text": FILLED_TEXT, "split": TEXT})
        given = sources.read("scores", {"query_id": ID, "scores": FLOATS})
        scores, texts = _in_order(given, queries, len(items)), Texts(queries["text"])

        def inputs_of(rows: NDArray[np.int64]) -> ScoredTexts:
            return ScoredTexts(texts.take(rows), item_ids, scores[rows])

        return by_split(sources, queries, items, inputs_of, needed)

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "ScoredTextReader":
        return ScoredTextReader(model)


def _in_order(given: Rows, queries: Rows, num_items: int) -> NDArray[np.float32]:
    """The scores of each query [Q, X]; NaN for a query without any.

    Raises:
        ValueError: if a query has another number of scores than there are items, or an infinite one.
    """
    check_distinct(given, "query_id")
    rows, column = rows_of(given, queries, "query_id"), given["scores"]
    lengths = pc.list_value_length(column).to_numpy()
    wrong = np.flatnonzero(lengths != num_items)
    if len(wrong):
        file, row = given.where(int(wrong[0]))
        raise ValueError(
            f"column 'scores' of {file} must hold {num_items} scores, one for each item, got {lengths[wrong[0]]} in "
            f"row {row}"
        )
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    scores = np.full((len(queries), num_items), np.nan, np.float32)
    scores[rows] = values.reshape(-1, num_items)
    if np.isinf(scores).any():
        raise ValueError(f"column 'scores' of {given.name} must hold finite scores, or NaN for none, got infinity")
    return scores


@dataclass(frozen=True)
class ScoredTextReader(TextReader):
    """The contract of `QueryReader`. A query whose supports are scored already has their scores beside its text, by
    item id."""

    def read(self, query: dict[str, Any], where: str) -> Any:
        return super().read(query, where), query.get(SUPPORTS)

    def seen(self, read: Any) -> list[ItemId]:
        return []

    def batch(self, read: list[Any]) -> Any:
        texts = Texts([text for text, _ in read])
        if any(scores is None for _, scores in read):
            return texts
        item_ids = list(read[0][1]) if read else []
        scores = np.array([list(scores.values()) for _, scores in read], dtype=np.float32)
        return ScoredTexts(texts, item_ids, scores)
