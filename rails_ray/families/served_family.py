"""The contract of a family where it is served: what its items become, and how they are searched.

The methods with a body suit every model that computes each item from its input; other families override them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import QueryForm
from rails_ray.data.sources import Sources
from rails_ray.families.config import RunConfig
from rails_ray.families.items import ByModel, Fit, Fitting, ItemEncoder
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.reranking.rankers import Candidate
from rails_ray.reranking.rankers.calling import check_ranker
from rails_ray.schema.ranker import RankerConfig
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.searcher import Searcher
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds

Read = Callable[[str], bytes]
NO_INDEXES: Mapping[str, VectorIndex] = MappingProxyType({})
Own = TypeVar("Own", bound="ServedFamily")


@dataclass(frozen=True)
class ServedFamily(ABC):
    """Contract of a served family: it encodes, stores and searches items, and reads queries.

    own: the family's part of the config.
    allowed: code that the config may name.
    """

    config: RunConfig
    own: Any
    allowed: AllowedCode = OURS_ALONE

    @classmethod
    def of(cls: type[Own], config: RunConfig, allowed: AllowedCode = OURS_ALONE) -> Own:
        """The family of a run that is known to be of this one."""
        return cls(config, config.family, allowed)

    @property
    @abstractmethod
    def item_state(self) -> type[AnyItems]:
        """The class of its items, as a version stores them."""

    @property
    @abstractmethod
    def form(self) -> QueryForm:
        """The form of the queries that its model reads."""

    @property
    @abstractmethod
    def cutoff_support(self) -> CutoffSupport:
        """Return what cut-offs may build on."""

    # Data

    @property
    def data_name(self) -> str:
        """The data set in messages."""
        return str(Sources(self.config.data.folder, self.config.data.places))

    @property
    def has_a_row_for_each_item(self) -> bool:
        """Return whether the model can only encode the items that it was trained on."""
        return False

    def with_items(self, item_ids: ItemIds) -> RunConfig:
        """The config, completed from these items if the model has a row for each item.

        Raises:
            ValueError: if a row of the model is another item there.
        """
        return self.config

    def check_code(self, has_ranker: bool = False) -> None:
        """Check that the code that the config names may be carried out: its heavy ranker, or more. Nothing is imported.

        Args:
            has_ranker: whether another heavy ranker takes the place of the config's.

        Raises:
            ValueError: if it may not.
        """
        if self.ranker.path and not has_ranker:
            check_ranker(self.ranker, self.allowed)

    # Heavy rankers

    @property
    def ranker(self) -> RankerConfig:
        """The heavy ranker that a run was made with; one without a path for none."""
        return RankerConfig()

    def supports(self, model: Model) -> Sequence[Candidate]:
        """Return what the heavy ranker must score for a query before the model can encode it; nothing, if the model
        reads the query itself."""
        return ()

    @property
    def has_one_vector(self) -> bool:
        """Return whether an item is stored as one vector, whose inner product with a query's is the score."""
        return False

    @abstractmethod
    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> Model:
        """A stored model, in evaluation mode.

        Args:
            weights: each file of the run's weights with its path.

        Raises:
            ValueError: if the weights do not fit such a model.
        """

    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> Any:
        """Load the similarity of a stored model, if possible without what encodes queries. Raises what
        `trained_model` does."""
        return self.trained_model(weights).similarity

    def version_similarity(self, trained: Any, read: Read) -> Any:
        """Load the similarity of a version.

        Args:
            trained: what `trained_similarity` gives.
            read: gives a file of the version, by its name.
        """
        return trained

    def as_scored(self, items: Any, read: Read) -> Any:
        """Stored items as the model's own similarity scores them."""
        return items

    def zero_rows(self, items: Any) -> Int[Tensor, " Z"]:
        """Rows of stored items that come last in every list, as they have no direction."""
        return torch.empty(0, dtype=torch.int64)

    @property
    def stores_directions(self) -> bool:
        """Return whether stored items tell which of them have no direction."""
        return True

    def model_facts(self, described: Encoded) -> dict[str, int]:
        """Return what every answer says about a version's model, beside how much of the corpus was searched."""
        return {}

    # Items: fit, then map

    @property
    def encodes_inputs(self) -> bool:
        """Return whether an item's state is computed from its input. That takes the model, and a GPU if there is
        one."""
        return True

    def fit(self, fitting: Fitting) -> Fit:
        """Decide what the map of items needs beside the model.

        Raises:
            ValueError: if it cannot be made as asked.
        """
        fitting.need_least_loaded(self.config.name)
        return Fit()

    def item_encoder(
        self, storage: Storage, folder: str, weights: Iterable[tuple[str, bytes]], device: str
    ) -> ItemEncoder:
        """Make the map from items to their states, once what `fit` decided is stored.

        Args:
            folder: the version's folder.
            weights: the run's weights, read only if they are needed.
        """
        return ByModel(self.trained_model(weights).to(device))

    def added_encoder(
        self, storage: Storage, described: Encoded, item_ids: Sequence[ItemId], encoder: Callable[[], ItemEncoder]
    ) -> ItemEncoder:
        """The map of items that are added to a version.

        Args:
            item_ids: of all items to add.
            encoder: gives the version's `item_encoder`.
        """
        return encoder()

    def run_items(self, storage: Storage, run: str, model: Model, data: DataSet) -> AnyItems:
        """All items of a data set as the model of a run has them."""
        return ByModel(model)(data.item_ids, data.item_inputs)

    def stored_as(self, **fields: Any) -> RunConfig:
        """The config of a version that stores its items otherwise than the run says: by `items` or `codes`,
        `keep_vectors`, `code_lists`, `surrogate`, `dtype`, `index`, `index_of`, `keep_texts`.

        Raises:
            ValueError: if its items cannot be stored so.
        """
        if fields:
            name, value = next(iter(fields.items()))
            raise ValueError(f"{name} must be left out for run {self.config.name}, which has no choice, got {value}")
        return self.config

    @property
    def keeps_texts(self) -> bool:
        """Return whether a version keeps its items' texts, for heavy rankers."""
        return False

    @property
    def storing(self) -> str:
        """How a version stores its items, as far as the config decides it: other bytes for another text."""
        return ""

    @property
    def index_config(self) -> IndexConfig | None:
        """Return the config of the index that encoding builds; None if it builds none."""
        return None

    @property
    def index_names(self) -> Sequence[str]:
        """The names of the indexes of a shard."""
        return ()

    def indexed(self, items: Any, name: str) -> Tensor:
        """The vectors of items that an index of this name holds [X, d]."""
        raise KeyError(name)

    @abstractmethod
    def searcher(self, similarity: Any, items: Any, indexes: Mapping[str, VectorIndex] = NO_INDEXES) -> Searcher[Any]:
        """Loaded items, ready to be searched.

        Args:
            indexes: the shard's indexes by name, if any were built.

        Raises:
            ValueError: if the similarity cannot compare such items.
        """
