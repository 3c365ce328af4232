"""Config -> objects of a surrogate: fitted to a sample of the corpus and of the training queries when encoding begins,
stored with the version, and read when that is searched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rails_ray.data.corpus import ItemSource
from rails_ray.data.encoding import query_batches
from rails_ray.data.queries import Queries
from rails_ray.families.items import ItemEncoder, sampled
from rails_ray.families.vector_items import surrogate_file
from rails_ray.modules.model import Model
from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import AnyItems, ItemState, concatenate, to
from rails_ray.reranking.surrogate import Surrogate, SurrogateConfig, fit_surrogate
from rails_ray.storage.parquet_files import FileRows


def check_supports(config: SurrogateConfig, num_items: int) -> None:
    """Check before any work that there are as many items as supports.

    Raises:
        ValueError: if not.
    """
    if config.reads == "supports" and config.num_supports > num_items:
        raise ValueError(f"num_supports must be at most the {num_items} items, got {config.num_supports}")


def fitted_surrogate(
    config: SurrogateConfig,
    model: Model,
    encode: ItemEncoder,
    queries: Queries,
    source: ItemSource,
    files: Sequence[FileRows],
    seed: int,
) -> bytes:
    """The file of a surrogate for a model's similarity, fitted to some of these queries and items."""
    order = np.random.default_rng(seed).permutation(len(queries.inputs))
    rows = np.sort(order[: config.num_queries])
    sample: Any = concatenate([batch for _, batch in query_batches(model, queries.inputs.take(rows))])
    items: Any = concatenate(sampled(source, files, encode, config.num_items))
    similarity: Any = model.similarity
    made = fit_surrogate(config, similarity.prepared(), to(sample, "cpu"), to(items, "cpu"), seed)
    return surrogate_file.to_bytes(made)


@dataclass(frozen=True)
class WithVectors:
    """The contract of `ItemEncoder`: components, and the vectors of a surrogate."""

    encode: ItemEncoder
    similarity: Scorer
    surrogate: Surrogate

    @torch.no_grad()
    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        state = self.encode(item_ids, inputs)
        assert isinstance(state, ItemState)
        return replace(state, surrogate=self.surrogate.items(self.similarity, state))
