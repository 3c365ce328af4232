"""Items to add, from a user's tables: as `changing.add` takes them."""

from dataclasses import replace

import pyarrow as pa

from rails_ray.data.corpus import Corpus
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_corpus, with_data
from rails_ray.families.encoding import scan
from rails_ray.families.in_process import InProcess
from rails_ray.families.version import Version
from rails_ray.storage.attributes import kinds_for
from rails_ray.storage.parquet_files import FileRows


def corpus_to_add(version: Version, data: DataConfig) -> Corpus:
    """The items of a data set as a version's model reads items, with the attributes that both have.

    Raises:
        NotFoundError: if there is no table of items.
        ValueError: if the model cannot encode such items, or an attribute is of another type than in the version.
    """
    newer, kinds = data.over(version.config.data), version.described.attributes or {}
    columns = newer.attribute_columns
    pairs = tuple(f"{name}={columns.get(name, name)}" for name in kinds)
    newer = replace(newer, zero_vectors=newer.zero_vectors or "refuse", attributes=pairs)
    return read_corpus(with_data(version.config, newer), version.storage, kinds_for(version.name, kinds))


def read_items(version: Version, data: DataConfig) -> tuple[pa.Table, tuple[str, ...]]:
    """Read the items that `corpus_to_add` has, every row checked.

    Returns:
        The items, and a sentence on all that was left out.

    Raises:
        NotFoundError, ValueError: as `corpus_to_add`, and if a row is wrong.
    """
    corpus = corpus_to_add(version, data)
    scanned = scan(InProcess(), corpus.items, 1, None)
    notes = (*corpus.notes, *corpus.null_notes(scanned.num_null, scanned.num_items))
    files: list[FileRows] = list(scanned.files)
    return pa.concat_tables(corpus.items.blocks(files, 0, scanned.num_items)), notes
