"""A model of histories from beginning to end on object storage: data, runs, versions and serving on S3."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from rails_ray import on_ray
from rails_ray.data.encoding import encode_items
from rails_ray.errors import DamagedError, NotFoundError, StorageError
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.negatives import UniformNegatives
from rails_ray.families.version import Version
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.spec import SearchSpec
from rails_ray.serving import client
from rails_ray.storage import versions
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run
from support.one_serve import served
from support.s3_server import new_bucket

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster"), pytest.mark.long]

NUM_USERS, NUM_ITEMS = 40, 30


def write_sequences(store: Storage) -> None:
    """Users who go through the items in rings, and stray at times: what comes next is mostly what it was for others."""
    generator = np.random.default_rng(0)
    lines = []
    for user in range(NUM_USERS):
        start = int(generator.integers(NUM_ITEMS))
        for step in range(int(generator.integers(5, 12))):
            strays = generator.random() < 0.2
            item = int(generator.integers(NUM_ITEMS)) if strays else (start + 7 * step) % NUM_ITEMS
            lines.append((user, item, step))
    users, items, positions = zip(*lines, strict=True)
    tables = {
        "interactions": {"user_id": users, "item_id": [f"i{item}" for item in items], "position": positions},
        "items": {
            "item_id": [f"i{item}" for item in range(NUM_ITEMS + 3)],
            "title": [f"Item {item}" for item in range(NUM_ITEMS + 3)],
        },
    }
    for name, columns in tables.items():
        sink = io.BytesIO()
        pq.write_table(pa.table({column: list(values) for column, values in columns.items()}), sink)
        store.write(f"{name}.parquet", sink.getvalue())


def config_of(folder: str) -> RunConfig:
    return RunConfig(
        name="rings",
        data=DataConfig(folder=folder),
        family=DualEncoderConfig(
            encoder=SasrecConfig(width=16, num_blocks=1, max_length=6, dropout=0.1),
            components=ComponentsConfig(width=8, query_hidden=0, gate_hidden=5),
            similarity=MixtureOfLogitsConfig(num_query_components=2, num_item_components=2, gate_hidden=5),
            loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
            negatives=UniformNegatives(num_items=20),
        ),
        training=TrainingConfig(num_steps=150, batch_size=16, learning_rate=2e-2, validate_every=50, patience=2),
    )


@dataclass(frozen=True)
class OnS3:
    root: str
    run: Run
    published: Manifest


@pytest.fixture(scope="module")
def on_s3(ray_cluster: None, s3_server: str) -> OnS3:
    bucket = f"s3://{new_bucket(s3_server)}"
    write_sequences(Storage(f"{bucket}/data"))
    root = f"{bucket}/storage/deep"
    run = on_ray.train(config_of(f"{bucket}/data"), root, run="rings", num_workers=1, checkpoint_s=0.2)
    on_ray.encode(root, "rings", version="v1", num_shards=2, part_items=5)
    return OnS3(root, run, on_ray.publish(root, "v1"))


@pytest.fixture(scope="module")
def url(on_s3: OnS3) -> Iterator[str]:
    with served(ServeArgs(storage=on_s3.root, allow_anonymous=True)) as address:
        yield address


def test_everything_lies_in_the_bucket(on_s3: OnS3) -> None:
    assert on_s3.run.validation["hit_rate"]["10"] > 0.5
    # The best weights were chosen on the validation item, not on that of the test.
    best = max(validation["value"] for validation in on_s3.run.training["validations"])
    assert best == pytest.approx(on_s3.run.validation["mrr"])
    assert best != on_ray.evaluate(on_s3.root).mrr
    assert on_s3.published.num_items == NUM_ITEMS  # the items without an interaction are no part of the corpus
    assert on_s3.published.query == {"history": "string", "user_id": "int64"}
    assert len(on_s3.published.parts) == 6
    assert on_ray.evaluate(on_s3.root) == on_ray.evaluate(on_s3.root, run="rings")
    store = Storage(on_s3.root)
    assert store.list("runs/rings") == [
        "begun.json", "config.json", "model.safetensors", "training.json", "validation.json"
    ]  # fmt: skip


def test_no_credential_is_written_anywhere(on_s3: OnS3) -> None:
    from support.s3_server import KEY_ID, SECRET

    store = Storage(on_s3.root)
    files = files_below(store, "")
    assert len(files) > 20
    for file in files:
        data = store.read(file)
        assert SECRET.encode() not in data, file
        assert KEY_ID.encode() not in data, file


def files_below(store: Storage, folder: str) -> list[str]:
    found = []
    for name in store.list(folder):
        path = f"{folder}/{name}".lstrip("/")
        found += [path] if store.exists(path) else files_below(store, path)
    return found


def offline(on_s3: OnS3, history: list[str], k: int, seen: list[str]) -> list[str]:
    """Brute force in this process."""
    store = Storage(on_s3.root)
    run_config = Version(store, on_s3.published).config
    data = read_data(run_config, store)
    model = Version(store, on_s3.published).model
    rows = [data.item_ids.index(item) for item in history]
    query = model.encode_queries(model.query_features([rows]))
    items = encode_items(model, model.item_features(data.item_inputs))
    excluded = Exclusions.of([[data.item_ids.index(item) for item in seen]])
    found = BruteForce(model.similarity, items).search(query, SearchSpec(k, mask=excluded))
    return [data.item_ids[row] for row in found.item_rows[0].tolist()]


def history_of(on_s3: OnS3, user: int) -> list[str]:
    table = pq.read_table(io.BytesIO(Storage(on_s3.root.replace("storage/deep", "data")).read("interactions.parquet")))
    return [row["item_id"] for row in table.to_pylist() if row["user_id"] == user]


def test_a_user_and_the_users_history_find_the_same_and_nothing_seen(on_s3: OnS3, url: str) -> None:
    history = history_of(on_s3, 3)
    queries = [{"user_id": 3}, {"history": history}, {"history": [*history, "unknown"]}]
    answer = client.search(url, queries, k=5)
    expected = offline(on_s3, history, 5, history)
    for result in answer["results"]:
        assert result["items"] == expected
        assert result["titles"] == [f"Item {item[1:]}" for item in expected]
        assert result["num_searched"] == NUM_ITEMS - len(set(history))
        assert not set(result["items"]) & set(history)
    everything = client.search(url, [{"user_id": 3, "exclude_seen": False}], k=NUM_ITEMS)["results"][0]
    assert everything["items"] == offline(on_s3, history, NUM_ITEMS, [])
    assert client.index(url)["query"] == {"history": "string", "user_id": "int64"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"user_id": 99}, r"queries\[0\]\.user_id must be a user that the index knows, got 99"),
        ({"history": ["nope"]}, r"queries\[0\]\.history must hold an item that the index knows, got \['nope'\]"),
        ({"text": "x"}, r"queries\[0\] must be given by history or user_id or embedding for this index, got text"),
    ],
)
def test_a_query_that_this_index_cannot_take(url: str, query: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client.search(url, [query], k=1)


def test_other_data_than_the_run_was_trained_on(on_s3: OnS3, s3_server: str) -> None:
    """A row of the model must be the same item ever after. A version knows its items by their ids."""
    store = Storage(on_s3.root.replace("storage/deep", "data"))
    items, interactions = store.read("items.parquet"), store.read("interactions.parquet")
    before = on_ray.evaluate(on_s3.root)
    table = pq.read_table(io.BytesIO(items))
    sink = io.BytesIO()
    pq.write_table(table.take(np.arange(len(table))[::-1].copy()), sink)
    store.write("items.parquet", sink.getvalue())
    try:
        for stage in (
            lambda: on_ray.encode(on_s3.root, "rings", version="v9"),
            lambda: on_ray.evaluate(on_s3.root, run="rings"),
        ):
            with pytest.raises(ValueError, match="must hold the items that the run was trained on, in their order"):
                stage()
        assert on_ray.evaluate(on_s3.root) == before
    finally:
        store.write("items.parquet", items)
        store.write("interactions.parquet", interactions)


def test_a_damaged_part_on_s3(on_s3: OnS3) -> None:
    on_ray.encode(on_s3.root, "rings", version="v2", part_items=10)
    on_ray.publish(on_s3.root, "v2")
    store = Storage(on_s3.root)
    part = versions.read_manifest(store, "v2").parts[0]
    path = part.path
    data = store.read(path)
    store.write(path, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(DamagedError, match=r"of version v2 must have the sha256 of its manifest"):
        on_ray.evaluate(on_s3.root)
    assert versions.rollback(store).version == "v1"
    on_ray.evaluate(on_s3.root)


@pytest.mark.parametrize("stage", ["train", "encode", "publish", "evaluate"])
def test_a_bucket_that_is_not_there_is_told_by_every_stage(on_s3: OnS3, stage: str) -> None:
    root = "s3://no-such-bucket/x"
    stages = {
        "train": lambda: on_ray.train(config_of("s3://no-such-bucket/data"), root),
        "encode": lambda: on_ray.encode(root, "rings"),
        "publish": lambda: on_ray.publish(root, "v1"),
        "evaluate": lambda: on_ray.evaluate(root),
    }
    with pytest.raises(NotFoundError, match="bucket 'no-such-bucket' must exist"):
        stages[stage]()


def test_storage_that_fails_on_a_worker_is_told_in_a_sentence(on_s3: OnS3) -> None:
    """The driver finds storage well; a task, elsewhere, has no credentials."""

    root = on_s3.root

    @ray.remote(num_cpus=1, runtime_env={"env_vars": {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}})
    def read() -> bytes:
        return Storage(root).read("CURRENT")

    from rails_ray.on_ray.failures import plain_errors

    with pytest.raises(StorageError, match=r"storage \S+ must have credentials") as refused, plain_errors():
        ray.get(read.remote())
    assert "\n" not in str(refused.value)


def test_the_server_says_what_is_wrong_over_http(url: str) -> None:
    response = httpx.post(f"{url}/v1/search", json={"queries": [{"user_id": 3}], "k": 0}, timeout=30)
    assert response.status_code == 422
    assert response.json()["error"] == "k must be greater than or equal to 1, got 0"
