"""Config -> what a run reads: its data set, its corpus, and the fields that these fill in."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import SPLITS, Queries
from rails_ray.data.sources import Sources
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.training_family import training_family
from rails_ray.paths import expanded
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage, local_path
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.values import Columns


def read_data(config: RunConfig, storage: Storage, needed: Collection[str] | None = None) -> DataSet:
    """The data set of a run: a user's tables, or packaged ones, which are written to storage the first time.

    Args:
        needed: splits that must have a query; by default all if the run trains, else none.

    Raises:
        NotFoundError, ValueError: as `QueryForm.read`.
    """
    own, found = training_family(config), sources(config, storage)
    if needed is None:
        needed = SPLITS if own.trains else ()
    read = own.form.read(found, needed).choosing(config.data.exclude_seen)
    found.check_columns()
    if "train" in needed:
        own.check_weights(read)
    found.note_unused()
    return replace(read, notes=tuple(found.notes))


def training_queries(config: RunConfig, storage: str) -> Queries:
    """The queries that a run was trained on.

    Raises:
        NotFoundError, ValueError: as `read_data`, and if there are none.
    """
    return read_data(config, Storage(storage), ("train",)).queries["train"]


def read_corpus(config: RunConfig, storage: Storage, version_kinds: Columns | None = None) -> Corpus:
    """The items to encode, and what answers need beside them.

    Args:
        version_kinds: as in `Sources`.

    Raises:
        NotFoundError, ValueError: as `QueryForm.read`, and if the model cannot encode these items.
    """
    own, found = training_family(with_data(config, config.data)), sources(config, storage, version_kinds)
    corpus = own.form.corpus(found)
    found.check_columns()
    found.note_unused()
    corpus = replace(corpus, notes=tuple(found.notes))
    if own.has_a_row_for_each_item:
        own.with_items(ItemIds(corpus.items.read()["item_id"]))
    return corpus


def check_has_data(config: RunConfig) -> None:
    """Raises:
    ValueError: if a run has no data: its config names none, and its recipe comes with none.
    """
    data, form = with_data(config, config.data).data, training_family(config).form
    if data.folder is None and not data.places and form.packaged is None:
        raise ValueError(
            f"recipe {config.name} needs a data set with {form.tables}, got none: give its folder with --data.folder "
            "(of encode: --folder)"
        )


def check_attributes(config: RunConfig, storage: Storage) -> None:
    """Raises:
    NotFoundError, ValueError: if the items of a run lack an attribute, or have one of a type that it cannot have.
    """
    sources(config, storage).attribute_columns()


def sources(config: RunConfig, storage: Storage, version_kinds: Columns | None = None) -> Sources:
    """Where the tables of a run are.

    Args:
        version_kinds: as in `Sources`.
    """
    check_has_data(config)
    data = with_data(config, config.data).data
    if data.folder is not None or data.places:
        return sources_of(data, f"{storage}/data", version_kinds)
    packaged, sizes = training_family(config).form.packaged, (data.num_valid, data.num_test, data.split_seed)
    assert packaged is not None
    folder = Storage(f"{storage}/data/{packaged.name}-{'-'.join(map(str, sizes))}")
    if not folder.exists(f"{packaged.files[-1]}.parquet"):
        made = packaged.tables(*sizes)
        for name in packaged.files:
            folder.write(f"{name}.parquet", parquet.to_bytes(getattr(made, name)))
    return Sources(str(folder), attributes=data.attribute_columns, version_kinds=version_kinds)


def sources_of(data: DataConfig, cache: str | None = None, version_kinds: Columns | None = None) -> Sources:
    """The tables that a config names.

    Args:
        cache: storage of tables that are Parquet made of other formats.
        version_kinds: as in `Sources`.
    """
    return Sources(
        data.folder,
        data.places,
        data.renamed,
        data.max_dropped,
        cache=cache,
        refuses_zeros=data.zero_vectors == "refuse",
        attributes=data.attribute_columns,
        version_kinds=version_kinds,
    )


def with_data(config: RunConfig, data: DataConfig) -> RunConfig:
    """The config of a run with these data, at absolute places, as workers run in folders of their own."""
    places: dict[str, Any] = {name: _absolute(place) for name, place in data.places.items()}
    folder = None if data.folder is None else _absolute(data.folder)
    return replace(config, data=replace(data, folder=folder, **places))


def _absolute(place: str) -> str:
    place = local_path(place)
    return place if "://" in place else str(expanded(place).resolve())


def for_data(config: RunConfig, read: DataSet, allowed: AllowedCode = OURS_ALONE) -> RunConfig:
    """The config of a run, completed from its data set, so that it says everything by itself.

    Args:
        allowed: code that the config may name.

    Raises:
        ValueError: as `TrainingFamily.completed`.
    """
    return training_family(with_data(config, config.data), allowed).completed(read)
