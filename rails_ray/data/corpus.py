"""The items to encode, and what answers need beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.dataset import Texts


@dataclass(frozen=True)
class Corpus:
    """
    items: item_id, input (what the item encoder reads) and, if the data set has them, title, by item row.
    query: the fields that may give a query, each with the type of its ids, its text or its numbers.
    files: what reading a query needs beside the model, by name.
    """

    items: pa.Table
    query: dict[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(
        item_ids: Any, inputs: Any, titles: Any | None, query: dict[str, str], files: Mapping[str, bytes] = {}
    ) -> "Corpus":
        """From the columns of its items, Arrow's or any sequence; no titles if the data set has none."""
        items = pa.table({"item_id": item_ids, "input": inputs})
        return Corpus(items if titles is None else items.append_column("title", titles), query, files)


def item_inputs(items: pa.Table) -> Texts | NDArray[Any]:
    """What the item encoder reads of some items of a corpus: their texts or their rows."""
    is_rows = pa.types.is_integer(items["input"].type)
    inputs: Texts | NDArray[Any] = items["input"].to_numpy() if is_rows else Texts(items["input"].to_pylist())
    return inputs
