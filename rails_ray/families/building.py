"""A version of vectors as they are, compared by their cosine: nothing is trained, and no cluster is needed."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.queries import DenseRows
from rails_ray.data.vectors import check_directions, zero_rows
from rails_ray.errors import ConflictError
from rails_ray.families import indexing
from rails_ray.families.config import RunConfig, to_json
from rails_ray.families.dual_encoder.serve import DualEncoderFamily
from rails_ray.families.given_items import items_of, rows_of
from rails_ray.families.in_process import InProcess
from rails_ray.families.items import ByModel
from rails_ray.families.query_encoder import TEXT, query_encoder_file
from rails_ray.families.recipes.vectors import vector_cosine
from rails_ray.families.registry import served_family
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.schema.fields import shortened
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.storage import parts, versions
from rails_ray.storage.attributes import ATTRIBUTE, kinds_of, read_column
from rails_ray.storage.described import WEIGHTS, Manifest
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.ids import ColumnDigest
from rails_ray.storage.intents import intent
from rails_ray.storage.manifest import CONFIG, NO_RUN, QUERY_ENCODER
from rails_ray.storage.parquet import NAMED, item_part

QUERY = {"embedding": "list<float>"}  # the field of a request that gives a query


def build_version(
    storage: Storage,
    version: str,
    vectors: Any,
    ids: Any = None,
    titles: Any = None,
    zero_vectors: Literal["refuse", "keep"] = "refuse",
    query_encoder: str | None = None,
    index: str | IndexConfig = "flat",
    attributes: Any = None,
) -> Manifest:
    """Store vectors as a version, and publish it.

    Args:
        vectors: of the items [X, D], finite; their lengths do not matter.
        ids: integers or strings, all different; by default the numbers of the rows.
        titles: shown with answers.
        zero_vectors: what becomes of vectors of zeros, as in `DataConfig`.
        query_encoder: the model that makes vectors of texts as queries, its folder or its name in the local cache of
            Hugging Face; None for none.
        index: what the method `ann` searches, or the kind of it.
        attributes: values of all items, by the name of the attribute.

    Raises:
        UnsupportedError: if there is such a model, and sentence-transformers is not installed; for an index other than
            flat in float32 if FAISS is not.
        ConflictError: if there is such a version already.
        ValueError: if the arguments are not as said, or an unfinished build of other items has this name.
    """
    rows = rows_of(vectors)
    items = items_of(len(rows), ids, titles, attributes)
    names = [name for name in items.column_names if name not in NAMED]
    for place, name in enumerate(names, start=items.num_columns - len(names)):
        items = items.set_column(place, name, read_column(name, items[name], ATTRIBUTE))
    kinds = kinds_of({name: items.schema.field(name).type for name in names})
    family = served_family(served_family(cosine_of(rows.shape[1])).stored_as(index=index_config(index)))
    indexing.check(family, len(rows))
    zeros = zero_rows(rows)
    if zero_vectors == "refuse" and len(zeros):
        first = items["item_id"][int(zeros[0])].as_py()
        check_directions("items", len(zeros), len(rows), first, "zero_vectors='keep', to find them last")
    if NAME.fullmatch(version) and parts.is_finished(storage, version):
        raise ConflictError(f"version must be a new name in {storage}, got {version!r}: name another, or open that one")
    texts = None if query_encoder is None else query_encoder_file(query_encoder, rows.shape[1])
    kept: dict[str, str | int | None] = {"zero_vectors": "keep"} if len(zeros) else {}
    kept |= {} if index == "flat" else {"index": str(family.index_config)}
    with intent(storage, f"build {version}"):
        # Parts of another build are not its own.
        parts.begin(storage, version, {"run": NO_RUN, "items": _digest(rows, items), **kept})
        config = replace(family.config, data=replace(family.config.data, zero_vectors=zero_vectors))
        model = DualEncoderFamily.of(config).model().eval()
        encode = ByModel(model)
        planned = parts.plan([len(rows)], parts.PART_ITEMS)
        for part in planned:
            end = part.first_row + part.num_items
            named = items.slice(part.first_row, part.num_items)
            state = encode(named["item_id"].to_pylist(), DenseRows(rows[part.first_row : end]))
            parts.write_part(storage, version, part, item_part(named, state, names))
        files = {CONFIG: (config_json := to_json(config)), WEIGHTS: weight_files.to_bytes(model)}
        query = QUERY if texts is None else QUERY | TEXT
        files |= {} if texts is None else {QUERY_ENCODER: texts}
        encoded = parts.finish(
            storage,
            version,
            planned,
            run=NO_RUN,
            query=query,
            files=files.items(),
            cutoff_mass=None,
            attributes=kinds,
            indexes_of=lambda encoded: indexing.build(InProcess().each, storage, encoded, config_json),
        )
        return versions.publish(storage, encoded, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")


def index_config(index: str | IndexConfig) -> IndexConfig:
    """The config of an index, with all defaults if its kind alone is named.

    Raises:
        ValueError: if there is no such kind.
    """
    kinds: dict[str, type[IndexConfig]] = {config.kind: config for config in get_args(IndexConfig)}
    if isinstance(index, get_args(IndexConfig)):
        found: IndexConfig = index
        return found
    if not isinstance(index, str) or index not in kinds:
        raise ValueError(f"index must be one of {', '.join(kinds)}, or the config of one, got {shortened(index)}")
    return kinds[index]()


def cosine_of(width: int) -> RunConfig:
    """The config of a version whose items are one vector of this width."""
    config = vector_cosine()
    encoder = VectorsConfig(query_width=width, item_shape=(1, width))
    components = replace(DualEncoderFamily.of(config).own.components, width=width)
    return config.with_family(encoder=encoder, components=components)


def _digest(rows: NDArray[np.float32], items: pa.Table) -> str:
    """Return the sha256 of vectors, ids, titles and attributes."""
    digest = hashlib.sha256(np.ascontiguousarray(rows).view(np.uint8).data)
    for name in items.column_names:
        column = ColumnDigest()
        column.add(items[name])
        digest.update(column.hexdigest().encode())
    return digest.hexdigest()
