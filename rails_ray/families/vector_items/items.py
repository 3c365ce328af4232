"""Items that are vectors: how they are encoded, stored, indexed and searched."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rails_ray.data.corpus import ItemSource
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import Queries
from rails_ray.errors import ConflictError
from rails_ray.families.config import RunConfig
from rails_ray.families.items import ByModel, Fit, Fitting, ItemEncoder
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.served_family import NO_INDEXES, Read
from rails_ray.families.vector_items import quantized, surrogate_file
from rails_ray.families.vector_items.storing import PqItems
from rails_ray.families.vector_items.surrogates import WithVectors, check_supports, fitted_surrogate
from rails_ray.families.vector_items.trained_codes import (
    QUANTIZER,
    read_back,
    read_quantizer,
    trained_quantizer,
)
from rails_ray.modules.model import Model
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity, longest_of
from rails_ray.modules.similarities.dot_product import DotProduct
from rails_ray.modules.similarities.mol import MixtureOfLogits
from rails_ray.modules.similarities.states import AnyItems, ItemState, QuantizedItems
from rails_ray.reranking.surrogate import SurrogateConfig, WithSurrogate
from rails_ray.search.candidates import AVERAGE, SURROGATE, component_name, vectors_of
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.searcher import ByComponents
from rails_ray.search.zeros import zero_rows
from rails_ray.storage import quantizers, runs
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet_files import FileRows
from rails_ray.storage.runs import Run

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class VectorItems(ABC):
    """The part of a `ServedFamily` that is asked about items which are vectors.

    own: this family's part of the config.
    """

    config: RunConfig
    own: Any  # a `DualEncoderConfig`, or a config with its `items`, `index`, `index_of` and `trained_quantizer`

    @abstractmethod
    def similarity(self) -> MixtureOfLogits | DotProduct:
        """Make the similarity, untrained."""

    @abstractmethod
    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> Model:
        """The contract of `ServedFamily`."""

    @abstractmethod
    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> MixtureOfLogits | DotProduct:
        """The contract of `ServedFamily`."""

    @property
    def finds_zeros_last(self) -> bool:
        """The contract of the family's `Model`."""
        return False

    def encoded_by(self, model: Model) -> ItemEncoder:
        """Make the map from items to their components."""
        return ByModel(model)

    @property
    def item_state(self) -> type[AnyItems]:
        """Components, or codes of them."""
        return QuantizedItems if isinstance(self.own.items, PqItems) else ItemState

    @property
    def surrogate(self) -> SurrogateConfig:
        """Return the config of the vectors that find candidates beside the components."""
        return SurrogateConfig()

    def fit(self, fitting: Fitting) -> Fit:
        fitting.need_least_loaded(self.config.name)
        if self.surrogate.kind != "none":
            return self._fit_surrogate(fitting)
        if not isinstance(self.own.items, PqItems):
            return Fit()
        quantized.check(self.own.items, sum(file.num_rows for file in fitting.files))
        return made_once(
            fitting, quantizers.NAME, quantizers.from_bytes, self.fitted_quantizer, fitting.corpus.items, fitting.files
        )

    def _fit_surrogate(self, fitting: Fitting) -> Fit:
        source, files = fitting.corpus.items, fitting.files
        check_supports(self.surrogate, sum(file.num_rows for file in files))
        return made_once(
            fitting,
            surrogate_file.NAME,
            surrogate_file.from_bytes,
            self.fitted_surrogate,
            source,
            files,
            fitting.training_queries,
        )

    def fitted_surrogate(
        self,
        root: str,
        run: Run,
        source: ItemSource,
        files: Sequence[FileRows],
        training_queries: Callable[[], Queries],
    ) -> bytes:
        """The file of a surrogate, fitted to a sample of the items and of the training queries."""
        model = with_kept_texts(self.trained_model(runs.weights(Storage(root), run)), Storage(root))
        encode, seed = self.encoded_by(model), self.config.seed
        return fitted_surrogate(self.surrogate, model, encode, training_queries(), source, files, seed)

    def fitted_quantizer(self, root: str, run: Run, source: ItemSource, files: Sequence[FileRows]) -> bytes:
        """The file of a quantizer: the run's trained one, or one fitted to a sample of the items that the run's model
        encodes."""
        assert isinstance(self.own.items, PqItems)
        weights = dict(runs.weights(Storage(root), run))
        encode = self.encoded_by(with_kept_texts(self.trained_model(weights.items()), Storage(root)))
        sample = quantized.sampled_components(source, files, encode)
        trained = None
        if self.own.trained_quantizer is not None:
            trained = trained_quantizer(self.own.items, weights[f"{QUANTIZER}/{WEIGHTS}"], *sample.shape[1:])
        return quantized.fitted(self.own.items, sample, self.config.seed, trained)

    def item_encoder(
        self, storage: Storage, folder: str, weights: Iterable[tuple[str, bytes]], device: str
    ) -> ItemEncoder:
        model = with_kept_texts(self.trained_model(weights).to(device), storage)
        components = self.encoded_by(model)
        if self.surrogate.kind != "none":
            made = surrogate_file.from_bytes(storage.read(f"{folder}/{surrogate_file.NAME}")).to(device)
            components = WithVectors(components, model.similarity.prepared(), made)
        encode = Narrowed(components, DTYPES[self.own.items.dtype])
        if not isinstance(self.own.items, PqItems):
            return encode
        stored = quantizers.from_bytes(storage.read(f"{folder}/{quantizers.NAME}"))
        needs_directions = self.finds_zeros_last and not self.stores_directions
        return quantized.Coded(encode, self.own.items, *stored, needs_directions)

    def run_items(self, storage: Storage, run: str, model: Model, data: DataSet) -> AnyItems:
        """All items as the run's model has them, or as the codebooks that the run has trained read them back."""
        items = self.encoded_by(with_kept_texts(model, storage))(data.item_ids, data.item_inputs)
        if self.own.trained_quantizer is None:
            return items
        assert isinstance(items, ItemState)
        return read_back(read_quantizer(storage, run, self.own.items, items), items)

    def stored_as(self, **fields: Any) -> RunConfig:
        items = fields.pop("items", self.own.items)
        if "codes" in fields:
            items = self._as_codes(*fields.pop("codes"))
        for option, name in (("keep_vectors", "has_vectors"), ("code_lists", "nlist")):
            if option in fields:
                value = fields.pop(option)
                if not isinstance(items, PqItems):
                    raise ValueError(f"{option} must be given with codes, got none: add --codes, such as 8x256")
                items = replace(items, **{name: value})
        if "keep_texts" in fields:
            fields["has_texts"] = fields.pop("keep_texts")
        if "surrogate" in fields:
            surrogate = self._as_surrogate(fields.pop("surrogate"))
            if surrogate != self.surrogate:
                fields["surrogate"] = surrogate
        if "dtype" in fields:
            items = replace(items, dtype=fields.pop("dtype"))
        made = self.config.with_family(items=items, **fields)
        if "index_of" in fields and fields.get("index", self.own.index) == FlatConfig():
            raise ValueError(
                "index_of must be given with an index, got flat in fp32, which scans the items as they are: take "
                "--index ivf or hnsw, or leave --index-of out"
            )
        return made

    def _as_surrogate(self, fields: Mapping[str, Any]) -> SurrogateConfig:
        """The run's surrogate with these fields."""
        if fields.get("kind") != "none" and self.similarity().num_components == (1, 1):
            raise ValueError(
                f"surrogate must stand for a mixture of several components, got run {self.config.name}, whose score is "
                "an inner product of the vectors as they are"
            )
        return replace(self.surrogate, **fields)

    def _as_codes(self, num_subspaces: int, num_codewords: int) -> PqItems:
        """Codes by OPQ, in place of how the run stores its items."""
        if self.own.trained_quantizer is not None:
            raise ValueError(
                f"codes must be left out for run {self.config.name}, whose own codebooks are trained, got "
                f"{num_subspaces}x{num_codewords}"
            )
        return PqItems(num_subspaces=num_subspaces, num_codewords=num_codewords, dtype=self.own.items.dtype)

    @property
    def has_one_vector(self) -> bool:
        return self.similarity().num_components == (1, 1) and not isinstance(self.own.items, PqItems)

    @property
    def keeps_texts(self) -> bool:
        has_texts: bool = self.own.has_texts
        return has_texts

    @property
    def storing(self) -> str:
        texts = ", with texts" if self.keeps_texts else ""
        surrogate = "" if self.surrogate.kind == "none" else f", {self.surrogate}"
        return f"{self.own.items}, {self.own.index} of {self.own.index_of}{texts}{surrogate}"

    @property
    def index_config(self) -> IndexConfig | None:
        """None for a flat index of the items as they are stored: a scan needs no other."""
        return None if self.own.index == FlatConfig() else self.own.index

    @property
    def index_names(self) -> list[str]:
        if self.index_config is None:
            return []
        _, num_item_components = self.similarity().num_components
        of_components = [component_name(number) for number in range(num_item_components)]
        beside = [] if self.surrogate.kind == "none" else [SURROGATE]
        if num_item_components == 1 or self.own.index_of == "average":
            return [AVERAGE, *beside]
        return [*([] if self.own.index_of == "components" else [AVERAGE]), *of_components, *beside]

    def zero_rows(self, items: Any) -> Int[Tensor, " Z"]:
        if not self.finds_zeros_last or items.components is None:
            return torch.empty(0, dtype=torch.int64)
        return zero_rows(items.components)

    @property
    def stores_directions(self) -> bool:
        return not isinstance(self.own.items, PqItems) or self.own.items.has_vectors

    def indexed(self, items: Any, name: str) -> Tensor:
        if isinstance(items, QuantizedItems):
            assert items.components is not None  # an index of vectors needs them beside the codes
            items = ItemState(items.components, items.gate, items.average)
        return vectors_of(items, name)

    def searcher(
        self, similarity: Any, items: Any, indexes: Mapping[str, VectorIndex] = NO_INDEXES
    ) -> ByComponents | ByQuantized:
        if isinstance(similarity, QuantizedSimilarity):
            return ByQuantized(similarity, items, indexes)
        if isinstance(similarity, WithSurrogate):
            return ByComponents(similarity.similarity, items, indexes, similarity.prepared().queries)
        return ByComponents(similarity, items, indexes)

    def version_similarity(self, trained: Any, read: Read) -> Any:
        if self.surrogate.kind != "none":
            return WithSurrogate(trained, surrogate_file.from_bytes(read(surrogate_file.NAME)))
        if not isinstance(self.own.items, PqItems):
            return trained
        return QuantizedSimilarity(trained, *quantizers.from_bytes(read(quantizers.NAME)))

    def as_scored(self, items: Any, read: Read) -> Any:
        if not isinstance(self.own.items, PqItems):
            return items
        quantizer, _ = quantizers.from_bytes(read(quantizers.NAME))
        return quantized.read_back(items, quantizer, longest_of(self.similarity()))


def made_once(
    fitting: Fitting, name: str, check: Callable[[bytes], Any], make: Callable[..., bytes], *arguments: Any
) -> Fit:
    """A file of the version that `make` gives, in a task, unless it is there: of two that make one, the first stays.

    Args:
        check: reads it, and raises if it is damaged.
        make: called with the storage's root, the run and `arguments`.
    """
    path = f"{fitting.folder}/{name}"

    def store() -> None:
        if not fitting.storage.exists(path):
            data = fitting.remotely(make, str(fitting.storage), fitting.run, *arguments)
            with suppress(ConflictError):
                fitting.storage.create(path, data)

    def files() -> dict[str, bytes]:
        data = fitting.storage.read(path)
        check(data)
        return {name: data}

    return Fit(store=store, files=files)


@dataclass(frozen=True)
class Narrowed:
    """The contract of `ItemEncoder`: states with their vectors in another dtype."""

    encode: ItemEncoder
    dtype: torch.dtype

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        state = self.encode(item_ids, inputs)
        assert isinstance(state, ItemState)
        names = ("components", "average", "surrogate")
        columns = {name: getattr(state, name) for name in names}
        return replace(state, **{name: there.to(self.dtype) for name, there in columns.items() if there is not None})
