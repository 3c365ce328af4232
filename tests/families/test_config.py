import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.data.batch import PairSampler, WindowSampler
from rails_ray.data.corpus import item_inputs
from rails_ray.data.forms import history as history_form
from rails_ray.families import config, recipes
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_corpus, read_data
from rails_ray.families.dual_encoder.config import (
    CrossDeviceNegatives,
    InBatchNegatives,
    Loss,
    Negatives,
    UniformNegatives,
)
from rails_ray.families.dual_encoder.family import DualEncoderFamily
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.encoders.solar import ChunksConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.losses.bucket_cross_entropy import BucketCrossEntropyConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.look_up import LookUpConfig
from rails_ray.storage import manifest, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.contrast import Gathered, Streamed, WithinBatch
from rails_ray.training.objectives import ContrastiveConfig, MaximumLikelihoodConfig, PointwiseConfig
from rails_ray.training.terms import TermsConfig
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
    sizes = ChunksConfig(
        num_chunks=3,
        num_buckets=7,
        codes="hashed",
        hidden=9,
        num_inputs=11,
        ngram_sizes=(3, 5),
        reads_items=True,
        width=2,
    )
    made = small_solar_config().with_family(
        encoder=sizes,
        similarity=LookUpConfig(values="logit"),
        loss=BucketCrossEntropyConfig(num_sampled_buckets=4),
    )
    assert config.from_json(config.to_json(made)) == made


@pytest.mark.parametrize(
    "fields",
    [
        {"encoder": TransformerConfig(width=8)},
        {"encoder": SasrecConfig(width=8, num_items=3, corpus="a")},
        {"similarity": DotProductConfig(temperature=0.5)},
        {"loss": ContrastiveConfig(kind="exp_nce")},
        {"loss": PointwiseConfig()},
        {"loss": MaximumLikelihoodConfig()},
        {"negatives": InBatchNegatives(), "encode_size": 4},
        {"negatives": CrossDeviceNegatives(block_size=3)},
    ],
    ids=str,
)
def test_every_member_of_a_union_comes_back_by_its_kind(fields: dict[str, Any]) -> None:
    made = small_config().with_family(**fields)
    back = config.from_json(config.to_json(made))
    assert back == made
    assert {name: type(getattr(back.family, name)) for name in fields} == {
        name: type(value) for name, value in fields.items()
    }


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_recipe_is_found_by_its_own_name(recipe) -> None:
    assert recipes.by_name(recipe().name) == recipe()


def test_an_unknown_recipe() -> None:
    with pytest.raises(ValueError, match=r"recipe must be one of emoji-mol, emoji-dot, text-mol, .*, got 'emoji'"):
        recipes.by_name("emoji")


def of_family(value: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return value | {"family": value["family"] | fields}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"speed": 9}, "RunConfig, got: speed: Unexpected keyword argument"),
        (lambda value: value | {"training": {"num_steps": 0}}, "num_steps must be at least 1, got 0"),
        (lambda value: value | {"training": {"num_steps": "7"}}, "training.num_steps: Input should be a valid integer"),
        (lambda value: value | {"family": {"kind": "other"}}, "family: Input tag 'other' .* 'dual_encoder', 'solar'"),
        (lambda value: value | {"family": {}}, "family: Unable to extract tag using discriminator 'kind'"),
        (lambda value: of_family(value, speed=9), "family.dual_encoder.speed: Unexpected keyword argument"),
        (lambda value: of_family(value, encoder={"kind": "two_tower", "ngram_sizes": [1]}), "must be at least 2"),
        (lambda value: of_family(value, encoder={"kind": "two_tower", "num_heads": 2}), "num_heads: Unexpected"),
        (
            lambda value: of_family(value, encoder={"kind": "sasrec", "num_heads": 3}),
            "of the 3 heads, got 64",
        ),
        (lambda value: [value], "must have the fields of RunConfig"),
    ],
)
def test_a_config_that_is_none(change, message: str) -> None:
    value = change(json.loads(config.to_json(small_config())))
    with pytest.raises(ValueError, match=message):
        config.from_json(json.dumps(value).encode())


