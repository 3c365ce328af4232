"""Small inputs that several tests share."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import safe_open

from rails_ray.data.batch import PairSampler, WindowSampler
from rails_ray.data.dataset import Texts
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.negatives import UniformNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.solar.config import SolarConfig
from rails_ray.families.solar.train import SolarTraining
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.encoders.solar import ChunksConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.modules.losses.config import (
    ContrastiveConfig,
    MaximumLikelihoodConfig,
    NoneConfig,
    PointwiseConfig,
    TermsConfig,
)
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.storage import codes, manifest, parts, runs, versions
from rails_ray.storage.described import WEIGHTS, Encoded, Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part
from support.data_folders import write_number_data, write_text_data


def random_states(
    num_queries: int, num_items: int, *, p_q: int = 2, p_x: int = 3, width: int = 4, seed: int = 0
) -> tuple[QueryState, ItemState]:
    """Encoded queries and items with components of length 1."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> torch.Tensor:
        return F.normalize(torch.randn(*shape, generator=generator), dim=-1)

    components = unit(num_items, p_x, width)
    return (
        QueryState(
            unit(num_queries, p_q, width),
            torch.randn(num_queries, p_q * p_x, generator=generator),
            torch.rand(num_queries, generator=generator) * 0.1 + 0.01,
        ),
        ItemState(components, torch.randn(num_items, p_q * p_x, generator=generator), components.mean(1)),
    )


def part_of(items: ItemState, first_row: int = 0) -> pa.Table:
    """An index part of these items, with ids i0, i1 and so on."""
    rows = np.arange(first_row, first_row + len(items))
    return item_part(pa.table({"item_id": [f"i{row}" for row in rows]}), items)


def encode(storage: Storage, version: str, shard_items: list[int]) -> Encoded:
    """A version of random items, one part per shard, ready to publish."""
    planned = parts.plan(shard_items, part_items=max(shard_items))
    for part in planned:
        items = random_states(1, part.num_items, seed=part.shard)[1]
        parts.write_part(storage, version, part, part_of(items, part.first_row))
    files = {manifest.CONFIG: to_json(small_config()), WEIGHTS: b"{}"}
    query = {"text": "string"}
    return parts.finish(storage, version, planned, run="r", query=query, files=files.items(), cutoff_mass=0.9)


