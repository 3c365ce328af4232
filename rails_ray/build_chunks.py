"""Config -> objects of SOLAR, which is trained chunk by chunk and whose items have codes; a part of `build`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.config import RunConfig
from rails_ray.data.buckets import BucketSampler, positives_of
from rails_ray.data.dataset import DataSet, ItemLists, Queries
from rails_ray.encoders.solar import Chunk, Predicted, Solar, SolarConfig, chunk_seed
from rails_ray.quantizers import random_codes
from rails_ray.similarities.look_up import LookUpConfig
from rails_ray.storage.codes import ItemCodes
from rails_ray.storage.manifest import Encoded
from rails_ray.training.buckets import BucketStep, bucket_recall, measured_probes

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}


def chunk(config: RunConfig, number: int, expected_buckets: float = 1.0) -> Chunk:
    """An untrained chunk of SOLAR; its initial weights depend on the run's seed and its number alone.

    Args:
        expected_buckets: positive buckets of a query, on average.
    """
    assert isinstance(config.encoder, SolarConfig)
    seed = chunk_seed(config.seed, number)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Chunk(config.encoder, seed, expected_buckets)


def solar(config: RunConfig, chunks: Mapping[int, Chunk]) -> Solar:
    """The model of trained chunks, by their numbers, in evaluation mode."""
    assert isinstance(config.encoder, SolarConfig)
    assert isinstance(config.similarity, LookUpConfig)
    return Solar(config.encoder, config.similarity, chunks).eval()


def codes(config: RunConfig, item_ids: list[str] | list[int]) -> ItemCodes:
    """The codes of a run's items.

    Raises:
        ValueError: if there are more buckets than items.
    """
    encoder = config.encoder
    assert isinstance(encoder, SolarConfig)
    if encoder.num_buckets > len(item_ids):
        raise ValueError(f"encoder.num_buckets must be at most the {len(item_ids)} items, got {encoder.num_buckets}")
    sizes = encoder.num_chunks, encoder.num_buckets, config.seed
    if encoder.codes == "balanced":
        return ItemCodes(item_ids, random_codes.balanced(len(item_ids), *sizes))
    return ItemCodes(item_ids, random_codes.hashed(item_ids, *sizes))


def codes_of(
    config: RunConfig, known: ItemCodes, item_ids: list[str] | list[int]
) -> tuple[ItemCodes, NDArray[np.bool_]]:
    """The codes of a corpus, and which of its items are new: those that are known keep theirs.

    Args:
        known: of a run, or of a former version.
    """
    encoder = config.encoder
    assert isinstance(encoder, SolarConfig)
    found, is_new = random_codes.inherit(
        item_ids, known.item_ids, known.codes, num_buckets=encoder.num_buckets, seed=config.seed
    )
    return ItemCodes(item_ids, found), is_new


def with_predicted(config: RunConfig, own: ItemCodes, rows: NDArray[np.integer], predicted: Predicted) -> ItemCodes:
    """The same codes, those of some new items chosen among what a model predicts for them, in the chunks that it has.

    Args:
        rows: of the new items for which something is predicted.
    """
    assert isinstance(config.encoder, SolarConfig)
    found = own.codes.copy()
    others = np.delete(own.codes, rows, axis=0)[:, predicted.chunks]
    found[rows[:, None], np.array(predicted.chunks)] = random_codes.nearest_predicted(
        others, predicted.buckets, num_buckets=config.encoder.num_buckets
    )
    return ItemCodes(own.item_ids, found)


def training_queries(config: RunConfig, read: DataSet) -> Queries:
    """What the chunks of SOLAR are trained on."""
    assert isinstance(config.encoder, SolarConfig)
    queries = read.queries["train"]
    if not config.encoder.reads_items:
        return queries
    assert isinstance(queries.inputs, list)
    assert isinstance(read.item_inputs, list)
    rows = np.arange(len(read.item_ids))
    starts = np.concatenate([queries.relevant.starts, queries.relevant.starts[-1] + rows + 1])
    relevant = ItemLists(starts, np.concatenate([queries.relevant.rows, rows]))
    return Queries([*queries.inputs, *read.item_inputs], relevant)


@dataclass(frozen=True)
class ChunkTraining:
    """What a chunk is trained by, on which batches, and how good it is: its bucket recall on held-out queries."""

    step: BucketStep
    sampler: BucketSampler
    bucket_recall: Callable[[], float]


def chunk_training(trained: Chunk, config: RunConfig, read: DataSet, buckets: NDArray[np.integer]) -> ChunkTraining:
    """What trains a chunk, which learns its tokens here.

    Args:
        buckets: of the chunk, by item row.
    """
    assert isinstance(config.encoder, SolarConfig)
    queries, held_out = training_queries(config, read), read.queries["valid"]
    precision = PRECISIONS[config.training.precision]
    return ChunkTraining(
        BucketStep(trained, num_sampled=config.loss.num_sampled_buckets, precision=precision),
        BucketSampler(
            queries.relevant,
            trained.learn(queries.inputs),
            buckets,
            batch_size=config.training.batch_size,
            seed=trained.seed,
        ),
        partial(
            bucket_recall,
            trained,
            trained.features(held_out.inputs),
            positives_of(held_out.relevant, buckets),
            measured_probes(config.encoder.num_buckets),
        ),
    )


def chunk_counts(config: RunConfig, described: Encoded) -> dict[str, int]:
    """How many chunks a version's model has and should have; nothing of a model of one piece."""
    if not isinstance(config.encoder, SolarConfig):
        return {}
    return {"chunks_trained": len(described.weights), "num_chunks": config.encoder.num_chunks}
