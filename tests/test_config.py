import copy
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray import build, build_data, config, recipes
from rails_ray.config import DataConfig, LossConfig, RunConfig
from rails_ray.data import sequences
from rails_ray.data.batch import PairSampler, WindowSampler
from rails_ray.encoders.solar import SolarConfig
from rails_ray.encoders.text import TransformerConfig
from rails_ray.similarities.dot_product import DotProductConfig
from rails_ray.similarities.look_up import LookUpConfig
from rails_ray.storage import manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.training.contrast import Gathered, Streamed, WithinBatch
from support.examples import (
    small_config,
    small_history_config,
    small_solar_config,
    write_sequence_data,
    write_text_data,
)


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_config_comes_back_from_its_json(recipe) -> None:
    assert config.from_json(config.to_json(recipe())) == recipe()


def test_every_field_of_solar_comes_back() -> None:
    made = small_solar_config()
    other = SolarConfig(
        num_chunks=3, num_buckets=7, codes="hashed", hidden=5, input="vector", num_inputs=9, ngram_sizes=(2,), width=11
    )
    loss = LossConfig(kind="bucket_cross_entropy", num_sampled_buckets=4)
    made = replace(made, encoder=other, similarity=LookUpConfig(values="logit"), loss=loss)
    back = config.from_json(config.to_json(made))
    assert back == made
    assert type(back.encoder) is SolarConfig
    assert type(back.similarity) is LookUpConfig


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_recipe_is_found_by_its_own_name(recipe) -> None:
    assert recipes.by_name(recipe().name) == recipe()


def test_an_unknown_recipe() -> None:
    with pytest.raises(ValueError, match=r"recipe must be one of emoji-mol, emoji-dot, text-mol, .*, got 'emoji'"):
        recipes.by_name("emoji")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"speed": 9}, "unexpected keyword argument 'speed'"),
        (lambda value: {key: v for key, v in value.items() if key != "loss"}, "'loss'"),
        (lambda value: value | {"training": {"num_steps": 0}}, "num_steps must be at least 1, got 0"),
        (lambda value: value | {"encoder": {"ngram_sizes": [1]}}, "ngram_sizes must be at least 2"),
        (lambda value: value | {"encoder": {"num_chunks": 3}}, "must have the fields of RunConfig, got: 'ngram_sizes'"),
        (lambda value: value | {"encoder": {"num_chunks": 0, "ngram_sizes": []}}, "num_chunks must be at least 1, got"),
        (lambda value: value | {"encoder": {"num_heads": 3}}, "width must be a multiple of the 3 heads, got 64"),
        (lambda value: [value], "must have the fields of RunConfig"),
    ],
)
def test_a_config_that_is_none(change, message: str) -> None:
    value = change(json.loads(config.to_json(small_config())))
    with pytest.raises(ValueError, match=message):
        config.from_json(json.dumps(value).encode())


@pytest.mark.parametrize("made", [small_config(), small_history_config()], ids=["texts", "histories"])
def test_initial_weights_are_the_seeds(made: RunConfig) -> None:
    first, second = (build.model(made) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_an_item_begins_near_a_query_of_the_same_words(similarity: str) -> None:
    model = build.model(small_config(similarity)).eval()
    features = model.query_features(["red car", "blue hat", "gold lamp"])
    query, items = model.encode_queries(features), model.encode_items(features)
    assert torch.allclose(query.components, items.components, atol=1e-6)


def test_packaged_data_is_written_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    settings = replace(small_config(), data=DataConfig(num_valid=20, num_test=20))
    first = build_data.data(settings, storage)
    (folder,) = (tmp_path / "data").iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(written) == {"items.parquet", "queries.parquet", "relevance.parquet"}
    assert build_data.data(settings, storage).queries["test"].inputs == first.queries["test"].inputs
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written


@pytest.fixture
def texts(tmp_path: Path) -> RunConfig:
    """A run on texts of the user's own."""
    return replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "mine"))))


@pytest.fixture
def histories(tmp_path: Path) -> RunConfig:
    """A run on sequences of the user's own; how many items there are is left to them."""
    made = small_history_config()
    folder = write_sequence_data(tmp_path / "sequences")
    return replace(made, data=DataConfig(folder=str(folder)), encoder=replace(made.encoder, num_items=0))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "storage"))


def test_data_of_the_user(texts: RunConfig, histories: RunConfig, storage: Storage) -> None:
    assert len(build_data.data(texts, storage).item_ids) == 60
    assert len(build_data.data(histories, storage).item_ids) == 12
    assert storage.list(".") == []  # only what is packaged is written


def test_histories_need_a_folder(storage: Storage) -> None:
    with pytest.raises(ValueError, match=r"recipe small needs --data\.folder, with items\.parquet and .*, got none"):
        build_data.data(small_history_config(), storage)


