"""Encode queries and items in batches."""

from collections.abc import Iterator
from typing import Any

import torch

from rails_ray.counting import advance
from rails_ray.data.batch import FeatureRows
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, concatenate

QUERY_BATCH = 128  # queries encoded at a time, and scored with all items
ITEM_BATCH = 1024  # items encoded at a time: 128 take a look-up thrice as long, and 4,096 are no faster


def encode_items(model: Model, features: FeatureRows) -> AnyItems:
    """The state of all items, encoded in batches."""
    states = []
    with torch.no_grad():
        for first, batch in in_batches(features, model, ITEM_BATCH):
            states.append(model.encode_items(batch))
            advance(min(first + ITEM_BATCH, len(features)), len(features), "items encoded")
    return concatenate(states)


def in_batches(features: FeatureRows, model: Model, size: int) -> Iterator[tuple[int, FeatureRows]]:
    """(number of the first, features) of consecutive batches, on the model's device."""
    device = next(model.parameters()).device
    for first in range(0, len(features), size):
        rows = torch.arange(first, min(first + size, len(features)))
        yield first, features.take(rows).to(device)


def query_batches(model: Model, inputs: Any, size: int = QUERY_BATCH) -> Iterator[tuple[int, AnyQuery]]:
    """(number of the first, encoded queries) of consecutive batches."""
    with torch.no_grad():
        for first, batch in in_batches(model.query_features(inputs), model, size):
            yield first, model.encode_queries(batch)