def test_bytes_that_are_no_config() -> None:
    with pytest.raises(ValueError, match="a run's config must have the fields of RunConfig, got: : Invalid JSON"):
        config.from_json(b"{")


@pytest.mark.parametrize("made", [small_config(), small_history_config()], ids=["texts", "histories"])
def test_initial_weights_are_the_seeds(made: RunConfig) -> None:
    first, second = (DualEncoderFamily.of(made).model() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
def test_an_item_begins_near_a_query_of_the_same_words(similarity: str) -> None:
    model = DualEncoderFamily.of(small_config(similarity)).model().eval()
    features = model.query_features(["red car", "blue hat", "gold lamp"])
    query, items = model.encode_queries(features), model.encode_items(features)
    assert torch.allclose(query.components, items.components, atol=1e-6)


def test_a_mixture_begins_as_a_dot_product() -> None:
    """Its gates lie on the pairs p_x = p_q, alike: the mean of their cosines is one of longer vectors."""
    config = small_config()
    similarity = replace(config.family.similarity, num_query_components=4)
    model = DualEncoderFamily.of(config.with_family(similarity=similarity)).model().eval()
    query = model.encode_queries(model.query_features(["red car", "blue hat", "gold lamp"]))
    items = model.encode_items(model.item_features(["rose", "red car", "a lamp of gold", "hat"]))
    gates = model.score(query, items).gates.unflatten(2, (4, 2))
    is_open = torch.eye(4, 2).bool()
    assert (gates[:, :, ~is_open] < 0.02).all()
    assert torch.allclose(gates[:, :, is_open], torch.tensor(0.5), atol=0.2)


def test_a_gate_reads_what_its_config_says() -> None:
    config = small_config()
    similarity = replace(config.family.similarity, gate_inputs=("item",))
    model = DualEncoderFamily.of(config.with_family(similarity=similarity)).model()
    query = model.encode_queries(model.query_features(["red", "blue sky"]))
    items = model.encode_items(model.item_features(["rose", "heaven"]))
    assert (query.gate == 1).all()
    assert not (items.gate == 1).any()


def test_packaged_data_is_written_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    settings = replace(small_config(), data=DataConfig(num_valid=20, num_test=20))
    first = read_data(settings, storage)
    (folder,) = (tmp_path / "data").iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(written) == {"items.parquet", "queries.parquet", "relevance.parquet"}
    assert read_data(settings, storage).queries["test"].inputs == first.queries["test"].inputs
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
    return replace(
        made,
        data=DataConfig(folder=str(folder)),
        family=replace(made.family, encoder=replace(made.family.encoder, num_items=0)),
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "storage"))


def test_data_of_the_user(texts: RunConfig, histories: RunConfig, storage: Storage) -> None:
    assert len(read_data(texts, storage).item_ids) == 60
    assert len(read_data(histories, storage).item_ids) == 12
    assert storage.list(".") == []  # only what is packaged is written


def test_histories_need_a_folder(storage: Storage) -> None:
    with pytest.raises(
        ValueError, match=r"recipe small needs a data set with items and interactions, got none: name --data\.folder"
    ):
        read_data(small_history_config(), storage)


def test_a_config_is_completed_by_its_data(histories: RunConfig, storage: Storage) -> None:
    made = for_data(histories, read_data(histories, storage))
    assert made.family.encoder.num_items == 12
    assert made.family.encoder.corpus
    assert for_data(made, read_data(made, storage)) == made
    assert config.from_json(config.to_json(made)) == made


