"""Advice on a mixture: what a dot product of as many numbers finds after a tenth of its steps.

Both models are trained anew for that share of the steps, on the same batches, negatives and seed, each with its whole
schedule of learning rates, so that neither is cut off: a finished mixture would be ahead of a dot product of a tenth of
its steps by those steps alone. Few steps favour the dot product, which learns faster (docs/training.md): a gain beyond
noise tells, and its absence does not.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.counting import advance
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.families.in_process import one_thread
from rails_ray.families.training_family import TrainingFamily, training_family
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.bootstrap import difference
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.loop import train
from rails_ray.training.piece import Given

SHARE, MOST_STEPS = 0.1, 200  # of the steps of a run, and not more
MOST_QUERIES = 5_000  # validation queries: a hit rate then has a standard error of 0.007 at most
K = 10
FEW = "few steps favour a dot product: train both to know more"
NOISE = 0.05  # p above which a difference may be noise
RUN = "compared"  # no run has this name: the models are not stored


@dataclass(frozen=True)
class MixtureComparison:
    """A mixture and a dot product of as many numbers, on the validation queries.

    num_steps: steps of each, in place of the `all_steps` of the run.
    num_numbers: numbers of an item, which an index holds.
    mixture, dot_product: hit rates among the first K.
    p: share of resamples of the queries in which the mixture is not ahead.
    p_dot_product: share in which the dot product is not ahead.
    """

    num_steps: int
    all_steps: int
    num_numbers: int
    num_queries: int
    mixture: float
    dot_product: float
    p: float
    p_dot_product: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        """Both hit rates and whether their difference is beyond noise, in one line."""
        if self.p < NOISE:
            verdict = f"the mixture's gain is beyond noise (p = {self.p:.2g})"
        elif self.p_dot_product < NOISE:
            verdict = f"the dot product is ahead beyond noise (p = {self.p_dot_product:.2g}); {FEW}"
        else:
            verdict = f"the difference is within noise (p = {self.p:.2g}); {FEW}"
        return (
            f"mixture or dot product: after {self.num_steps:,} of {self.all_steps:,} steps each, HR@{K} on "
            f"{self.num_queries:,} validation queries is {self.mixture:.4f} for the mixture and "
            f"{self.dot_product:.4f} for the dot product, both with {self.num_numbers:,} numbers an item; {verdict}"
        )


def compare(own: TrainingFamily, read: DataSet, storage: Storage) -> MixtureComparison | None:
    """Train a mixture and a dot product of as many numbers, with one thread. None if the run has no mixture, or no
    query to validate on.

    Args:
        own: of a config that is completed from the data.
        storage: keeps what a frozen model returns for texts; nothing else is written.
    """
    other, queries = own.as_dot_product(), read.queries["valid"]
    if other is None or not len(queries):
        return None
    queries = queries.take(np.unique(np.linspace(0, len(queries) - 1, MOST_QUERIES).astype(np.int64)))
    read = replace(read, queries={**read.queries, "valid": queries})
    as_many: Any = other.family
    all_steps = own.config.training.num_steps
    num_steps = min(max(int(SHARE * all_steps), 1), MOST_STEPS)
    training = replace(own.config.training, num_steps=num_steps, validate_every=0)
    mixture, dot_product = (
        _hits(training_family(replace(config, training=training), own.allowed), read, storage, what)
        for config, what in ((own.config, "steps of a mixture"), (other, "steps of a dot product"))
    )
    return MixtureComparison(
        num_steps=num_steps,
        all_steps=all_steps,
        num_numbers=as_many.numbers_of_item,
        num_queries=len(queries),
        mixture=float(mixture.mean()),
        dot_product=float(dot_product.mean()),
        p=difference(mixture, dot_product).p,
        p_dot_product=difference(dot_product, mixture).p,
    )


def _hits(family: TrainingFamily, read: DataSet, storage: Storage, what: str) -> NDArray[np.float64]:
    """Train a model of one piece, and find which validation queries have a relevant item among the first K [Q]."""
    [piece] = family.pieces()
    training = piece.training
    assert training is not None
    with one_thread():
        prepared = piece.prepare(Given(read=read, storage=storage, run=RUN))
        assert prepared.steps is not None
        steps = prepared.steps
        train(
            steps.step,
            steps.batch_of,
            training,
            seed=steps.seed,
            rates=steps.rates,
            report=lambda done, loss: advance(done, training.num_steps, what),
        )
        model: Any = prepared.module
        items = encode_items(model, model.item_features(read.item_inputs))
        return (rank_all(model, items, read.queries["valid"], 1).best_rank <= K).astype(np.float64)
