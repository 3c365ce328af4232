from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rails_ray.data.corpus import Corpus, ListedItems
from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import read_data
from rails_ray.families.items import Fitting, ItemEncoder
from rails_ray.families.solar.model import Predicted, Solar, predicted_buckets
from rails_ray.families.solar.train import SolarTraining
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.bags import Bags
from rails_ray.modules.encoders.solar import Chunk
from rails_ray.modules.losses.bucket_cross_entropy import BucketCrossEntropyConfig
from rails_ray.modules.quantizers import random_codes
from rails_ray.modules.similarities.look_up import LookUp, LookUpConfig
from rails_ray.modules.similarities.states import Codes
from rails_ray.storage import codes, manifest, parquet, parts
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run
from support.data_folders import write_text_data
from support.examples import small_config, small_solar_config
from support.numbers_data import INPUTS, data_of, texts, with_encoder

CONFIG = small_solar_config()
ITEM_IDS = [f"item-{row}" for row in range(60)]
TEXTS = ["red car", "blue hat"]


def weights_of(numbers: list[int], config: RunConfig = CONFIG) -> list[tuple[str, bytes]]:
    """Those of chunks that have learnt the words of two texts."""
    found = []
    for number in numbers:
        chunk = SolarTraining.of(config).chunk(number)
        chunk.learn(TEXTS)
        found.append((f"chunk-{number:03d}/model.safetensors", weight_files.to_bytes(chunk)))
    return found


def test_a_chunks_initial_weights_are_the_runs_seed_and_its_number() -> None:
    before = torch.get_rng_state()
    first, again, other, of_another_run = (
        weight_files.copy(SolarTraining.of(replace(CONFIG, seed=seed)).chunk(number))
        for seed, number in ((5, 1), (5, 1), (5, 2), (6, 1))
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert first["_extra_state"].tolist() == [5001]
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name in ("input.weight", "output.weight", "_extra_state"):
        assert not torch.equal(first[name], other[name])
        assert not torch.equal(first[name], of_another_run[name])


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [2], [3, 1]])
def test_a_trained_model_has_the_chunks_whose_weights_there_are(numbers: list[int]) -> None:
    model = training_family(CONFIG).trained_model(iter(weights_of(numbers)))
    assert isinstance(model, Solar)
    assert not model.training
    assert sorted(map(int, model.chunks)) == sorted(numbers)
    tables = model.encode_queries(model.query_features(TEXTS)).tables
    for number in range(4):
        if number not in numbers:
            assert not tables[:, number].any()
            continue
        chunk = SolarTraining.of(CONFIG).chunk(number)
        chunk.learn(TEXTS)
        expected = chunk(chunk.features(TEXTS)).sigmoid() / len(numbers)
        assert torch.allclose(tables[:, number], expected, atol=1e-7)


def test_weights_of_another_chunk_or_none() -> None:
    [(_, weights)] = weights_of([1])
    with pytest.raises(ValueError, match="weights of a chunk must be of seed 2, got seed 1: train it again"):
        training_family(CONFIG).trained_model([("chunk-002/model.safetensors", weights)])
    with pytest.raises(ValueError, match="a model must have at least 1 trained chunk, got none"):
        training_family(CONFIG).trained_model([])


@pytest.mark.parametrize("item_ids", [ITEM_IDS, list(range(100, 160))], ids=["text", "integer"])
def test_codes_are_those_of_the_config(item_ids: list[str] | list[int]) -> None:
    balanced = SolarTraining.of(CONFIG).codes(item_ids)
    assert balanced.item_ids == item_ids
    assert balanced.codes.dtype == np.int32
    assert (balanced.codes == random_codes.balanced(60, 4, 20, 0)).all()
    assert (random_codes.loads(balanced.codes, 20) == 3).all()
    hashed = SolarTraining.of(with_encoder(codes="hashed")).codes(item_ids)
    assert (hashed.codes == random_codes.hashed(item_ids, 4, 20, 0)).all()
    other = SolarTraining.of(replace(CONFIG, seed=1)).codes(item_ids)
    assert (other.codes != balanced.codes).any()


