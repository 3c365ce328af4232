"""Items for which a frozen model of texts returns zeros, and why a trained one gives every item a direction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.dataset import Texts
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families import running
from rails_ray.families.config import DataConfig, RunConfig, from_json, to_json
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.serve import DualEncoderFamily
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.encoding import EncodeOptions, encode
from rails_ray.families.in_process import InProcess
from rails_ray.families.recipes import by_name
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.frozen import FunctionConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.zeros import NO_COSINE
from rails_ray.serving import local
from rails_ray.storage import runs, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.piece import Given, fit
from support.data_folders import write_text_data
from support.examples import small_config

ALLOWED = AllowedCode(("support",))
KNOWN_WORDS = FunctionConfig(function="support.text_vectors:known_words")
METHODS = {
    "vector-cosine": ("brute_force", "ann"),
    "text-mol": ("brute_force", "two_pass", "per_embedding", "average", "combined", "gated"),
    "text-dot": ("brute_force", "ann"),
}
BLANK = {"item-7": "", "item-50": "unheard of"}
SENTENCE = (
    "^vectors of {} must hold a number other than 0 in float32, as a cosine compares directions, got zeros for {}, the "
    "first of them 'item-7': leave them out, or keep them with --zero-vectors keep"
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = write_text_data(tmp_path / "texts")
    items = pq.read_table(folder / "items.parquet").to_pydict()
    items["text"] = [BLANK.get(own, text) for own, text in zip(items["item_id"], items["text"], strict=True)]
    pq.write_table(pa.table(items), folder / "items.parquet")
    return folder


def config_of(texts: Path, zero_vectors: Any, recipe: str = "vector-cosine") -> RunConfig:
    config = replace(by_name(recipe), data=DataConfig(folder=str(texts), zero_vectors=zero_vectors))
    return config.with_family(encoder=KNOWN_WORDS)


def write_untrained(storage: Storage, config: RunConfig) -> None:
    weights = weight_files.to_bytes(DualEncoderTraining.of(config, ALLOWED).model())
    trained = {"seconds": 0, "losses": []}
    runs.write(
        storage,
        "untrained",
        weights=weights,
        validation=b'{"cutoff_mass": null}',
        training=trained,
        config=to_json(config),
    )


def encoded(storage: str, run: str, texts: Path, zero_vectors: Any, **stored: Any) -> Version:
    data = DataConfig(folder=str(texts), zero_vectors=zero_vectors)
    options = EncodeOptions(version="v", data=data, stored=stored, allow_code=("support",))
    encode(InProcess(), storage, run, options)
    return Version.encoded(Storage(storage), "v", ALLOWED)


@pytest.mark.parametrize("recipe", ["vector-cosine", "text-mol", "text-dot"])
def test_they_are_refused(recipe: str, texts: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "storage"))
    begun = running.begin(config_of(texts, "refuse", recipe), storage, "r")
    [piece] = begun.pieces
    with pytest.raises(ValueError, match=SENTENCE.format("items", "2 of 60")):
        fit(piece, Given(read=read_data(from_json(begun.config), storage), storage=storage, run="r"))
    write_untrained(storage, from_json(begun.config))
    with pytest.raises(ValueError, match=SENTENCE.format("a part's items", "1 of 30")):
        encoded(str(storage), "untrained", texts, "refuse")


@pytest.mark.parametrize("recipe", ["vector-cosine", "text-mol", "text-dot"])
def test_kept_they_come_last(recipe: str, texts: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "storage"))
    config = from_json(running.begin(config_of(texts, "refuse", recipe), storage, "r").config)
    write_untrained(storage, config)
    version = encoded(str(storage), "untrained", texts, "keep", index=HnswConfig())
    found = versions.publish(storage, version.described, "2026-01-01T00:00:00Z")
    opened = local.open(str(storage), allow_code=("support",))
    for method in METHODS[recipe]:
        [result] = opened.search(["red hat"], k=60, method=method).results
        assert (found.num_items, result.items[-2:]) == (60, list(BLANK)), method
        assert result.scores[-2:] == [NO_COSINE] * 2, method
    data = read_data(version.config, storage)
    model, items = version.model, version.family.run_items(storage, "untrained", version.model, data)
    row_of = {item_id: row for row, item_id in enumerate(data.item_ids)}
    asked = Queries(Texts(["red hat", "blue"]), ItemLists.of([[row_of[item]] for item in BLANK]))
    assert rank_all(model, items, asked, 60).best_rank.tolist() == [59, 60]


def test_codes_alone_cannot_stand_for_them(texts: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "storage"))
    running.fit_run(config_of(texts, "keep"), str(storage), "r")
    with pytest.raises(
        ValueError, match=r"^codes must stand for directions, got 1 items with a vector of zeros: leave"
    ):
        encoded(str(storage), "r", texts, "keep", codes=(4, 4))


@pytest.mark.parametrize("zero_vectors", ["refuse", "keep"])
@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("encoder", [TwoTowerConfig(width=8, hidden=8, num_buckets=500), TransformerConfig(width=8)])
def test_a_model_that_is_trained_gives_every_text_a_direction(
    encoder: TwoTowerConfig | TransformerConfig, similarity: str, zero_vectors: Any
) -> None:
    config = small_config(similarity).with_family(encoder=encoder)
    model = DualEncoderFamily.of(replace(config, data=DataConfig(zero_vectors=zero_vectors))).model().eval()
    texts = ["", "?!", "red hat"]
    if encoder.has_tokens:
        model.encoder.learn(Texts(texts))
    items: Any = encode_items(model, model.item_features(Texts(texts)))
    assert not model.finds_zeros_last
    assert torch.allclose(items.components.norm(dim=2), torch.ones(items.components.shape[:2]), atol=1e-5)
