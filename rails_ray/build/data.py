"""Config -> what a run reads: its data set, its corpus, and the fields that these fill in; a part of `build`."""

from dataclasses import replace
from pathlib import Path

from rails_ray.build import family
from rails_ray.config import DataConfig, RunConfig
from rails_ray.data.corpus import Corpus
from rails_ray.data.dataset import DataSet
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage


def read_data(config: RunConfig, storage: Storage) -> DataSet:
    """The data set of a run: a folder's tables, or packaged ones, which are written to storage the first time.

    Raises:
        NotFoundError, ValueError: as `QueryForm.read`.
    """
    return family(config).form.read(_folder(config, storage))


def read_corpus(config: RunConfig, storage: Storage) -> Corpus:
    """The items to encode, and what answers need beside them.

    Raises:
        NotFoundError, ValueError: as `QueryForm.read`, and if the model cannot encode these items.
    """
    own = family(with_data(config, config.data))
    corpus = own.form.corpus(_folder(config, storage))
    own.with_items(corpus.items["item_id"].to_pylist())
    return corpus


def _folder(config: RunConfig, storage: Storage) -> Storage:
    """The folder of a run's tables."""
    if config.data.folder is not None:
        return Storage(config.data.folder)
    form, sizes = family(config).form, (config.data.num_valid, config.data.num_test, config.data.split_seed)
    packaged = form.packaged
    if packaged is None:
        raise ValueError(f"recipe {config.name} needs --data.folder, with {form.tables}, got none")
    folder = Storage(f"{storage}/data/{packaged.name}-{'-'.join(map(str, sizes))}")
    if not folder.exists(f"{packaged.files[-1]}.parquet"):
        made = packaged.tables(*sizes)
        for name in packaged.files:
            folder.write(f"{name}.parquet", parquet.to_bytes(getattr(made, name)))
    return folder


def with_data(config: RunConfig, data: DataConfig) -> RunConfig:
    """The config of a run with these data and an absolute folder, as workers run in folders of their own."""
    if data.folder is not None and "://" not in data.folder:
        data = replace(data, folder=str(Path(data.folder).expanduser().resolve()))
    return replace(config, data=data)


def for_data(config: RunConfig, read: DataSet) -> RunConfig:
    """The config of a run, completed from its data set, so that it says everything by itself.

    Raises:
        ValueError: as `Family.completed`.
    """
    return family(with_data(config, config.data)).completed(read)
