"""A query is a vector, which a request gives as `embedding`; `data.forms.numbers` says which tables a data set has."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import numbers
from rails_ray.data.queries import SPLITS, DenseRows
from rails_ray.data.sources import Sources
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.schema.fields import LARGEST_NUMBER, check_embedding

LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class VectorForm:
    """The contract of `QueryForm`.

    item_columns: columns with the vectors of items; none for a model that reads no vectors of items.
    item_shape: number and width of an item's vectors, if the model already has them.
    """

    item_columns: tuple[str, ...] = ()
    item_shape: tuple[int, ...] = ()

    fields: ClassVar[tuple[str, ...]] = ("embedding",)
    tables: ClassVar[str] = numbers.TABLES
    packaged: ClassVar[None] = None

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> DataSet:
        return numbers.read(sources, self.item_columns, needed)

    def corpus(self, sources: Sources) -> Corpus:
        return numbers.corpus(sources, {"embedding": "list<float>"}, self.item_columns, self.item_shape)

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "VectorReader":
        return VectorReader(model)


@dataclass(frozen=True)
class VectorReader:
    """The contract of `QueryReader`."""

    model: Model

    @property
    def width(self) -> int:
        """D of a query."""
        return self.model.vector_width or 0

    @property
    def most(self) -> float:
        """The largest number that a query may hold."""
        has_length = not getattr(self.model.similarity, "has_bounded_vectors", False)  # SOLAR reads vectors as they are
        return LARGEST_NUMBER if has_length else LARGEST_FLOAT

    def batch_of(self, vectors: NDArray[np.float32]) -> DenseRows | None:
        """The contract of `QueryReader`; None if `read` would refuse one."""
        is_read = vectors.shape[1] == self.width and vectors.any(axis=1).all() and np.abs(vectors).max() <= self.most
        return DenseRows(vectors) if is_read else None

    def read(self, query: dict[str, Any], where: str) -> list[float]:
        vector: list[float] = query["embedding"]
        check_embedding(vector, self.width, where, self.most)
        if self.model.is_blank(vector):
            raise ValueError(f"{where}.embedding must hold a number other than 0, got {len(vector)} zeros")
        return vector

    def seen(self, read: list[float]) -> list[ItemId]:
        return []

    def batch(self, read: list[list[float]]) -> DenseRows:
        return DenseRows(np.array(read, dtype=np.float32))

    def example(self) -> dict[str, Any]:
        return {"embedding": [1.0] * self.width}
