"""Config -> what a run reads: its data set, its corpus, and what its config leaves to them; a part of `build`."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.build import family
from rails_ray.config import DataConfig, RunConfig
from rails_ray.data import emoji, features, sequences, text
from rails_ray.data.dataset import DataSet
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import HISTORIES, ITEMS

QUERY_FIELD = {"text": "text", "features": "features", "vector": "embedding"}  # what a request calls SOLAR's inputs
QUERY_TYPE = {"text": "string", "features": "map<int64, float>", "vector": "list<float>"}


def read_data(config: RunConfig, storage: Storage) -> DataSet:
    """The data set of a run: a folder's tables, or the emoji, which are written to storage the first time.

    Raises:
        NotFoundError, ValueError: as `text.read`, `sequences.read` and `features.read`.
    """
    match family(config).reads:
        case "text":
            return text.read(_text_folder(config, storage))
        case "history":
            if config.data.folder is None:
                raise ValueError(
                    f"recipe {config.name} needs --data.folder, with items.parquet and interactions.parquet, got none"
                )
            return sequences.read(Storage(config.data.folder))
        case _:
            return features.read(_numbers_folder(config))


def _numbers_folder(config: RunConfig) -> Storage:
    if config.data.folder is None:
        raise ValueError(
            f"recipe {config.name} needs --data.folder, with items.parquet, queries.parquet and relevance.parquet, got "
            "none"
        )
    return Storage(config.data.folder)


def _text_folder(config: RunConfig, storage: Storage) -> Storage:
    if config.data.folder is not None:
        return Storage(config.data.folder)
    sizes = (config.data.num_valid, config.data.num_test, config.data.split_seed)
    folder = Storage(f"{storage}/data/emoji-{'-'.join(map(str, sizes))}")
    if not folder.exists("relevance.parquet"):
        made = emoji.tables(*sizes)
        for name in ("items", "queries", "relevance"):  # the last one says that all are there
            folder.write(f"{name}.parquet", parquet.to_bytes(getattr(made, name)))
    return folder


@dataclass(frozen=True)
class Corpus:
    """
    items: item_id, input (what the item encoder reads) and, if the data set has them, title, by item row.
    query: what a query may be, with the type of its ids or its text.
    files: that the query encoder needs beside the model, by name.
    """

    items: pa.Table
    query: dict[str, str]
    files: dict[str, bytes]


def read_corpus(config: RunConfig, storage: Storage) -> Corpus:
    """What is to be encoded, and what answers need beside it.

    Raises:
        NotFoundError, ValueError: as `read_data`.
    """
    match family(config).reads:
        case "text":
            table = text.read_items(_text_folder(config, storage))
            items = pa.table({"item_id": table["item_id"], "input": text.item_texts(table)})
            query, files = {"text": "string"}, {}
            titles = table["title"] if "title" in table.column_names else None
        case "history":
            read = read_data(config, storage)
            assert isinstance(read, sequences.SequenceData)
            for_data(config, read)  # says if a row is another item now
            items = pa.table({"item_id": pa.array(read.item_ids), "input": pa.array(read.item_inputs)})
            histories = sequences.histories_table(read)
            query = {"history": str(items["item_id"].type), "user_id": str(histories["user_id"].type)}
            files = {ITEMS: parquet.to_bytes(items.select(["item_id"])), HISTORIES: parquet.to_bytes(histories)}
            titles = None if read.titles is None else pa.array(read.titles)
        case form:
            table = features.read_items(_numbers_folder(config))
            items = pa.table({"item_id": table["item_id"], "input": pa.array(np.arange(table.num_rows))})
            query, files = {QUERY_FIELD[form]: QUERY_TYPE[form]}, {}
            titles = table["title"] if "title" in table.column_names else None
    return Corpus(items if titles is None else items.append_column("title", titles), query, files)


def item_inputs(items: pa.Table) -> list[str] | NDArray[np.int64]:
    """What the item encoder reads, of some items of a corpus."""
    is_rows = pa.types.is_integer(items["input"].type)
    inputs: list[str] | NDArray[np.int64] = items["input"].to_numpy() if is_rows else items["input"].to_pylist()
    return inputs


def with_data(config: RunConfig, data: DataConfig) -> RunConfig:
    """The config of a run with these data, wherever it is read: workers run in folders of their own."""
    if data.folder is not None and "://" not in data.folder:
        data = replace(data, folder=str(Path(data.folder).expanduser().resolve()))
    return replace(config, data=data)


def for_data(config: RunConfig, read: DataSet) -> RunConfig:
    """The config of a run with what it leaves to its data set filled in, so that it says all by itself.

    Raises:
        ValueError: as `Family.completed`.
    """
    return family(with_data(config, config.data)).completed(read)
