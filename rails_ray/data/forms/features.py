"""A query is numbers of features with a value each. `data.forms.numbers` says which tables a data set has."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import numbers
from rails_ray.data.queries import SPLITS, SparseRows
from rails_ray.data.sources import Sources
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.schema.fields import LARGEST_INTEGER, LARGEST_NUMBER


class FeaturesForm:
    """The contract of `QueryForm`."""

    fields: tuple[str, ...] = ("features",)
    tables = numbers.TABLES
    packaged = None

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> DataSet:
        return numbers.read(sources, needed=needed)

    def corpus(self, sources: Sources) -> Corpus:
        return numbers.corpus(sources, {"features": "map<int64, float>"})

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> "FeaturesReader":
        return FeaturesReader()


class FeaturesReader:
    """The contract of `QueryReader`."""

    def read(self, query: dict[str, Any], where: str) -> dict[int, float]:
        features: dict[int, float] = query["features"]
        outside = [feature for feature in features if not 0 <= feature <= LARGEST_INTEGER]
        if outside:
            raise ValueError(f"{where}.features must be numbered from 0 to {LARGEST_INTEGER}, got {outside[0]}")
        largest = max(features.values(), key=abs, default=0.0)
        if abs(largest) > LARGEST_NUMBER:
            raise ValueError(f"{where}.features must hold numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
        return features

    def seen(self, read: dict[int, float]) -> list[ItemId]:
        return []

    def batch(self, read: list[dict[int, float]]) -> SparseRows:
        starts = np.cumsum([0, *map(len, read)])
        indices = np.array([feature for query in read for feature in query], dtype=np.int64)
        values = np.array([value for query in read for value in query.values()], dtype=np.float32)
        return SparseRows(starts, indices, values, int(indices.max(initial=-1)) + 1)

    def batch_of(self, vectors: NDArray[np.float32]) -> None:
        """The contract of `QueryReader`: there are none."""

    def example(self) -> dict[str, Any]:
        return {"features": {}}
