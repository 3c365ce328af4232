"""Small data sets whose queries are texts, features or vectors, and the config of a run that reads them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import DenseRows, ItemLists, Queries, SparseRows
from rails_ray.families.config import RunConfig
from rails_ray.storage.ids import ItemIds
from support.examples import small_solar_config

CONFIG = small_solar_config()


def with_encoder(**fields: Any) -> RunConfig:
    return CONFIG.with_family(encoder=replace(CONFIG.family.encoder, **fields))


def data_of(inputs: Callable[[int, int], Any]) -> DataSet:
    """Three queries of each split on ten items; `inputs` of a number of queries by the seed of a split."""
    queries = {
        split: Queries(inputs(3, seed), ItemLists.of([[seed], [seed, 4], [9]]))
        for seed, split in enumerate(("train", "valid", "test"))
    }
    return DataSet(ItemIds([f"i{row}" for row in range(10)]), np.arange(10), queries)


def vectors(count: int, seed: int) -> DenseRows:
    return DenseRows(np.random.default_rng(seed).standard_normal((count, 7)).astype(np.float32))


def sparse(count: int, seed: int) -> SparseRows:
    indices = np.arange(2 * count, dtype=np.int64) + seed
    return SparseRows(2 * np.arange(count + 1), indices, np.ones(2 * count, dtype=np.float32), 8)


def texts(count: int, seed: int) -> Texts:
    return Texts(f"word{number} split{seed}" for number in range(count))


INPUTS = [("text", texts, 0), ("features", sparse, 8), ("vector", vectors, 7)]