def small_mixture(
    p_q: int = 2, p_x: int = 3, seed: int = 0, activation: Literal["silu", "relu"] = "silu"
) -> MixtureOfLogits:
    """A mixture of logits with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    config = MixtureOfLogitsConfig(
        num_query_components=p_q, num_item_components=p_x, gate_hidden=5, gate_activation=activation
    )
    return MixtureOfLogits(config).eval()


def sharp_mixture(p_q: int = 2, p_x: int = 3) -> MixtureOfLogits:
    """One whose gates look almost only at the largest cosine."""
    mixture = MixtureOfLogits(
        MixtureOfLogitsConfig(num_query_components=p_q, num_item_components=p_x, gate_hidden=p_q * p_x)
    ).eval()
    for parameter in mixture.parameters():
        parameter.data.zero_()
    for layer, slope in ((mixture.logit_gate[1], 1.0), (mixture.logit_gate[3], 20.0)):
        layer.weight.data.fill_diagonal_(slope)  # w_p = 20 silu(l_p), so that z grows with the cosine
    return mixture


def small_config(similarity: str = "mixture") -> RunConfig:
    """A run that trains in a moment: tiny towers under a "mixture" or a "dot product", without dropout."""
    return RunConfig(
        name="small",
        family=DualEncoderConfig(
            encoder=TwoTowerConfig(width=8, hidden=8, num_buckets=500),
            components=ComponentsConfig(width=6, query_hidden=0, gate_hidden=5),
            similarity=DotProductConfig()
            if similarity == "dot product"
            else MixtureOfLogitsConfig(
                num_query_components=2, num_item_components=2, gate_hidden=5, logit_dropout=0.0, gate_dropout=0.0
            ),
            negatives=UniformNegatives(num_items=16),
        ),
        training=TrainingConfig(num_steps=60, batch_size=16, learning_rate=1e-2),
    )


def trained_items(**how: Any) -> PqItems:
    """Codes whose codebooks a run trains in a dozen steps."""
    training = TrainingConfig(num_steps=12, batch_size=16, validate_every=4)
    trained = TrainedConfig(training=training, revive_every=5, **how)
    return PqItems(num_subspaces=2, num_codewords=4, quantizer=trained)


def small_solar_config(num_chunks: int = 4, num_buckets: int = 20, **encoder: Any) -> RunConfig:
    """The same for SOLAR."""
    sizes = {"hidden": 16, "num_inputs": 200, "ngram_sizes": (3, 4), **encoder}
    return RunConfig(
        name="small-solar",
        family=SolarConfig(encoder=ChunksConfig(num_chunks=num_chunks, num_buckets=num_buckets, **sizes)),
        training=TrainingConfig(num_steps=60, batch_size=16, learning_rate=1e-2),
    )


def small_bm25_config() -> RunConfig:
    """One that trains nothing."""
    return RunConfig(name="small-bm25", family=Bm25Config(max_terms=8))


def small_history_config(similarity: str = "mixture", dropout: float = 0.0, num_items: int = 9) -> RunConfig:
    """The same for histories of nine items."""
    encoder = SasrecConfig(width=8, num_blocks=2, num_heads=2, max_length=4, dropout=dropout, num_items=num_items)
    return small_config(similarity).with_family(encoder=encoder)


COLOURED = Queries(Texts(["red", "car", "blue hat", "hat"]), ItemLists.of([[0, 1], [0, 2], [3], [1, 3]]))
THINGS = ["red car", "red hat", "blue car", "blue hat"]


NO_TERMS = TermsConfig(mutual_information_weight=0.0)
EVERY_LOSS = [
    *(
        ContrastiveConfig(kind=kind, pointwise_weight=weight)
        for kind in ("beta_nce", "exp_nce", "sampled_softmax")
        for weight in (0.0, 0.5)
    ),
    PointwiseConfig(),
    MaximumLikelihoodConfig(),
]


def sampler_of(model: DualEncoder, **options: int) -> PairSampler:
    """Batches of a handful of queries and items."""
    defaults = {"batch_size": 6, "num_items": 4, "seed": 0}
    queries, items = model.query_features(COLOURED.inputs), model.item_features(THINGS)
    return PairSampler(COLOURED, queries, items, **defaults | options)


def window_sampler(**options: int) -> WindowSampler:
    """Batches of six histories of nine items, of very different lengths."""
    histories = Visits.of([[0], [1, 2, 3, 4, 5, 6, 7], [8, 8], [3, 1, 2], [5], [0, 7, 0, 6, 0]])
    defaults = {"num_corpus_items": 9, "max_length": 4, "batch_size": 6, "num_items": 5, "seed": 0}
    return WindowSampler(histories, np.array([1, 8, 0, 4, 5, 2]), **defaults | options)


def batches_of(model: DualEncoder, **options: int) -> PairSampler | WindowSampler:
    """Those that the model reads."""
    return sampler_of(model, **options) if model.form == "text" else window_sampler(**options)


def write_untrained_run(storage: Storage, run: str, config: RunConfig, cutoff_mass: float | None = None) -> None:
    """A finished run of a model with random weights: what comes after training does not mind."""
    runs.write(
        storage,
        run,
        weights=weight_files.to_bytes(DualEncoderTraining.of(config).model()),
        validation=json.dumps({"cutoff_mass": cutoff_mass}).encode(),
        training={"seconds": 0, "losses": []},
        config=to_json(config),
    )


def publish_untrained(
    root: Path,
    data_folder: Path,
    *,
    version: str = "v1",
    num_shards: int = 2,
    seed: int = 0,
    similarity: str = "mixture",
    **stored: Any,
) -> Manifest:
    """A version of a model with random weights, encoded on the session's cluster: serving does not mind.

    Args:
        seed: of the weights.
    """
    from rails_ray import on_ray  # imports Ray

    config = replace(small_config(similarity), seed=seed, data=DataConfig(folder=str(data_folder)))
    write_untrained_run(Storage(str(root)), f"of-{version}", config, cutoff_mass=0.999)
    on_ray.encode(str(root), f"of-{version}", version=version, num_shards=num_shards, stored=stored)
    return on_ray.publish(str(root), version)


def publish_here(root: Path, num_shards: int = 2) -> Manifest:
    """As `publish_untrained`, of `write_text_data`, encoded in this process: no cluster is started."""
    storage = Storage(str(root))
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(root / "data"))))
    read, model = read_data(config, Storage(".")), DualEncoderTraining.of(config).model()
    items = encode_items(model, model.item_features(read.item_inputs))
    planned = parts.plan([len(items) // num_shards] * num_shards, part_items=len(items))
    for part in planned:
        own = range(part.first_row, part.first_row + part.num_items)
        named = pa.table({"item_id": read.item_ids.column.slice(part.first_row, part.num_items)})
        parts.write_part(storage, "v1", part, item_part(named, take(items, [*own])))
    files = {manifest.CONFIG: to_json(config), WEIGHTS: weight_files.to_bytes(model)}
    encoded = parts.finish(
        storage, "v1", planned, run="r", query={"text": "string"}, files=files.items(), cutoff_mass=0.999
    )
    return versions.publish(storage, encoded, "2026-01-01T00:00:00Z")


def publish_solar(
    root: Path, data_folder: Path, chunks: list[int], num_shards: int = 2, version: str = "v1", seed: int = 0
) -> Manifest:
    """A version of four chunks of SOLAR with random weights, of which only some are there."""
    from rails_ray import on_ray  # imports Ray

    store = Storage(str(root))
    config = replace(small_solar_config(), seed=seed, data=DataConfig(folder=str(data_folder)))
    data = read_data(config, store)
    own = SolarTraining.of(config)
    runs.begin(store, "solar", to_json(config), data.digest(), [piece.name for piece in own.pieces()])
    codes.write(store, "runs/solar", own.codes(data.item_ids))
    for number in chunks:
        chunk = own.chunk(number)
        chunk.learn(data.queries["train"].inputs)
        torch.nn.init.normal_(chunk.output.bias, generator=torch.Generator().manual_seed(number))
        validation, training = b'{"cutoff_mass": null}', {"seconds": 0, "losses": []}
        runs.write(
            store,
            runs.piece_run("solar", own.pieces()[number].name),
            weights=weight_files.to_bytes(chunk),
            validation=validation,
            training=training,
            config=to_json(config),
        )
    on_ray.encode(str(root), "solar", version=version, num_shards=num_shards, min_chunks=len(chunks))
    return on_ray.publish(str(root), version)


def times_of(folder: Path) -> dict[Path, int]:
    """When each file of a folder was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def mark(checkpoint: Path, seconds: float) -> None:
    """Let a checkpoint say that training took so much longer, which a run that begins anew would not know."""
    data = checkpoint.read_bytes()
    facts = json.loads(safe_open(checkpoint, "pt").metadata()["facts"])
    facts["seconds"] += seconds
    checkpoint.write_bytes(safetensors.torch.save(safetensors.torch.load(data), {"facts": json.dumps(facts)}))


