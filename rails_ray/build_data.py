"""Config -> what a run reads: its data set, its corpus, and what its config leaves to them; a part of `build`."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.config import DataConfig, RunConfig
from rails_ray.data import emoji, features, sequences, text
from rails_ray.data.dataset import SPLITS, DataSet, SparseRows
from rails_ray.encoders.sasrec import SasrecConfig
from rails_ray.encoders.solar import USUAL_BUCKETS, SolarConfig
from rails_ray.encoders.text import TransformerConfig
from rails_ray.encoders.two_tower import TwoTowerConfig
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import HISTORIES, ITEMS

QUERY_FIELD = {"text": "text", "features": "features", "vector": "embedding"}  # what a request calls SOLAR's inputs
QUERY_TYPE = {"text": "string", "features": "map<int64, float>", "vector": "list<float>"}


def data(config: RunConfig, storage: Storage) -> DataSet:
    """The data set of a run: a folder's tables, or the emoji, which are written to storage the first time.

    Raises:
        NotFoundError, ValueError: as `text.read`, `sequences.read` and `features.read`.
    """
    match config.encoder:
        case TwoTowerConfig() | TransformerConfig() | SolarConfig(input="text"):
            return text.read(_text_folder(config, storage))
        case SasrecConfig():
            if config.data.folder is None:
                raise ValueError(
                    f"recipe {config.name} needs --data.folder, with items.parquet and interactions.parquet, got none"
                )
            return sequences.read(Storage(config.data.folder))
        case SolarConfig():
            return features.read(_numbers_folder(config))
        case _:
            assert_never(config.encoder)


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


def corpus(config: RunConfig, storage: Storage) -> Corpus:
    """What is to be encoded, and what answers need beside it.

    Raises:
        NotFoundError, ValueError: as `data`.
    """
    match config.encoder:
        case TwoTowerConfig() | TransformerConfig() | SolarConfig(input="text"):
            table = text.read_items(_text_folder(config, storage))
            items = pa.table({"item_id": table["item_id"], "input": text.item_texts(table)})
            query, files = {"text": "string"}, {}
            titles = table["title"] if "title" in table.column_names else None
        case SasrecConfig():
            read = data(config, storage)
            assert isinstance(read, sequences.SequenceData)
            for_data(config, read)  # says if a row is another item now
            items = pa.table({"item_id": pa.array(read.item_ids), "input": pa.array(read.item_inputs)})
            histories = sequences.histories_table(read)
            query = {"history": str(items["item_id"].type), "user_id": str(histories["user_id"].type)}
            files = {ITEMS: parquet.to_bytes(items.select(["item_id"])), HISTORIES: parquet.to_bytes(histories)}
            titles = None if read.titles is None else pa.array(read.titles)
        case SolarConfig():
            table = features.read_items(_numbers_folder(config))
            items = pa.table({"item_id": table["item_id"], "input": pa.array(np.arange(table.num_rows))})
            query, files = {QUERY_FIELD[config.encoder.input]: QUERY_TYPE[config.encoder.input]}, {}
            titles = table["title"] if "title" in table.column_names else None
        case _:
            assert_never(config.encoder)
    return Corpus(items if titles is None else items.append_column("title", titles), query, files)


def item_inputs(items: pa.Table) -> list[str] | NDArray[np.int64]:
    """What the item encoder reads, of some items of a `corpus`."""
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
        ValueError: if it names another number of items, or was filled in from other items.
    """
    config = with_data(config, config.data)
    if isinstance(config.encoder, SasrecConfig):
        num_items = len(read.item_ids)
        if config.encoder.num_items not in (0, num_items):
            raise ValueError(
                f"encoder.num_items must be the {num_items} items of {config.data.folder}, or 0, "
                f"got {config.encoder.num_items}"
            )
        corpus = hashlib.sha256(json.dumps(read.item_ids).encode()).hexdigest()[:16]
        if config.encoder.corpus not in ("", corpus):
            raise ValueError(
                f"{config.data.folder} must hold the items that the run was trained on, in their order, got others: "
                "train a new run"
            )
        config = replace(config, encoder=replace(config.encoder, num_items=num_items, corpus=corpus))
    if isinstance(config.encoder, SolarConfig):
        num_buckets = config.encoder.num_buckets or min(USUAL_BUCKETS, len(read.item_ids))
        encoder = replace(config.encoder, num_buckets=num_buckets)
        config = replace(config, encoder=_of_width(encoder, read, config.data.folder))
    return config


def check_can_be_asked(config: RunConfig, read: DataSet) -> None:
    """Whether the model of a trained run can be asked about a data set.

    Raises:
        ValueError: if a row of the model is another item there, or queries are not what it reads. Features that
            training did not see are: they are left out.
    """
    if isinstance(config.encoder, SolarConfig) and config.encoder.input == "features":
        config = replace(config, encoder=replace(config.encoder, width=0))
    for_data(config, read)


def _of_width(encoder: SolarConfig, read: DataSet, folder: str | None) -> SolarConfig:
    """The same with the width of the data set's queries.

    Raises:
        ValueError: if the queries are not what the encoder reads, or wider than it says.
    """
    inputs = [read.queries[split].inputs for split in SPLITS]
    if encoder.input == "text":
        return encoder
    if any(isinstance(of_split, SparseRows) != (encoder.input == "features") for of_split in inputs):
        came = "features" if encoder.input == "vector" else "vectors"
        raise ValueError(f"queries of {folder} must be of encoder.input {encoder.input}, got {came}")
    widths = [of_split.width if isinstance(of_split, SparseRows) else len(of_split[0]) for of_split in inputs]
    width = max(widths)
    if encoder.width and (encoder.width < width or (encoder.input == "vector" and encoder.width != width)):
        raise ValueError(f"encoder.width must be the {width} of the queries of {folder}, or 0, got {encoder.width}")
    return replace(encoder, width=encoder.width or width)