@pytest.mark.parametrize("kind", ["balanced", "hashed"])
def test_there_are_no_more_buckets_than_items(kind: str) -> None:
    with pytest.raises(ValueError, match=r"encoder\.num_buckets must be at most the 60 items, got 100"):
        SolarTraining.of(with_encoder(num_buckets=100, codes=kind)).codes(ITEM_IDS)
    assert SolarTraining.of(with_encoder(num_buckets=60, codes=kind)).codes(ITEM_IDS).codes.max() < 60


def test_items_that_are_known_keep_their_codes() -> None:
    """Some went, some came, and the order is another."""
    known = SolarTraining.of(CONFIG).codes(ITEM_IDS)
    item_ids = ["new", *reversed(ITEM_IDS[10:]), "newer"]
    found, is_new = SolarTraining.of(CONFIG).codes_of(known, item_ids)
    assert found.item_ids == item_ids
    assert is_new.tolist() == [True, *[False] * 50, True]
    assert (found.codes[1:-1] == known.codes[:9:-1]).all()
    assert (found.codes[is_new] == random_codes.add(known.codes[10:], ["new", "newer"], num_buckets=20, seed=0)).all()
    again, is_new = SolarTraining.of(CONFIG).codes_of(found, item_ids)
    assert not is_new.any()
    assert (again.codes == found.codes).all()


def called(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def fitting(storage: Storage, items: dict[str, Any], *, has_texts: bool = True, **fields: Any) -> Fitting:
    """Of a version v of run r."""
    corpus = Corpus(ListedItems(pa.table(items)), {}, has_texts=has_texts)
    weights = {"chunk-000/model.safetensors": "abc"}
    run = Run(name="r", config=to_json(CONFIG), weights_sha256=weights, validation={}, training={})
    own = {"storage": storage, "folder": "versions/v", "run": run, "corpus": corpus, "training_queries": dict}
    return Fitting(**{**own, "new_codes": "least_loaded", "remotely": called, **fields})


def test_codes_are_made_once_for_a_version_and_its_items_looked_up(tmp_path: Path) -> None:
    storage, own = Storage(str(tmp_path)), SolarTraining.of(CONFIG)
    codes.write(storage, "runs/r", own.codes(ITEM_IDS))
    item_ids = ["new", *ITEM_IDS]
    asked = fitting(storage, {"item_id": item_ids, "input": item_ids})
    decided = own.fit(asked)
    assert decided.facts == {"new_codes": "least_loaded"}
    assert not codes.exist(storage, "versions/v")
    decided.store()
    expected, _ = own.codes_of(own.codes(ITEM_IDS), item_ids)
    assert np.array_equal(codes.read(storage, "versions/v").codes, expected.codes)
    codes.write(storage, "runs/r", own.codes(ITEM_IDS[::-1]))  # what comes later does not matter
    own.fit(asked).store()
    assert np.array_equal(codes.read(storage, "versions/v").codes, expected.codes)

    def no_weights() -> Iterator[tuple[str, bytes]]:
        raise AssertionError
        yield

    assert not own.encodes_inputs
    encode = own.item_encoder(storage, "versions/v", no_weights(), "cpu")
    assert isinstance(encode, ItemEncoder)
    assert encode(["item-3", "new"], None).codes.tolist() == expected.codes[[4, 0]].tolist()
    with pytest.raises(DamagedError, match="codes must hold every item that is encoded, got none of 'other'"):
        encode(["other"], None)


def test_codes_are_predicted_only_for_texts(tmp_path: Path) -> None:
    storage, own = Storage(str(tmp_path)), SolarTraining.of(CONFIG)
    rows, texts = ({"item_id": ["a", "b"], "input": inputs} for inputs in ([0, 1], ["red car", "hat"]))
    assert own.fit(fitting(storage, texts, new_codes="predicted")).facts == {"new_codes": "predicted"}
    assert training_family(small_config()).fit(fitting(storage, texts)).facts == {}
    for other, items in ((own, rows), (training_family(small_config()), texts)):
        message = f"new_codes predicted needs items with texts and codes, got run 'r' of {other.config.name}"
        with pytest.raises(ValueError, match=message):
            other.fit(fitting(storage, items, has_texts=items is texts, new_codes="predicted"))


def test_codes_of_new_items_are_chosen_among_what_is_predicted() -> None:
    known = SolarTraining.of(CONFIG).codes(ITEM_IDS)
    own, is_new = SolarTraining.of(CONFIG).codes_of(known, ["new", *ITEM_IDS, "newer"])
    buckets = np.stack([np.tile([7, 3], (3, 1)), np.tile([7, 3], (3, 1))]).astype(np.int64)  # [N, K', C]
    before = own.codes.copy()
    predicted = Predicted(np.array([True, True]), [0, 2, 3], buckets)
    found = SolarTraining.of(CONFIG).with_predicted(own, np.flatnonzero(is_new), predicted)
    assert (own.codes == before).all()
    assert found.item_ids == own.item_ids
    assert (found.codes[~is_new] == known.codes).all()
    # Of 61 items 4.6 may stand in a bucket, 1.5 times the mean: 3 do, so that one may come, and then another.
    assert found.codes[is_new][:, [0, 2, 3]].tolist() == [[7] * 3, [3] * 3]
    assert (found.codes[:, 1] == before[:, 1]).all(), "a chunk that is not trained predicts nothing"


def test_cutoffs_of_a_softmax_over_items_are_none_of_solars() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"cut-offs nucleus and probability need a model that .* got loss bucket_cross_entropy",
    ):
        training_family(CONFIG).cutoff_support.check_logit()
    assert not training_family(CONFIG).cutoff_support.has_trained_temperature


