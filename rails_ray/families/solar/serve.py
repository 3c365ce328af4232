"""SOLAR: the codes of its items, and what searches them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import FORMS, QueryForm
from rails_ray.families.items import Fit, Fitting, ItemEncoder
from rails_ray.families.served_family import NO_INDEXES, ServedFamily
from rails_ray.families.solar.config import SolarConfig
from rails_ray.families.solar.model import CodedItems, Predicted, Solar, predicted_buckets
from rails_ray.item_ids import ItemId
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.solar import Chunk, chunk_seed
from rails_ray.modules.model import Model
from rails_ray.modules.quantizers import random_codes
from rails_ray.modules.quantizers.item_codes import ItemCodes
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import AnyItems, Codes
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.searcher import ByCodes
from rails_ray.storage import codes, runs, versions
from rails_ray.storage.described import Encoded, Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.runs import Run


@dataclass(frozen=True)
class ByCode:
    """The contract of `ItemEncoder`: the model looks items up, for which it needs no weights."""

    codes: ItemCodes

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        return Solar.encode_items(CodedItems(item_ids, self.codes))


@dataclass(frozen=True)
class SolarFamily(ServedFamily):
    """The contract of `ServedFamily`."""

    own: SolarConfig
    item_state = Codes

    @property
    def form(self) -> QueryForm:
        return FORMS[self.own.encoder.input]

    @property
    def cutoff_support(self) -> CutoffSupport:
        is_bounded = self.own.similarity.values == "probability"
        return CutoffSupport(trained_by=self.own.loss.kind, has_bounded_scores=is_bounded)

    @property
    def encodes_inputs(self) -> bool:
        """Never: items' codes are looked up."""
        return False

    def fit(self, fitting: Fitting) -> Fit:
        """A version's codes are chosen when its encoding first begins."""
        if not fitting.corpus.has_texts:
            fitting.need_least_loaded(self.config.name)

        def store() -> None:
            if not codes.exist(fitting.storage, fitting.folder):
                codes.write(fitting.storage, fitting.folder, self._chosen(fitting))

        return Fit({"new_codes": fitting.new_codes}, store)

    def _chosen(self, fitting: Fitting) -> ItemCodes:
        """Each item's code: the run's, or else the current version's, or else a new one."""
        known = codes.read(fitting.storage, f"runs/{fitting.run.name}")
        current = versions.current(fitting.storage)
        if current is not None and _is_of(current, fitting.run):
            known = known.or_else(codes.of_version(fitting.storage, current))
        items = fitting.corpus.items.read()
        own, is_new = self.codes_of(known, list(ItemIds(items["item_id"])))
        if fitting.new_codes == "least_loaded" or not is_new.any():
            return own
        texts = list(Texts(items["input"]).take(np.flatnonzero(is_new)))
        predicted = fitting.remotely(self.predicted, str(fitting.storage), fitting.run, texts)
        return self.with_predicted(own, np.flatnonzero(is_new)[predicted.is_known], predicted)

    def predicted(self, storage: str, run: Run, texts: list[str]) -> Predicted:
        """Predict buckets for the texts of items by the model of a run."""
        return predicted_buckets(self.trained_model(runs.weights(Storage(storage), run)), texts)

    def item_encoder(
        self, storage: Storage, folder: str, weights: Iterable[tuple[str, bytes]], device: str
    ) -> ItemEncoder:
        return ByCode(codes.read(storage, folder))

    def added_encoder(
        self, storage: Storage, described: Encoded, item_ids: Sequence[ItemId], encoder: Callable[[], ItemEncoder]
    ) -> ItemEncoder:
        """Items that are there keep their codes; new ones get the buckets with the fewest items."""
        known = codes.of_version(storage, described)
        own, _ = self.codes_of(known, list(dict.fromkeys([*known.item_ids, *item_ids])))
        return ByCode(own)

    def run_items(self, storage: Storage, run: str, model: Model, data: DataSet) -> AnyItems:
        item_ids = list(data.item_ids)
        own, _ = self.codes_of(codes.read(storage, f"runs/{run}"), item_ids)
        return ByCode(own)(item_ids, None)

    def model_facts(self, described: Encoded) -> dict[str, int]:
        """How many chunks the model has and should have."""
        return {"chunks_trained": len(described.weights), "num_chunks": self.own.encoder.num_chunks}

    def searcher(self, similarity: LookUp, items: Any, indexes: Mapping[str, VectorIndex] = NO_INDEXES) -> ByCodes:
        return ByCodes(similarity, items)

    def chunk(self, number: int, expected_buckets: float = 1.0) -> Chunk:
        """An untrained chunk; its initial weights depend on the run's seed and its number alone.

        Args:
            expected_buckets: mean number of positive buckets per query.
        """
        seed = chunk_seed(self.config.seed, number)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Chunk(self.own.encoder, seed, expected_buckets)

    def solar(self, chunks: Mapping[int, Chunk]) -> Solar:
        """The model of trained chunks, by their numbers, in evaluation mode."""
        return Solar(self.own.encoder, self.own.similarity, chunks).eval()

    def trained_model(self, weights: Iterable[tuple[str, bytes]]) -> Solar:
        chunks = {}
        for path, data in weights:
            number = chunk_number(path)
            chunks[number] = self.chunk(number)
            weight_files.load(chunks[number], data)
        return self.solar(chunks)

    def trained_similarity(self, weights: Iterable[tuple[str, bytes]]) -> LookUp:
        """A sum of look-ups learns nothing."""
        return LookUp(self.own.encoder.num_buckets)

    def codes(self, item_ids: Sequence[ItemId]) -> ItemCodes:
        """The codes of a run's items.

        Raises:
            ValueError: if there are more buckets than items.
        """
        sizes = self.own.encoder
        if sizes.num_buckets > len(item_ids):
            raise ValueError(f"encoder.num_buckets must be at most the {len(item_ids)} items, got {sizes.num_buckets}")
        numbers = sizes.num_chunks, sizes.num_buckets, self.config.seed
        if sizes.codes == "balanced":
            return ItemCodes(item_ids, random_codes.balanced(len(item_ids), *numbers))
        return ItemCodes(item_ids, random_codes.hashed(item_ids, *numbers))

    def codes_of(self, known: ItemCodes, item_ids: Sequence[ItemId]) -> tuple[ItemCodes, NDArray[np.bool_]]:
        """The codes of a corpus, and which of its items are new: known items keep their codes.

        Args:
            known: the codes of a run or of a former version.
        """
        found, is_new = random_codes.inherit(
            item_ids, known.item_ids, known.codes, num_buckets=self.own.encoder.num_buckets, seed=self.config.seed
        )
        return ItemCodes(item_ids, found), is_new

    def with_predicted(self, own: ItemCodes, rows: NDArray[np.integer], predicted: Predicted) -> ItemCodes:
        """Replace codes of some new items by buckets that a model predicts for them, in the chunks that it has.

        Args:
            rows: rows of the new items for which something is predicted.
        """
        found = own.codes.copy()
        others = np.delete(own.codes, rows, axis=0)[:, predicted.chunks]
        found[rows[:, None], np.array(predicted.chunks)] = random_codes.nearest_predicted(
            others, predicted.buckets, num_buckets=self.own.encoder.num_buckets
        )
        return ItemCodes(own.item_ids, found)


def _is_of(version: Manifest, run: Run) -> bool:
    """Return whether a version comes from this run, and not from an earlier run of the same name."""
    weights = run.weights_sha256
    return version.run == run.name and all(weights.get(entry.path) == entry.sha256 for entry in version.weights)


def chunk_number(path: str) -> int:
    """The number of the chunk whose weights lie at this path of a run's folder."""
    return int(path.split("/", maxsplit=1)[0].removeprefix("chunk-"))


FAMILY = SolarFamily
