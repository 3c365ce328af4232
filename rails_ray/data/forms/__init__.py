"""Forms of queries: one way to ask each, from the tables of a data set to the field of a request.

| member          | a query is                            | a request's fields   | a folder's tables         |
|-----------------|---------------------------------------|----------------------|---------------------------|
| `text`          | a text                                | `text`               | items, queries, relevance |
| `vector`        | a vector                              | `embedding`          | items, queries, relevance |
| `named_vectors` | several vectors by name               | `embeddings`         | items, queries, relevance |
| `features`      | numbers of features with a value each | `features`           | items, queries, relevance |
| `history`       | items in time order                   | `history`, `user_id` | items, interactions       |
| `scored_text`   | a text that a heavy ranker has scored | `text`               | those of `text`, scores   |

`numbers` reads the tables of `vector` and `features`, and the items of `named_vectors`.

A query of any form may also be given by its representation, as field `embedding`, if the model takes one. If queries
are vectors, that field is the query itself.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms.features import FeaturesForm
from rails_ray.data.forms.history import HistoryForm
from rails_ray.data.forms.named_vectors import NamedVectorsForm
from rails_ray.data.forms.scored_text import ScoredTextForm
from rails_ray.data.forms.text import TextForm
from rails_ray.data.forms.vector import VectorForm
from rails_ray.data.packaged import Packaged
from rails_ray.data.queries import SPLITS, Inputs
from rails_ray.data.sources import Sources
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model


@runtime_checkable
class QueryReader(Protocol):
    """Reads what requests ask of one version."""

    def read(self, query: dict[str, Any], where: str) -> Any:
        """A query as the model reads it.

        Args:
            query: the request's fields by name; one field of the form is given.
            where: the query's place in the request, for messages.

        Raises:
            ValueError: if the model cannot read it.
        """

    def seen(self, read: Any) -> list[ItemId]:
        """The items that a query itself holds, which its answer need not hold."""

    def batch(self, read: list[Any]) -> Any:
        """Queries that were read, as the model's `query_features` takes them."""

    def batch_of(self, vectors: NDArray[np.float32]) -> Inputs | None:
        """Queries that are vectors [B, D], as inputs of the model; None if it reads no vectors, or not all of these."""

    def example(self) -> dict[str, Any]:
        """A query that the model can read, to see that it does."""


@runtime_checkable
class QueryForm(Protocol):
    @property
    def fields(self) -> tuple[str, ...]:
        """The request fields for such a query, of those in `schema.queries`; one of them gives it."""

    @property
    def tables(self) -> str:
        """The names of its tables, in words."""

    @property
    def packaged(self) -> Packaged | None:
        """The data set that comes with the package; None if there is none."""

    def read(self, sources: Sources, needed: Collection[str] = SPLITS) -> DataSet:
        """Read and check the tables of a data set.

        Args:
            needed: splits that must have a query. If there are none, the tables of queries and relevance may be
                missing, and then no split has a query.

        Raises:
            NotFoundError: if a table is not there.
            ValueError: if a table is not as the contract says; the message names file, column and row.
        """

    def corpus(self, sources: Sources) -> Corpus:
        """The items to encode, and what answers need beside them. Raises what `read` does, as far as it reads."""

    def reader(self, model: Model, read_file: Callable[[str], bytes]) -> QueryReader:
        """Make the reader of a version's requests.

        Args:
            read_file: reads a file of the version, one of `Corpus.files`, by its name.
        """


@runtime_checkable
class NamedItems(Protocol):
    """A form whose items are several vectors by name."""

    def item(self, vectors: Mapping[str, Sequence[float]], where: str) -> list[float]:
        """The vectors of an item of a request, one after the other, as the model reads them.

        Args:
            where: the item's place in the request, for messages.

        Raises:
            ValueError: if a name is unknown, or a vector has another width.
        """


FORMS: dict[str, QueryForm] = {
    "text": TextForm(),
    "vector": VectorForm(),
    "named_vectors": NamedVectorsForm(),
    "features": FeaturesForm(),
    "history": HistoryForm(),
    "scored_text": ScoredTextForm(),
}


def vectors_of_items(columns: tuple[str, ...], shape: tuple[int, ...]) -> QueryForm:
    """The form `vector` for a model that reads vectors of items too.

    Args:
        columns: the columns that have them.
        shape: number and width of an item's vectors; empty for the data's.
    """
    return VectorForm(columns, shape)


def several_vectors(
    columns: tuple[tuple[str, ...], tuple[str, ...]], widths: tuple[tuple[int, ...], tuple[int, ...]]
) -> QueryForm:
    """The form `named_vectors` for a model.

    Args:
        columns: those of queries, and those of items.
        widths: numbers of their vectors; empty for the data's.
    """
    return NamedVectorsForm(*columns, *widths)
