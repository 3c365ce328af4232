"""Training of SOLAR: each chunk alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.buckets import BucketSampler, positives_of
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import SPLITS, ItemLists, Queries, SparseRows
from rails_ray.families.config import RunConfig
from rails_ray.families.solar.serve import SolarFamily
from rails_ray.families.training_family import Sizes, TrainingFamily
from rails_ray.modules.encoders.solar import USUAL_BUCKETS, Chunk, ChunksConfig
from rails_ray.modules.schedule import PRECISIONS, TrainingConfig
from rails_ray.storage import codes
from rails_ray.storage.filesystem import Storage
from rails_ray.training.buckets import BucketStep, bucket_recall, measured_probes
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Prepared, Steps

LAST_STEPS = 20  # their mean is reported as a chunk's loss


@dataclass(frozen=True)
class ChunkTraining:
    """A chunk's step, its batches, and what measures it: its bucket recall on held-out queries."""

    step: BucketStep
    sampler: BucketSampler
    bucket_recall: Callable[[], float]


@dataclass(frozen=True)
class SolarTraining(SolarFamily, TrainingFamily):
    """The contract of `TrainingFamily`."""

    @property
    def sizes(self) -> Sizes:
        return Sizes(num_buckets=self.own.encoder.num_buckets)

    def completed(self, read: DataSet) -> RunConfig:
        """The config with the number of buckets, and the width of queries that are numbers."""
        sizes = self.own.encoder
        sizes = replace(sizes, num_buckets=sizes.num_buckets or min(USUAL_BUCKETS, len(read.item_ids)))
        return self.config.with_family(encoder=_of_width(sizes, read, self.data_name))

    def check_can_be_asked(self, read: DataSet) -> None:
        """Any width will do, as features that training did not see are left out."""
        encoder = self.own.encoder
        if encoder.input == "features":
            encoder = replace(encoder, width=0)
        SolarTraining(self.config, replace(self.own, encoder=encoder)).completed(read)

    def pieces(self) -> list["ChunkPiece"]:
        return [ChunkPiece(self, number) for number in range(self.own.encoder.num_chunks)]

    def begin(self, read: DataSet) -> Callable[[Storage, str], None]:
        """A run fixes the codes of its items."""
        drawn = self.codes(list(read.item_ids))

        def leave(storage: Storage, run: str) -> None:
            if not codes.exist(storage, f"runs/{run}"):
                codes.write(storage, f"runs/{run}", drawn)

        return leave

    def training_queries(self, read: DataSet) -> Queries:
        """Return the queries that chunks are trained on."""
        queries = read.queries["train"]
        if not self.own.encoder.reads_items:
            return queries
        assert isinstance(queries.inputs, Texts)
        assert isinstance(read.item_inputs, Texts)
        rows = np.arange(len(read.item_ids))
        starts = np.concatenate([queries.relevant.starts, queries.relevant.starts[-1] + rows + 1])
        relevant = ItemLists(starts, np.concatenate([queries.relevant.rows, rows]))
        return Queries(queries.inputs.and_then(read.item_inputs), relevant)

    def chunk_training(self, trained: Chunk, read: DataSet, buckets: NDArray[np.integer]) -> ChunkTraining:
        """Make what trains a chunk, which learns its tokens here.

        Args:
            buckets: the chunk's bucket of each item row.
        """
        queries, held_out = self.training_queries(read), read.queries["valid"]
        precision = PRECISIONS[self.config.training.precision]
        return ChunkTraining(
            BucketStep(trained, num_sampled=self.own.loss.num_sampled_buckets, precision=precision),
            BucketSampler(
                queries.relevant,
                trained.learn(queries.inputs),
                buckets,
                batch_size=self.config.training.batch_size,
                seed=trained.seed,
            ),
            partial(
                bucket_recall,
                trained,
                trained.features(held_out.inputs),
                positives_of(held_out.relevant, buckets),
                measured_probes(self.own.encoder.num_buckets),
            ),
        )


@dataclass(frozen=True)
class ChunkPiece:
    """The contract of `Piece`: one chunk, on a worker of its own."""

    family: SolarTraining
    number: int
    after: tuple[str, ...] = ()
    shares_gradient: bool = False

    @property
    def name(self) -> str:
        return f"chunk-{self.number:03d}"

    @property
    def training(self) -> TrainingConfig:
        return self.family.config.training

    def check_workers(self, num_workers: int) -> None:
        """Any number will do: it says how many chunks are trained side by side."""

    def prepare(self, given: Given) -> Prepared:
        own_codes = codes.read(given.storage, f"runs/{given.run}").codes
        queries = self.family.training_queries(given.read)
        chunk = self.family.chunk(self.number, float(queries.relevant.lengths.mean()))
        own = self.family.chunk_training(chunk, given.read, own_codes[:, self.number])

        def report(progress: Progress) -> dict[str, Any]:
            loss = float(np.mean(progress.losses[-LAST_STEPS:]))
            return {"loss": loss, "bucket_recall": own.bucket_recall(), "cutoff_mass": None}

        steps = Steps(step=own.step, batch_of=own.sampler.batch, seed=[chunk.seed], validate=own.bucket_recall)
        return Prepared(module=chunk, report=report, steps=steps)


def _of_width(sizes: ChunksConfig, read: DataSet, folder: str | None) -> ChunksConfig:
    """Fill in the width of the data set's queries.

    Raises:
        ValueError: if the queries are not what the encoder reads, or wider than it says.
    """
    inputs = [read.queries[split].inputs for split in SPLITS]
    if sizes.input == "text":
        return sizes
    if any(isinstance(of_split, SparseRows) != (sizes.input == "features") for of_split in inputs):
        given = "features" if sizes.input == "vector" else "vectors"
        raise ValueError(f"queries of {folder} must be of encoder.input {sizes.input}, got {given}")
    widths = [of_split.width if isinstance(of_split, SparseRows) else len(of_split[0]) for of_split in inputs]
    width = max(widths)
    if sizes.width and (sizes.width < width or (sizes.input == "vector" and sizes.width != width)):
        raise ValueError(f"encoder.width must be the {width} of the queries of {folder}, or 0, got {sizes.width}")
    return replace(sizes, width=sizes.width or width)


FAMILY = SolarTraining
