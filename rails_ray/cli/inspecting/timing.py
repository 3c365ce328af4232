"""Time that a training and an encoding will take: a few steps and a few items of the untrained model, in this process,
with one thread, as a worker on one core has. Several threads that wait for each other on a busy machine would say
nothing.

The median of a few steps, times the steps and pieces of the recipe; and what stands before the first step (features,
tokens) and encoding, times what a part leaves out. Validation is not counted, and starting Ray is not either.
"""

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rails_ray.cli.inspecting import sampling
from rails_ray.data.dataset import DataSet
from rails_ray.families.in_process import one_thread
from rails_ray.families.training_family import TrainingFamily, training_family
from rails_ray.storage.filesystem import Storage
from rails_ray.training.loop import train
from rails_ray.training.piece import Given

NUM_STEPS = 4  # the first, which warms up, does not count
NUM_ROWS = 10_000  # items, and queries of a split, of the part that is prepared; more than any recipe has buckets
NUM_ENCODED = 2_000  # items that are encoded
MOST_ROWS_OF_MODEL = 200_000  # items of a model that has a row for each of them
RUN = "timed"


@dataclass(frozen=True)
class Timed:
    """An estimate, of one worker with one thread.

    train_s: seconds of training, of all pieces one after the other, where `patience` does not end it before.
    step_s: seconds of a step of a piece.
    num_passes: how often training draws each training query, on average.
    encode_s: seconds to encode the corpus; None if items are looked up, which takes no model.
    load: processes that wanted a core in the last minute, this one included; above the cores, all takes longer.
    """

    train_s: float
    step_s: float
    num_steps: int
    num_pieces: int
    num_passes: float
    encode_s: float | None
    num_cores: int
    load: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def can_be_timed(own: TrainingFamily, read: DataSet) -> bool:
    """Return whether the model is small enough to be built here."""
    return not own.has_a_row_for_each_item or len(read.item_ids) <= MOST_ROWS_OF_MODEL


def timed(own: TrainingFamily, read: DataSet, clock: Callable[[], float] = time.monotonic) -> Timed:
    """Estimate what a recipe that trains would take on a data set."""
    own = training_family(own.completed(read))
    part = read if own.has_a_row_for_each_item else sampling.part(read, NUM_ROWS, NUM_ROWS)
    pieces = [(piece, piece.training) for piece in own.pieces() if piece.training is not None]
    first, training = pieces[0]
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder, one_thread():
        storage = Storage(folder)
        own.begin(part)(storage, RUN)
        started = clock()
        prepared = first.prepare(Given(read=part, storage=storage, run=RUN))
        prepare_s = clock() - started
        assert prepared.steps is not None
        ends = [clock()]
        train(
            prepared.steps.step,
            prepared.steps.batch_of,
            replace(training, num_steps=NUM_STEPS, validate_every=0),
            seed=prepared.steps.seed,
            report=lambda done, loss: ends.append(clock()),
        )
        item_s = _item_s(own, prepared.module, storage, part, clock) if own.encodes_inputs else None
    step_s = statistics.median(end - begin for begin, end in itertools.pairwise(ends[1:]))
    num_rows, num_part_rows = (len(one.item_ids) + len(one.queries["train"]) for one in (read, part))
    return Timed(
        train_s=len(pieces) * (prepare_s * num_rows / num_part_rows + training.num_steps * step_s),
        step_s=step_s,
        num_steps=training.num_steps,
        num_pieces=len(pieces),
        num_passes=training.num_steps * training.batch_size / len(read.queries["train"]),
        encode_s=None if item_s is None else item_s * len(read.item_ids),
        num_cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
    )


def _item_s(own: TrainingFamily, model: Any, storage: Storage, part: DataSet, clock: Callable[[], float]) -> float:
    """Seconds to encode an item."""
    few = part if own.has_a_row_for_each_item else sampling.part(part, NUM_ENCODED, 1)
    started = clock()
    own.run_items(storage, RUN, model.eval(), few)
    return (clock() - started) / len(few.item_ids)
