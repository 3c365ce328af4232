"""Training of BM25: its words are counted."""

from dataclasses import dataclass
from typing import Any

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.families.bm25.serve import Bm25Family
from rails_ray.families.training_family import TrainingFamily
from rails_ray.training.loop import Progress
from rails_ray.training.piece import Given, Prepared


@dataclass(frozen=True)
class Bm25Training(Bm25Family, TrainingFamily):
    """The contract of `TrainingFamily`."""

    def pieces(self) -> list["Bm25Piece"]:
        return [Bm25Piece(self)]


@dataclass(frozen=True)
class Bm25Piece:
    """The contract of `Piece`: the words of all items are counted at once, and there is no step to take."""

    family: Bm25Training
    name: str = ""
    after: tuple[str, ...] = ()
    shares_gradient: bool = False
    training: None = None

    def check_workers(self, num_workers: int) -> None:
        """One worker counts, however many there are."""

    def prepare(self, given: Given) -> Prepared:
        model, read = self.family.model(), given.read
        model.fit(_texts(read))

        def report(progress: Progress) -> dict[str, Any]:
            return self.family.validation(given.storage, given.run, model, read).to_dict()

        return Prepared(module=model, report=report, steps=None)


def _texts(read: DataSet) -> Texts:
    assert isinstance(read.item_inputs, Texts)
    return read.item_inputs


FAMILY = Bm25Training
