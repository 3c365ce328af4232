"""A query is a text. The data set is three Parquet tables, or the packaged emoji if there is none.

    items       item_id (integer or string, distinct), text (string), title (string; may be left out)
    queries     query_id (integer or string, distinct), text (string), split ("train", "valid" or "test")
    relevance   query_id, item_id: this item answers this query

Further columns of items may be attributes; others are named in a note. The position of an item in its table is its item
row. A title is read before the text. Queries that no item answers are left out. If no query is of split "valid", every
tenth one of "train" is.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data import emoji
from rails_ray.data.corpus import Corpus, ItemFiles
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.packaged import Packaged
from rails_ray.data.queries import SPLITS
from rails_ray.data.relevance import are_to_be_read, by_split, no_queries
from rails_ray.data.sources import Sources, null_notes
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.schema.fields import check_text
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.parquet_files import RowBatch
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.values import FILLED_TEXT, ID, NO_COLUMNS, TEXT, Columns


class TextForm:
    """The contract of `QueryForm`."""

    fields: tuple[str, ...] = ("text",)
    tables = "items, queries and relevance"
    packaged: Packaged | None = Packaged("emoji", emoji.tables, ("items", "queries", "relevance"))

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> DataSet:
        items = _items(sources).read()
        for note in null_notes("items", items.num_null, len(items)):
            sources.note(note)
        check_distinct(items, "item_id")
        if are_to_be_read(sources, needed):
            queries = sources.read("queries", {"query_id": ID, "text": FILLED_TEXT, "split": TEXT})
            queries_by_split = by_split(sources, queries, items, Texts(queries["text"]).take, needed)
        else:
            queries_by_split = no_queries(Texts())
        return DataSet(
            ItemIds(items["item_id"]),
            Texts(items["input"]),
            queries_by_split,
            titles=Texts(items["title"]) if "title" in items else None,
        )

    def corpus(self, sources: Sources) -> Corpus:
        return Corpus(_items(sources, sources.attribute_columns()), {"text": "string"}, has_texts=True)

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "TextReader":
        return TextReader(model)


@dataclass(frozen=True)
class TextReader:
    """The contract of `QueryReader`."""

    model: Model

    def read(self, query: dict[str, Any], where: str) -> str:
        text: str = query["text"]
        check_text(text, self.model.is_blank(text), where)
        return text

    def seen(self, read: str) -> list[ItemId]:
        return []

    def batch(self, read: list[str]) -> list[str]:
        return read

    def batch_of(self, vectors: NDArray[np.float32]) -> None:
        """The contract of `QueryReader`: there are none."""

    def example(self) -> dict[str, Any]:
        return {"text": "health"}


def _items(sources: Sources, attributes: Columns = NO_COLUMNS) -> ItemFiles:
    columns, optional = {"item_id": ID, "text": FILLED_TEXT}, {"title": FILLED_TEXT}
    table = sources.open("items", {**columns, **optional})
    return ItemFiles(table, columns, optional, _with_input, attributes=attributes)


def _with_input(batch: RowBatch) -> pa.Table:
    """The text of an item, after its title if there is one."""
    items = batch.table.select(["item_id"])
    if "title" not in batch.table.column_names:
        return items.append_column("input", batch["text"])
    titles, texts = batch["title"], batch["text"]
    joined = pc.binary_join_element_wise(titles, texts, pa.scalar("\n", pa.large_string()))
    inputs = pc.if_else(pc.equal(titles, ""), texts, joined)
    return items.append_column("input", inputs).append_column("title", titles)
