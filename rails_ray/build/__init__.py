"""Config -> objects: the only place that chooses an implementation.

| module         | what it builds                                                                   |
|----------------|----------------------------------------------------------------------------------|
| `dual_encoder` | models, samplers and training steps of a dual encoder, which is one piece        |
| `solar`        | SOLAR's chunks, each a piece, and the codes of items                             |
| `data`         | what a run reads: its data set and its corpus                                    |
| `items`        | what its items become: an artefact that is made once, then a map of each block   |
| `search`       | how items are searched                                                           |
| `version`      | what a stored version is made of                                                 |

`family` is the one match on what a run trains. All else asks the `Family` that it gives.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, assert_never, runtime_checkable

from rails_ray.build.dual_encoder import DualEncoderFamily
from rails_ray.build.items import Fitting, ItemEncoder
from rails_ray.build.solar import SolarFamily
from rails_ray.config import RunConfig
from rails_ray.config.dual_encoder import DualEncoderConfig
from rails_ray.config.solar import SolarConfig
from rails_ray.cutoffs.offers import Offers
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import QueryForm
from rails_ray.evaluation.report import Report
from rails_ray.models import Model
from rails_ray.similarities.states import AnyItems
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Encoded
from rails_ray.training.piece import Piece


@runtime_checkable
class Family(Protocol):
    """A run as everything above asks it, whatever it trains."""

    @property
    def config(self) -> RunConfig:
        """Of the run."""

    @property
    def form(self) -> QueryForm:
        """Of the queries that its model reads."""

    @property
    def offers(self) -> Offers:
        """What cut-offs may build on."""

    def completed(self, read: DataSet) -> RunConfig:
        """The config with what it leaves to its data set filled in, so that it says all by itself.

        Raises:
            ValueError: if it was completed from other data, or names other sizes than theirs.
        """

    def check_can_be_asked(self, read: DataSet) -> None:
        """Whether the model of a trained run can be asked about a data set.

        Raises:
            ValueError: if a row of the model is another item there, or queries are not what it reads.
        """

    def check_items(self, item_ids: list[str] | list[int]) -> None:
        """Whether the model of a trained run can encode items.

        Raises:
            ValueError: if a row of the model is another item there.
        """

    @property
    def encodes_inputs(self) -> bool:
        """Whether an item's state is computed from its input, which takes the model, and a GPU where there is one."""

    def fitting_facts(self, asked: Fitting) -> dict[str, str]:
        """What decides the artefact beside run and items.

        Raises:
            ValueError: if it cannot be made as asked.
        """

    def fit(self, asked: Fitting) -> None:
        """Make what the map of items needs beside the model, and leave it in the version's folder; nothing is done
        where it is there already, or nothing is needed."""

    def item_encoder(
        self, storage: Storage, folder: str, weights: Iterable[tuple[str, bytes]], device: str
    ) -> ItemEncoder:
        """What maps items to their states, once `fit` has ended.

        Args:
            folder: of the version.
            weights: of the run, read only if they are needed.
        """

    def run_items(self, storage: Storage, run: str, model: Model, data: DataSet) -> AnyItems:
        """All items of a data set as the model of a run has them."""

    def pieces(self) -> Sequence[Piece]:
        """What a run trains, each on its own; those that others come after stand before them."""

    def begin(self, read: DataSet) -> Callable[[Storage, str], None]:
        """Decide what a run fixes before it trains; the result leaves that in the folder of a run, once.

        Raises:
            ValueError: if a run of this config cannot be trained on these data.
        """

    def validation(self, storage: Storage, run: str, model: Model, read: DataSet) -> Report:
        """What the trained model of a run comes to on the validation queries, all pieces together."""

    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> Any:
        """What scores the items of a stored model, without what encodes queries if it can be had so; raises what
        `trained_model` does."""

    def model_facts(self, described: Encoded) -> dict[str, int]:
        """What every answer says of a version's model, beside how much of the corpus was searched."""

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> Model:
        """A stored model, in evaluation mode.

        Args:
            weights: each file of the run's weights with its path.

        Raises:
            ValueError: if the weights are not those of such a model.
        """


def family(config: RunConfig) -> Family:
    """What a run is."""
    match config.family:
        case DualEncoderConfig():
            return DualEncoderFamily(config, config.family)
        case SolarConfig():
            return SolarFamily(config, config.family)
        case _:
            assert_never(config.family)