def of_numbers(kind: str) -> tuple[RunConfig, Callable[[Path], Path]]:
    """A small SOLAR of such queries, and what writes them."""
    return small_solar_config(2, input=kind, ngram_sizes=()), partial(write_number_data, kind=kind)


def small_named_config() -> RunConfig:
    """A small run over vectors `title` and `body` of queries and items, whose gate alone is trained."""
    small = small_config()
    return small.with_family(
        encoder=NamedVectorsConfig(),
        components=replace(small.family.components, queries="given", items="given"),
        similarity=replace(small.family.similarity, num_query_components=0, num_item_components=0),
    )


def small_vector_config(kind: str = "mixture") -> RunConfig:
    """A small run over frozen vectors: "mixture" or "dot product" of projections, "cosine" of the vectors as they are,
    or a "mixture of given" vectors, three an item."""
    config = small_config("dot product" if kind in ("dot product", "cosine") else "mixture")
    config = config.with_family(encoder=VectorsConfig())
    if kind == "cosine":
        return config.with_family(components=ComponentsConfig(queries="given", items="given"), loss=NoneConfig())
    if kind == "mixture of given":
        return config.with_family(
            components=replace(config.family.components, items="given"),
            similarity=replace(config.family.similarity, num_item_components=3),
        )
    return config