def test_a_folder_is_named_so_that_any_process_finds_it(texts: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = Path(str(texts.data.folder))
    monkeypatch.chdir(absolute.parent)
    relative = replace(texts, data=DataConfig(folder=absolute.name))
    data = read_data(texts, Storage("unused"))
    assert for_data(relative, data).data.folder == str(absolute.resolve())
    remote = replace(texts, data=DataConfig(folder="s3://bucket/data"))
    assert for_data(remote, data) == remote


def test_a_config_for_other_data(histories: RunConfig, storage: Storage) -> None:
    data = read_data(histories, storage)
    wrong = histories.with_family(encoder=replace(histories.family.encoder, num_items=9))
    with pytest.raises(ValueError, match=r"encoder\.num_items must be the 12 items of .*, or 0, got 9"):
        for_data(wrong, data)
    made = for_data(histories, data)
    items = Path(str(histories.data.folder)) / "items.parquet"
    pq.write_table(pq.read_table(items).take([1, 0, *range(2, 12)]), items)  # as many, in another order
    with pytest.raises(ValueError, match="must hold the items that the run was trained on, in their order, got others"):
        for_data(made, read_data(made, storage))
    with pytest.raises(ValueError, match="must hold the items that the run was trained on"):
        read_corpus(made, storage)


def test_batches_are_those_that_the_encoder_reads(texts: RunConfig, histories: RunConfig, storage: Storage) -> None:
    for made, kind in ((texts, PairSampler), (histories, WindowSampler)):
        data = read_data(made, storage)
        made = for_data(made, data)
        model = DualEncoderFamily.of(made).model()
        sampler = DualEncoderFamily.of(made).sampler(model, data, rank=1, num_workers=2)
        assert isinstance(sampler, kind)
        assert len(sampler.batch(0).queries) == made.training.batch_size // 2
        step = DualEncoderFamily.of(made).training_step(model, lambda mean: mean)
        assert step(sampler.batch(0)).isfinite()


def test_the_corpus_of_texts(texts: RunConfig, storage: Storage) -> None:
    corpus = read_corpus(texts, storage)
    data = read_data(texts, storage)
    items = corpus.items.read().table
    assert items.column_names == ["item_id", "input"]
    assert items["item_id"].to_pylist() == data.item_ids
    assert item_inputs(items) == data.item_inputs
    assert (corpus.query, corpus.files) == ({"text": "string"}, {})

    file = Path(str(texts.data.folder)) / "items.parquet"
    items = pq.read_table(file)
    pq.write_table(items.append_column("title", pa.array([f"T{row}" for row in range(60)])), file)
    titled = read_corpus(texts, storage).items.read().table
    assert titled["title"].to_pylist() == [f"T{row}" for row in range(60)]
    assert item_inputs(titled) == [f"T{row}\n{text}" for row, text in enumerate(data.item_inputs)]


def test_the_corpus_of_histories(histories: RunConfig, storage: Storage) -> None:
    corpus = read_corpus(histories, storage)
    data = read_data(histories, storage)
    items = corpus.items.read().table
    assert items["item_id"].to_pylist() == data.item_ids
    assert items["title"].to_pylist() == data.titles
    inputs = item_inputs(items.slice(3, 4))
    assert isinstance(inputs, np.ndarray)
    assert inputs.tolist() == [3, 4, 5, 6]
    model = DualEncoderFamily.of(for_data(histories, data)).model()
    assert model.encode_items(model.item_features(inputs)).components.shape[0] == 4
    assert corpus.query == {"history": "string", "user_id": "string"}
    stored = {name: pq.read_table(io.BytesIO(data)) for name, data in corpus.files.items()}
    assert stored[manifest.ITEMS]["item_id"].to_pylist() == data.item_ids
    user_ids, rows = history_form.histories_of(stored[manifest.HISTORIES])
    assert user_ids == data.user_ids
    assert list(map(list, rows)) == list(map(list, data.histories))
    assert model.encode_queries(model.query_features(rows)).components.shape[0] == len(user_ids)


TEXTS = small_config()


HISTORIES = small_history_config()
SOLAR = small_solar_config()


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (
            HISTORIES,
            {"negatives": InBatchNegatives()},
            r"negatives\.kind must be one of uniform, popularity, mixed for a model of histories, got 'in_batch'",
        ),
        (HISTORIES, {"encode_size": 8}, r"encode_size must be 0 for a model of histories, got 8"),
        (TEXTS, {"encode_size": -1}, "encode_size must be at least 0, got -1"),
    ],
)
def test_training_that_cannot_be(made: RunConfig, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.with_family(**fields)


@pytest.mark.parametrize("loss", [PointwiseConfig(), MaximumLikelihoodConfig()], ids=str)
def test_a_loss_that_needs_all_items_at_once_refuses_blocks(loss: Loss) -> None:
    message = rf"negatives\.block_size must be 0 for loss\.kind {loss.kind}, got 8: only beta_nce, exp_nce and"
    with pytest.raises(ValueError, match=message):
        TEXTS.with_family(negatives=CrossDeviceNegatives(block_size=8), loss=loss)


@pytest.mark.parametrize(
    ("negatives", "contrast"),
    [
        (UniformNegatives(), WithinBatch),
        (InBatchNegatives(), WithinBatch),
        (CrossDeviceNegatives(), Gathered),
        (CrossDeviceNegatives(block_size=8), Streamed),
    ],
    ids=str,
)
def test_negatives_choose_what_queries_are_compared_with(negatives: Negatives, contrast: type) -> None:
    chosen = DualEncoderFamily.of(TEXTS.with_family(negatives=negatives)).contrast()
    assert type(chosen) is contrast
    assert getattr(chosen, "block_size", 8) == 8


@pytest.mark.parametrize(
    ("made", "name", "message"),
    [
        (TEXTS.training, "precision", "precision must be one of float32, bfloat16, auto, got 'other'"),
        (TransformerConfig(), "pooling", "pooling must be mean or aggregation, got 'other'"),
        (SOLAR.family.similarity, "values", "values must be probability or logit, got 'other'"),
        (SOLAR.family.encoder, "codes", "codes must be one of balanced, hashed, got 'other'"),
        (SOLAR.family.encoder, "input", "input must be one of text, features, vector, got 'other'"),
    ],
)
def test_a_word_that_is_none_of_a_fields(made: object, name: str, message: str) -> None:
    """As a stored config may hold it: in tests alone, types are checked before."""
    other = copy.copy(made)
    object.__setattr__(other, name, "other")
    with pytest.raises(ValueError, match=message):
        other.__post_init__()


def test_a_config_that_was_stored_before_a_field_was_there_has_its_default() -> None:
    stored = json.loads(config.to_json(TEXTS))
    del stored["training"]["precision"]
    del stored["family"]["encode_size"]
    assert config.from_json(json.dumps(stored).encode()) == TEXTS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BucketCrossEntropyConfig(num_sampled_buckets=-1), "num_sampled_buckets must be at least 0, got -1"),
        (lambda: UniformNegatives(num_items=0), "num_items must be at least 1, got 0"),
        (lambda: CrossDeviceNegatives(block_size=-1), "block_size must be at least 0, got -1"),
        (lambda: ContrastiveConfig(pointwise_weight=-0.5), "pointwise_weight must be at least 0, got -0.5"),
        (lambda: TermsConfig(mutual_information_weight=-1.0), "mutual_information_weight must be at least 0, got -1.0"),
    ],
)
def test_a_size_or_weight_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_config_from_before_seen_items_could_be_chosen(tmp_path: Path) -> None:
    """It excludes them, and its unfinished run goes on; with a choice it is another run."""
    made, storage = small_history_config(), Storage(str(tmp_path))
    fields = json.loads(config.to_json(made))
    assert fields["data"].pop("exclude_seen", "none") is None
    before = json.dumps(fields).encode()
    assert config.from_json(before) == made
    assert made.data.excludes_seen
    runs.begin(storage, "r", before, "digest")
    runs.begin(storage, "r", config.to_json(made), "digest")
    chosen = replace(made, data=replace(made.data, exclude_seen=False))
    assert not chosen.data.excludes_seen
    with pytest.raises(ValueError, match=r"got another data\.exclude_seen: False instead of None"):
        runs.begin(storage, "r", config.to_json(chosen), "digest")
