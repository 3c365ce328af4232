"""A version, opened: what a server, a search in this process and an evaluation read of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.families import calibrations, default_searches
from rails_ray.families.config import RunConfig, from_json
from rails_ray.families.items import ItemEncoder
from rails_ray.families.query_encoder import query_encoder_of
from rails_ray.families.registry import served_family
from rails_ray.families.served_family import ServedFamily
from rails_ray.families.shards import Items, base_of, read_indexes, read_later, read_part, read_parts, read_shards
from rails_ray.modules.encoders.frozen import FrozenText
from rails_ray.modules.model import Model
from rails_ray.search.indexes import VectorIndex
from rails_ray.storage.described import Encoded, Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.hidden import live_rows, of_rows
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.manifest import CONFIG, QUERY_ENCODER, folder_of, read_file
from rails_ray.storage.parquet import item_state
from rails_ray.storage.versions import read_described, read_manifest


class Tuned(NamedTuple):
    """Names of the files with the current calibrations and default search of a version.

    calibration: file of the current calibration over all items; None if there is none.
    of_filters: files of those under filters.
    search: file of the default search; None if there is none.
    """

    calibration: str | None
    of_filters: tuple[str, ...]
    search: str | None


class VersionVectors(NamedTuple):
    """Vectors of items, a block at a time.

    blocks: ids and vectors [n, width] of consecutive items.
    """

    width: int
    blocks: Iterator[tuple[pa.ChunkedArray, NDArray[np.float32]]]


@dataclass(frozen=True, eq=False)
class Version:
    """A version in storage. Its files are read when they are first needed, each once, and checked against the manifest.

    described: the manifest, or what encoding has written if the version is not published yet.
    allowed: code that its config may name by its import path, beside our own.

    Raises, from every member that reads:
        DamagedError: if a file is missing or differs from the manifest.
    """

    storage: Storage
    described: Encoded
    allowed: AllowedCode = OURS_ALONE

    @staticmethod
    def published(storage: Storage, name: str | None = None, allowed: AllowedCode = OURS_ALONE) -> "Version":
        """Open a published version.

        Args:
            name: by default that of the current version.

        Raises:
            NotFoundError: if there is no such version.
        """
        return Version(storage, read_manifest(storage, name), allowed)

    @staticmethod
    def encoded(storage: Storage, name: str | None = None, allowed: AllowedCode = OURS_ALONE) -> "Version":
        """Open a version that is encoded, published or not. Arguments and errors as of `published`."""
        return Version(storage, read_described(storage, name), allowed)

    @property
    def name(self) -> str:
        return self.described.version

    @property
    def manifest(self) -> Manifest:
        """The manifest of a published version."""
        assert isinstance(self.described, Manifest)  # opened by `published`
        return self.described

    @property
    def num_shards(self) -> int:
        return len(self.described.shard_items)

    @cached_property
    def config(self) -> RunConfig:
        """The config of the run that the version comes from."""
        return from_json(self.file(CONFIG))

    @cached_property
    def family(self) -> ServedFamily:
        """The family of that run."""
        return served_family(self.config, self.allowed.read_by(f"version {self.name}", str(self.storage)))

    @cached_property
    def model(self) -> Model:
        """The model, in evaluation mode.

        Raises:
            ValueError: if the config names code that is not allowed.
        """
        return self.family.trained_model(self.weights())

    @cached_property
    def item_encoder(self) -> ItemEncoder:
        """The map from items to their states by which the version was encoded.

        Raises:
            ValueError: if the config names code that is not allowed.
        """
        return self.family.item_encoder(self.storage, folder_of(self.described.home), self.weights(), "cpu")

    @cached_property
    def query_encoder(self) -> FrozenText | None:
        """The model that makes vectors of texts, where queries are vectors; None without one."""
        described = self.described.has_file(QUERY_ENCODER)
        return query_encoder_of(self.file(QUERY_ENCODER)) if described else None

    @cached_property
    def similarity(self) -> Any:
        """The similarity that scores the items, loaded without the encoders if the model is not loaded yet."""
        is_loaded = "model" in self.__dict__
        trained = self.model.similarity if is_loaded else self.family.trained_similarity(self.weights())
        return self.family.version_similarity(trained, self.file)

    @cached_property
    def tuned(self) -> Tuned:
        """The calibrations and the default search that were current when they were first read."""
        own = self.storage, self.name
        return Tuned(calibrations.current(*own), calibrations.of_filters(*own), default_searches.current(*own))

    def file(self, name: str) -> bytes:
        """Read a file beside the parts."""
        return read_file(self.storage, self.described.home, self.described.file(name))

    def after(self, former: "Version") -> "Version":
        """Return this version with what a former one has loaded of its model, if both have the same model by sha256."""
        if self.has_model_of(former):
            for name in ("config", "family", "model", "item_encoder", "query_encoder", "similarity"):
                if name in former.__dict__:
                    self.__dict__[name] = former.__dict__[name]
        return self

    def has_model_of(self, former: "Version") -> bool:
        """Return whether `after` takes the model of a former version."""
        return (former.described.files, former.allowed) == (self.described.files, self.allowed)

    def base(self, shard: int, num_item_components: int | None = None) -> Items:
        """Read the items of a shard's base as they are stored, hidden ones too.

        Raises:
            ValueError: if there is no such shard.
        """
        parts = base_of(self.described, shard)
        return read_parts(self.storage, self.described, parts, self.family.item_state, num_item_components)

    def hidden(self, shard: int) -> NDArray[np.int64]:
        """Read which items of a shard's base are hidden, as rows of the base."""
        return of_rows(self.storage, self.described, base_of(self.described, shard))

    def later(self, shard: int, num_item_components: int | None = None) -> Items | None:
        """Read what deltas added to a shard; None if they added nothing, or nothing of it is left."""
        return read_later(self.storage, self.described, shard, self.family.item_state, num_item_components)

    def indexes(self, shard: int, device: str = "cpu") -> dict[str, VectorIndex]:
        """Read the indexes of a shard, by name."""
        return read_indexes(self.storage, self.described, shard, device)

    def items(self) -> Items:
        """Read all items that are not hidden, as the model scores them."""
        found = read_shards(self.storage, self.described, range(self.num_shards), self.family.item_state).live()
        return replace(found, state=self.family.as_scored(found.state, self.file))

    def item_ids(self) -> ItemIds:
        """Read the ids of all items that are not hidden."""
        chunks = [chunk for part in self.parts() for chunk in part["item_id"].chunks]
        return ItemIds(pa.chunked_array(chunks))

    def parts(self) -> Iterator[pa.Table]:
        """Read the items that are not hidden, a part at a time."""
        for entry in sorted(self.described.parts, key=lambda entry: entry.first_row):
            part, rows = read_part(self.storage, self.described, entry), live_rows(self.storage, self.described, entry)
            yield part if rows is None else part.take(pa.array(rows))

    def check_reads_like(self, other: "Version") -> None:
        """Raises:
        ValueError: if the models read two forms of query.
        """
        if self.model.form != other.model.form:
            raise ValueError(
                f"versions must read one form of query to answer the same ones, got {self.model.form} of {self.name} "
                f"and {other.model.form} of {other.name}"
            )

    def vectors(self, component: int | None = None) -> VersionVectors:
        """Read the stored vectors of the items.

        Args:
            component: number of the component; by default the mean component, or the only one.

        Raises:
            ValueError: if the items have no such vectors.
        """
        shape = self.described.state.shapes.get("components")
        if shape is None:
            raise ValueError(
                f"version {self.name} must store vectors of its items, got {self.described.state.kind}: export another"
            )
        if component is not None and not 0 <= component < shape[0]:
            raise ValueError(f"component must be at least 0 and below the {shape[0]} of an item, got {component}")
        if component is None and shape[0] > 1 and "average" not in self.described.state.shapes:
            raise ValueError(f"version {self.name} must store the mean component, got none: name a component")

        def blocks() -> Iterator[tuple[pa.ChunkedArray, NDArray[np.float32]]]:
            for part in self.parts():
                columns = item_state(part, self.family.item_state).columns()
                found = columns.get("average", columns["components"][:, 0])
                vectors = found if component is None else columns["components"][:, component]
                yield part["item_id"], vectors.float().numpy()

        return VersionVectors(shape[1], blocks())

    def weights(self) -> Iterator[tuple[str, bytes]]:
        """Each file of the weights with its path, read when it is asked for."""
        return ((entry.path, read_file(self.storage, self.described.home, entry)) for entry in self.described.weights)
