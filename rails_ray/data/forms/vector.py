"""A query is a vector, which a request gives as `embedding`; `data.forms.numbers` says which tables a data set has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet, DenseRows
from rails_ray.data.forms import numbers
from rails_ray.data.forms.fields import FieldDefinition, Finite, check_embedding
from rails_ray.item_ids import ItemId
from rails_ray.models import Model
from rails_ray.storage.filesystem import Storage


class VectorForm:
    """The contract of `QueryForm`."""

    fields: Mapping[str, FieldDefinition] = {
        "embedding": (
            Annotated[list[Finite], Field(min_length=1, max_length=65_536, fail_fast=True)] | None,
            Field(
                None,
                description="The representation that the query tower would make, of its width; or, where queries are "
                "vectors, the query itself.",
            ),
        )
    }
    tables = numbers.TABLES
    packaged = None

    def read(self, folder: Storage) -> DataSet:
        return numbers.read(folder)

    def corpus(self, folder: Storage) -> Corpus:
        return numbers.corpus(folder, {"embedding": "list<float>"})

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "VectorReader":
        return VectorReader(model.vector_width or 0)


@dataclass(frozen=True)
class VectorReader:
    """The contract of `QueryReader`.

    width: width D of a query.
    """

    width: int

    def read(self, query: dict[str, Any], where: str) -> list[float]:
        vector: list[float] = query["embedding"]
        check_embedding(vector, self.width, where)
        return vector

    def seen(self, read: list[float]) -> list[ItemId]:
        return []

    def batch(self, read: list[list[float]]) -> DenseRows:
        return DenseRows(np.array(read, dtype=np.float32))

    def example(self) -> dict[str, Any]:
        return {"embedding": [0.0] * self.width}