@pytest.mark.parametrize(("kind", "inputs", "width"), INPUTS)
def test_a_chunk_is_trained_by_what_its_config_says(kind: str, inputs: Any, width: int) -> None:
    read = data_of(inputs)
    config = replace(
        with_encoder(input=kind, width=width, num_buckets=10).with_family(
            loss=BucketCrossEntropyConfig(num_sampled_buckets=3)
        ),
        seed=2,
        training=replace(CONFIG.training, batch_size=2, precision="bfloat16"),
    )
    chunk = SolarTraining.of(config).chunk(3, expected_buckets=1.3)
    assert torch.allclose(chunk.output.bias.sigmoid(), torch.full((10,), 0.13))
    buckets = SolarTraining.of(config).codes(read.item_ids).codes[:, 3]
    training = SolarTraining.of(config).chunk_training(chunk, read, buckets)
    assert (training.step.num_sampled, training.step.precision) == (3, torch.bfloat16)
    assert training.sampler.seed == chunk.seed == 2003
    batches = [training.sampler.batch(step) for step in range(2)]
    assert [len(batch.queries) for batch in batches] == [2, 1]
    assert {bucket for batch in batches for bucket in batch.positives.bucket.tolist()} == set(
        buckets[[0, 4, 9]].tolist()
    )
    assert training.step(batches[0]).isfinite()

    valid = chunk.features(read.queries["valid"].inputs)
    best = chunk(valid).argmax(dim=1).tolist()  # one bucket of ten is probed
    found = [
        sum(buckets[row] == own for row in rows) / len(rows) for rows, own in zip([[1], [1, 4], [9]], best, strict=True)
    ]
    assert training.bucket_recall() == pytest.approx(sum(found) / 3)