def test_a_config_is_completed_by_its_data(histories: RunConfig, storage: Storage) -> None:
    made = build_data.for_data(histories, build_data.data(histories, storage))
    assert made.encoder.num_items == 12
    assert made.encoder.corpus
    assert build_data.for_data(made, build_data.data(made, storage)) == made
    assert config.from_json(config.to_json(made)) == made


def test_a_folder_is_named_so_that_any_process_finds_it(texts: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = Path(str(texts.data.folder))
    monkeypatch.chdir(absolute.parent)
    relative = replace(texts, data=DataConfig(folder=absolute.name))
    data = build_data.data(texts, Storage("unused"))
    assert build_data.for_data(relative, data).data.folder == str(absolute.resolve())
    remote = replace(texts, data=DataConfig(folder="s3://bucket/data"))
    assert build_data.for_data(remote, data) == remote


def test_a_config_for_other_data(histories: RunConfig, storage: Storage) -> None:
    data = build_data.data(histories, storage)
    wrong = replace(histories, encoder=replace(histories.encoder, num_items=9))
    with pytest.raises(ValueError, match=r"encoder\.num_items must be the 12 items of .*, or 0, got 9"):
        build_data.for_data(wrong, data)
    made = build_data.for_data(histories, data)
    items = Path(str(histories.data.folder)) / "items.parquet"
    pq.write_table(pq.read_table(items).take([1, 0, *range(2, 12)]), items)  # as many, in another order
    with pytest.raises(ValueError, match="must hold the items that the run was trained on, in their order, got others"):
        build_data.for_data(made, build_data.data(made, storage))
    with pytest.raises(ValueError, match="must hold the items that the run was trained on"):
        build_data.corpus(made, storage)


def test_batches_are_those_that_the_encoder_reads(texts: RunConfig, histories: RunConfig, storage: Storage) -> None:
    for made, kind in ((texts, PairSampler), (histories, WindowSampler)):
        data = build_data.data(made, storage)
        made = build_data.for_data(made, data)
        model = build.model(made)
        sampler = build.sampler(made, model, data, rank=1, num_workers=2)
        assert isinstance(sampler, kind)
        assert len(sampler.batch(0).queries) == made.training.batch_size // 2
        step = build.training_step(model, made, lambda mean: mean)
        assert step(sampler.batch(0)).isfinite()


def test_the_corpus_of_texts(texts: RunConfig, storage: Storage) -> None:
    corpus = build_data.corpus(texts, storage)
    data = build_data.data(texts, storage)
    assert corpus.items.column_names == ["item_id", "input"]
    assert corpus.items["item_id"].to_pylist() == data.item_ids
    assert build_data.item_inputs(corpus.items) == data.item_inputs
    assert (corpus.query, corpus.files) == ({"text": "string"}, {})

    file = Path(str(texts.data.folder)) / "items.parquet"
    items = pq.read_table(file)
    pq.write_table(items.append_column("title", pa.array([f"T{row}" for row in range(60)])), file)
    titled = build_data.corpus(texts, storage).items
    assert titled["title"].to_pylist() == [f"T{row}" for row in range(60)]
    assert build_data.item_inputs(titled) == [f"T{row}\n{text}" for row, text in enumerate(data.item_inputs)]


def test_the_corpus_of_histories(histories: RunConfig, storage: Storage) -> None:
    corpus = build_data.corpus(histories, storage)
    data = build_data.data(histories, storage)
    assert corpus.items["item_id"].to_pylist() == data.item_ids
    assert corpus.items["title"].to_pylist() == data.titles
    inputs = build_data.item_inputs(corpus.items.slice(3, 4))
    assert isinstance(inputs, np.ndarray)
    assert inputs.tolist() == [3, 4, 5, 6]
    model = build.model(build_data.for_data(histories, data))
    assert model.encode_items(model.item_features(inputs)).components.shape[0] == 4
    assert corpus.query == {"history": "string", "user_id": "string"}
    stored = {name: pq.read_table(io.BytesIO(data)) for name, data in corpus.files.items()}
    assert stored[manifest.ITEMS]["item_id"].to_pylist() == data.item_ids
    user_ids, rows = sequences.histories_of(stored[manifest.HISTORIES])
    assert user_ids == data.user_ids
    assert list(map(list, rows)) == list(map(list, data.histories))
    assert model.encode_queries(model.query_features(rows)).components.shape[0] == len(user_ids)


TEXTS = small_config()
HISTORIES = small_history_config()
SOLAR = small_solar_config()


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (HISTORIES, {"negatives": "in_batch"}, r"training\.negatives must be uniform for .* histories, got 'in_batch'"),
        (HISTORIES, {"encode_size": 8}, r"training\.encode_size must be 0 for a model of histories, got 8"),
        (TEXTS, {"block_size": 8}, "block_size needs negatives cross_device, got 8 and uniform"),
        (TEXTS, {"encode_size": -1}, "encode_size must be at least 0, got -1"),
        (TEXTS, {"precision": "auto"}, "must be float32 or bfloat16 for a model that is not SOLAR, got auto"),
        (SOLAR, {"negatives": "in_batch"}, r"for SOLAR, whose negatives are buckets, got in_batch and 0"),
        (SOLAR, {"encode_size": 8}, r"training\.encode_size 0 for SOLAR, whose .* are buckets, got uniform and 8"),
    ],
)
def test_training_that_cannot_be(made: RunConfig, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(made, training=replace(made.training, **fields))


@pytest.mark.parametrize("kind", ["pointwise", "maximum_likelihood"])
def test_a_loss_that_needs_all_items_at_once_refuses_blocks(kind: str) -> None:
    training = replace(TEXTS.training, negatives="cross_device", block_size=8)
    with pytest.raises(ValueError, match=rf"training\.block_size must be 0 for loss\.kind {kind}, got 8: beta_nce, "):
        replace(TEXTS, training=training, loss=LossConfig(kind=kind))


@pytest.mark.parametrize(
    ("fields", "contrast"),
    [
        ({}, WithinBatch),
        ({"negatives": "in_batch"}, WithinBatch),
        ({"negatives": "cross_device"}, Gathered),
        ({"negatives": "cross_device", "block_size": 8}, Streamed),
    ],
)
def test_negatives_choose_what_queries_are_compared_with(fields: dict[str, object], contrast: type) -> None:
    chosen = build.contrast(replace(TEXTS, training=replace(TEXTS.training, **fields)))
    assert type(chosen) is contrast
    assert getattr(chosen, "block_size", 8) == 8


@pytest.mark.parametrize(
    ("made", "name", "message"),
    [
        (TEXTS.training, "negatives", "negatives must be one of uniform, in_batch, cross_device, got 'other'"),
        (TEXTS.training, "precision", "precision must be one of float32, bfloat16, auto, got 'other'"),
        (TransformerConfig(), "pooling", "pooling must be mean or aggregation, got 'other'"),
        (SOLAR.similarity, "values", "values must be probability or logit, got 'other'"),
        (SOLAR.encoder, "codes", "codes must be one of balanced, hashed, got 'other'"),
        (SOLAR.encoder, "input", "input must be one of text, features, vector, got 'other'"),
    ],
)
def test_a_word_that_is_none_of_a_fields(made: object, name: str, message: str) -> None:
    """As a stored config may hold it: in tests alone, types are checked before."""
    other = copy.copy(made)
    object.__setattr__(other, name, "other")
    with pytest.raises(ValueError, match=message):
        other.__post_init__()


def test_a_config_that_was_stored_before_there_were_other_negatives() -> None:
    stored = json.loads(config.to_json(TEXTS))
    for name in ("negatives", "encode_size", "block_size", "precision"):
        del stored["training"][name]
    assert config.from_json(json.dumps(stored).encode()) == TEXTS


LOSS = LossConfig(kind="bucket_cross_entropy")
OTHER_LOSSES = [kind for kind in get_args(get_type_hints(LossConfig)["kind"]) if kind != LOSS.kind]


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (
            SOLAR,
            {"similarity": DotProductConfig()},
            "similarity must be LookUpConfig for SOLAR and for nothing else, got Dot",
        ),
        (
            TEXTS,
            {"similarity": LookUpConfig()},
            "similarity must be LookUpConfig .*, got LookUpConfig with TwoTowerConfig",
        ),
        (HISTORIES, {"similarity": LookUpConfig()}, "got LookUpConfig with SasrecConfig"),
        (TEXTS, {"loss": LOSS}, r"loss\.kind must be bucket_cross_entropy .* with TwoTowerConfig"),
        (
            TEXTS,
            {"similarity": LookUpConfig(), "loss": LOSS},
            "similarity must be LookUpConfig for SOLAR and for nothing else",
        ),
        (TEXTS, {"encoder": SolarConfig()}, "similarity must be LookUpConfig .*, got Mixture.* with SolarConfig"),
        *[
            (
                SOLAR,
                {"loss": LossConfig(kind=kind)},
                rf"loss\.kind must be bucket_cross_entropy .*, got {kind} with SolarConfig",
            )
            for kind in OTHER_LOSSES
        ],
        (
            SOLAR,
            {"loss": replace(LOSS, glas_weight=0.5)},
            r"loss\.glas_weight must be 0 without a dot product, got 0.5",
        ),
    ],
)
def test_parts_that_are_solars_and_parts_that_are_not(made: RunConfig, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(made, **fields)


def test_fewer_than_no_sampled_buckets() -> None:
    with pytest.raises(ValueError, match="num_sampled_buckets must be at least 0, got -1"):
        LossConfig(num_sampled_buckets=-1)
