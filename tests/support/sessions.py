"""Sessions that come back to an item, and a model that finds the last item of a history first."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import for_data, read_corpus, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules import weight_files
from rails_ray.storage import manifest, parts, versions
from rails_ray.storage.described import WEIGHTS, Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part
from support.examples import small_history_config

NUM_SESSIONS, NUM_ITEMS, NUM_REPEATED = 50, 40, 15


def write_sessions(folder: Path, num_repeated: int = NUM_REPEATED) -> Path:
    """Sessions of five items and two held-out ones. In the first `num_repeated` the test item is the validation item
    again, in the last as many the validation item is the one before it; all others are new to their session."""
    generator = np.random.default_rng(0)
    sessions = [generator.choice(NUM_ITEMS, 7, replace=False).tolist() for _ in range(NUM_SESSIONS)]
    for session in sessions[:num_repeated]:
        session[6] = session[5]
    for session in sessions[NUM_SESSIONS - num_repeated :]:
        session[5] = session[4]
    columns = {
        "user_id": np.repeat(np.arange(NUM_SESSIONS), 7),
        "item_id": [f"item-{item}" for session in sessions for item in session],
        "position": np.tile(np.arange(7), NUM_SESSIONS),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "interactions.parquet")
    pq.write_table(pa.table({"item_id": [f"item-{item}" for item in range(NUM_ITEMS)]}), folder / "items.parquet")
    return folder


def sessions_config(folder: Path, exclude_seen: bool | None = None) -> RunConfig:
    """A small run on these sessions, completed."""
    data = DataConfig(folder=str(folder), exclude_seen=exclude_seen)
    config = replace(small_history_config("dot product", num_items=0), data=data)
    return for_data(config, read_data(config, Storage(".")))


def repeating(config: RunConfig) -> DualEncoder:
    """A model of the run that scores the last item of a history 1, and any other less."""
    model = DualEncoderTraining.of(config).model().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "temperature" not in name:
                parameter.zero_()
        table = model.encoder.embeddings.weight
        table.normal_(generator=generator)
        table -= table.mean(dim=1, keepdim=True)  # what the encoder's norm takes away
        for side in (model.query_components, model.item_components):
            side.project.weight.fill_diagonal_(1)
    return model


def publish_repeating(
    root: Path,
    exclude_seen: bool | None = None,
    *,
    num_repeated: int = NUM_REPEATED,
    stored: Callable[[bytes], bytes] = lambda config: config,
) -> Manifest:
    """A version of this model, encoded in this process: no cluster is started.

    Args:
        stored: the bytes of the config as they are stored.
    """
    storage = Storage(str(root))
    config = sessions_config(write_sessions(root / "data", num_repeated), exclude_seen)
    read, model, corpus = read_data(config, storage), repeating(config), read_corpus(config, storage)
    with torch.no_grad():
        items = model.encode_items(model.item_features(read.item_inputs))
    planned = parts.plan(parts.even_shards(len(items), 2), part_items=len(items))
    for part in planned:
        named = pa.table({"item_id": read.item_ids.column.slice(part.first_row, part.num_items)})
        own = items.taken(slice(part.first_row, part.first_row + part.num_items))
        parts.write_part(storage, "v1", part, item_part(named, own))
    files = {manifest.CONFIG: stored(to_json(config)), WEIGHTS: weight_files.to_bytes(model), **corpus.files}
    encoded = parts.finish(storage, "v1", planned, run="r", query=corpus.query, files=files.items(), cutoff_mass=None)
    return versions.publish(storage, encoded, "2026-01-01T00:00:00Z")