def test_held_out_words_are_unknown() -> None:
    chunk = SolarTraining.of(CONFIG).chunk(0)
    chunk.learn(data_of(texts).queries["train"].inputs)
    features = chunk.features(["word1 split1 word7"])
    assert isinstance(features, Bags)
    assert features.weights is not None
    assert 1 < len(features.tokens) < len(chunk.known)
    assert features.weights.square().sum().item() == pytest.approx(1)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Storage, Encoded]:
    """A version of 60 items by two of four chunks."""
    storage = Storage(str(tmp_path))
    made = SolarTraining.of(CONFIG).codes(ITEM_IDS)
    [planned] = parts.plan([60], 60)
    items = pa.table({"item_id": ITEM_IDS})
    parts.write_part(storage, "v", planned, parquet.item_part(items, Codes(made.tensor)))
    files = [(manifest.CONFIG, to_json(CONFIG)), *weights_of([0, 2])]
    return storage, parts.finish(
        storage, "v", [planned], run="r", query={"text": "string"}, files=files, cutoff_mass=None
    )


def test_the_model_of_a_version(stored: tuple[Storage, Encoded]) -> None:
    storage, encoded = stored
    assert Version(storage, encoded).config == CONFIG
    model = Version(storage, encoded).model
    expected = training_family(CONFIG).trained_model(weights_of([0, 2]))
    features = model.query_features(TEXTS)
    assert torch.equal(model.encode_queries(features).tables, expected.encode_queries(features).tables)
    assert training_family(CONFIG).model_facts(encoded) == {"chunks_trained": 2, "num_chunks": 4}
    assert training_family(small_config()).model_facts(encoded) == {}


def test_the_similarity_of_a_version_needs_no_weights(stored: tuple[Storage, Encoded]) -> None:
    storage, encoded = stored
    for entry in encoded.weights:
        storage.delete(f"versions/v/{entry.path}")
    similarity = Version(storage, encoded).similarity
    assert isinstance(similarity, LookUp)
    assert similarity.num_buckets == 20
    with pytest.raises(DamagedError, match=r"version v must hold chunk-000/model\.safetensors, got no such file"):
        _ = Version(storage, encoded).model


def test_values_are_those_of_the_config() -> None:
    config = CONFIG.with_family(similarity=LookUpConfig(values="logit"))
    model = training_family(config).trained_model(weights_of([1]))
    [chunk] = model.chunks.values()
    assert isinstance(chunk, Chunk)
    features = model.query_features(TEXTS)
    assert torch.equal(model.encode_queries(features).tables[:, 1], chunk(features))


def test_buckets_are_predicted_for_texts_with_a_known_word() -> None:
    config = with_encoder(num_buckets=5)
    torch.manual_seed(0)
    chunks = {}
    for number in (0, 2):
        chunks[number] = SolarTraining.of(config).chunk(number)
        chunks[number].learn(["red car", "hat"])
    model = Solar(config.family.encoder, LookUpConfig(), chunks)
    predicted = predicted_buckets(model, ["a red boat", "qqqq", "hat"])
    assert (predicted.is_known.tolist(), predicted.chunks) == ([True, False, True], [0, 2])
    tables = model.encode_queries(model.query_features(["a red boat", "hat"])).tables[:, [0, 2]]
    assert predicted.buckets.tolist() == tables.argsort(dim=2, descending=True).tolist()
    assert predicted_buckets(model, ["qqqq"]).buckets.shape == (0, 2, 5)


def test_items_texts_are_training_queries_if_asked(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path)
    data = read_data(replace(CONFIG, data=DataConfig(folder=str(folder))), Storage("."))
    assert SolarTraining.of(CONFIG).training_queries(data) is data.queries["train"]
    queries, own = SolarTraining.of(with_encoder(reads_items=True)).training_queries(data), data.queries["train"]
    assert queries.inputs == [*own.inputs, *data.item_inputs]
    assert [rows.tolist() for rows in queries.relevant] == [
        *(rows.tolist() for rows in own.relevant),
        *([row] for row in range(60)),
    ]
    with pytest.raises(ValueError, match="reads_items needs input text, got vector"):
        with_encoder(reads_items=True, input="vector")
