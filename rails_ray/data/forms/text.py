"""A query is a text. The data set is three Parquet tables in one folder, or the packaged emoji if there is none.

    items.parquet       item_id (integer or string, distinct), text (string), title (string; may be left out)
    queries.parquet     query_id (integer or string, distinct), text (string), split ("train", "valid" or "test")
    relevance.parquet   query_id, item_id: this item answers this query

Further columns are ignored. The position of an item in items.parquet is its item row. A title is read before the text.
Queries that no item answers are left out. If no query is of split "valid", every tenth one of "train" is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from rails_ray.data import emoji
from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms.fields import FieldDefinition, shortened
from rails_ray.data.packaged import Packaged
from rails_ray.data.relevance import by_split
from rails_ray.item_ids import ItemId
from rails_ray.models import Model
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import ID, TEXT, check_distinct, read_table


class TextForm:
    """The contract of `QueryForm`."""

    fields: Mapping[str, FieldDefinition] = {
        "text": (Annotated[str, Field(min_length=1, max_length=10_000)] | None, None)
    }
    tables = "items.parquet, queries.parquet and relevance.parquet"
    packaged = Packaged("emoji", emoji.tables, ("items", "queries", "relevance"))

    def read(self, folder: Storage) -> DataSet:
        items = _read_items(folder)
        queries = read_table(folder, "queries.parquet", {"query_id": ID, "text": TEXT, "split": TEXT})
        return DataSet(
            items["item_id"].to_pylist(),
            Texts(_item_texts(items).to_pylist()),
            by_split(folder, queries, items, Texts(queries["text"].to_pylist()).take),
            titles=items["title"].to_pylist() if "title" in items.column_names else None,
        )

    def corpus(self, folder: Storage) -> Corpus:
        items = _read_items(folder)
        titles = items["title"] if "title" in items.column_names else None
        return Corpus.of(items["item_id"], _item_texts(items), titles, {"text": "string"})

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "TextReader":
        return TextReader(model)


@dataclass(frozen=True)
class TextReader:
    """The contract of `QueryReader`."""

    model: Model

    def read(self, query: dict[str, Any], where: str) -> str:
        text: str = query["text"]
        if self.model.is_blank(text):
            raise ValueError(f"{where}.text must hold a letter or a digit, got {shortened(text)}")
        return text

    def seen(self, read: str) -> list[ItemId]:
        return []

    def batch(self, read: list[str]) -> Texts:
        return Texts(read)

    def example(self) -> dict[str, Any]:
        return {"text": "health"}


def _read_items(storage: Storage) -> pa.Table:
    """The table of items alone, checked."""
    file = "items.parquet"
    items = read_table(storage, file, {"item_id": ID, "text": TEXT}, optional={"title": TEXT})
    check_distinct(items["item_id"], "item_id", f"{storage}/{file}")
    return items


def _item_texts(items: pa.Table) -> pa.ChunkedArray:
    """What the item encoder reads of each item."""
    if "title" not in items.column_names:
        return items["text"]
    kind = pa.large_string()  # all three must be of one type
    return pc.binary_join_element_wise(items["title"].cast(kind), items["text"].cast(kind), pa.scalar("\n", kind))
