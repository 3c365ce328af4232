"""The contract of a family where it is trained: what a run reads, what it trains, and how that is validated."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import check_unweighted
from rails_ray.families.config import RunConfig
from rails_ray.families.registry import member
from rails_ray.families.served_family import ServedFamily
from rails_ray.modules.model import Model
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.report import Report, validate
from rails_ray.training.piece import Piece


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that say before any training whether a run suits a data set.

    num_buckets: buckets that its items are shared out to; None if items have no codes.
    max_length: tokens of a text, or items of a history, that it reads; None if it reads all.
    similarity: kind of the similarity of components; None if items are compared otherwise.
    """

    num_buckets: int | None = None
    max_length: int | None = None
    similarity: str | None = None


class TrainingFamily(ServedFamily):
    """Contract of a family that trains: it trains a run, and serves its model."""

    @property
    def sizes(self) -> Sizes:
        """Return the sizes that say whether it suits a data set."""
        return Sizes()

    def completed(self, read: DataSet) -> RunConfig:
        """The config, completed from its data set, so that it says everything by itself.

        Raises:
            ValueError: if it was completed from other data, or names sizes that these data do not have.
        """
        return self.with_items(read.item_ids)

    def check_can_be_asked(self, read: DataSet) -> None:
        """Check that the model of a trained run can be asked about a data set.

        Raises:
            ValueError: if a row of the model is another item there, or queries are not what it reads.
        """
        self.completed(read)

    def as_dot_product(self) -> RunConfig | None:
        """Return a config that has a dot product in place of the mixture, with as many stored numbers of an item; None
        if there is no mixture."""
        return None

    @abstractmethod
    def pieces(self) -> Sequence[Piece]:
        """List what a run trains; a piece stands behind the pieces that it comes after."""

    @property
    def trains(self) -> bool:
        """Return whether any piece takes steps; if none does, a run can do without queries."""
        return any(piece.training is not None for piece in self.pieces())

    @property
    def weighs(self) -> bool:
        """Return whether its losses weigh training pairs."""
        return False

    def check_weights(self, read: DataSet) -> None:
        """Check the weights of training pairs.

        Raises:
            ValueError: if it trains and cannot weigh pairs, or all of them weigh 0.
        """
        weights = read.queries["train"].weights
        if not self.trains or weights is None:
            return
        if not self.weighs:
            check_unweighted(read.queries["train"], self.config.name)
        if not weights.any():
            raise ValueError(f"column 'weight' of {self.data_name} must hold a weight above 0 to train on, got none")

    def check_can_be_found(self, read: DataSet) -> None:
        """Check that answers can hold what held-out queries ask for.

        Raises:
            ValueError: if it trains, and no answer may hold any item that split valid or test asks for.
        """
        for split in ("valid", "test") if self.trains else ():
            queries = read.queries[split]
            num_relevant = len(queries.relevant.rows)
            if queries.excluded is not None and num_relevant and queries.num_seen_relevant == num_relevant:
                raise ValueError(
                    f"split {split} must have a relevant item that is not in its query's history, got "
                    f"{num_relevant:,}, all in it: add --no-exclude-seen, so that answers may hold items of the "
                    "history"
                )

    def remarks(self, read: DataSet) -> list[str]:
        """Return remarks on these data, a sentence each."""
        return []

    def begin(self, read: DataSet) -> Callable[[Storage, str], None]:
        """Decide what a run fixes before it trains. The result is a function that stores it in the run's folder, once.

        Raises:
            ValueError: if a run of this config cannot be trained on these data.
        """
        return lambda storage, run: None

    def validation(self, storage: Storage, run: str, model: Model, read: DataSet) -> Report:
        """The report on the validation queries of a run's model, all pieces together; cut off by mass if the run
        trains tau_q."""
        distribution = self.cutoff_support.distribution() if self.cutoff_support.has_trained_temperature else None
        items = partial(self.run_items, storage, run, model, read)
        return validate(model, items, read.queries["valid"], distribution)


def training_family(config: RunConfig, allowed: AllowedCode = OURS_ALONE) -> TrainingFamily:
    """The family of a run, to train it. Arguments as of `served_family`."""
    family: TrainingFamily = member(config, "train").of(config, allowed)
    return family
