from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.corpus import item_inputs
from rails_ray.families.config import DataConfig
from rails_ray.families.data import for_data, read_corpus, read_data
from rails_ray.families.training_family import training_family
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from support.data_folders import write_sequence_data, write_text_data
from support.examples import small_config
from support.numbers_data import CONFIG, INPUTS, data_of, sparse, texts, vectors, with_encoder


@pytest.mark.parametrize(("kind", "inputs", "width"), INPUTS)
def test_a_config_is_completed_by_the_width_of_its_queries(kind: str, inputs: Any, width: int) -> None:
    made = for_data(with_encoder(input=kind), data_of(inputs))
    assert made == with_encoder(input=kind, width=width)
    assert for_data(made, data_of(inputs)) == made


def test_a_trained_model_can_be_asked_by_features_that_it_never_saw_but_not_by_other_vectors() -> None:
    training_family(with_encoder(input="features", width=3)).check_can_be_asked(data_of(sparse))
    training_family(with_encoder(input="vector", width=7)).check_can_be_asked(data_of(vectors))
    with pytest.raises(ValueError, match=r"encoder\.width must be the 7 of the queries"):
        training_family(with_encoder(input="vector", width=6)).check_can_be_asked(data_of(vectors))


@pytest.mark.parametrize(("num_items", "num_buckets"), [(10, 10), (7000, 5000)])
def test_buckets_by_default(num_items: int, num_buckets: int) -> None:
    data = replace(data_of(texts), item_ids=ItemIds([f"i{row}" for row in range(num_items)]))
    made = for_data(with_encoder(num_buckets=0), data)
    assert made == with_encoder(num_buckets=num_buckets)


def test_more_features_may_come_than_there_are() -> None:
    made = with_encoder(input="features", width=100)
    assert for_data(made, data_of(sparse)) == made


@pytest.mark.parametrize(
    ("kind", "width", "inputs", "message"),
    [
        ("features", 7, sparse, r"encoder\.width must be the 8 of the queries of nothing, or 0, got 7"),
        ("vector", 6, vectors, r"encoder\.width must be the 7 of the queries of nothing, or 0, got 6"),
        ("vector", 8, vectors, r"encoder\.width must be the 7 of the queries of nothing, or 0, got 8"),
        ("vector", 0, sparse, r"queries of nothing must be of encoder\.input vector, got features"),
        ("features", 0, vectors, r"queries of nothing must be of encoder\.input features, got vectors"),
    ],
)
def test_queries_that_the_encoder_does_not_read(kind: str, width: int, inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        for_data(with_encoder(input=kind, width=width), data_of(inputs))


def test_a_text_data_set_is_read_as_for_other_models(tmp_path: Path) -> None:
    folder = str(write_text_data(tmp_path / "mine"))
    solar, towers = (replace(made, data=DataConfig(folder=folder)) for made in (CONFIG, small_config()))
    storage = Storage(str(tmp_path / "storage"))
    read = read_data(solar, storage)
    assert read.digest() == read_data(towers, storage).digest()
    assert for_data(solar, read) == solar
    corpus = read_corpus(solar, storage)
    items = corpus.items.read().table
    assert items["item_id"].to_pylist() == read.item_ids
    assert item_inputs(items) == read.item_inputs
    assert (corpus.query, corpus.files) == ({"text": "string"}, {})


NUMBERS = {
    "features": {"feature_indices": [[0, 3], [5], [2]], "feature_values": [[1.0, 2.0], [1.0], [0.5]]},
    "vector": {"vector": [[1.0, 2.0], [0.0, 1.0], [3.0, 4.0]]},
}


@pytest.mark.parametrize(
    ("kind", "width", "query"),
    [("features", 6, {"features": "map<int64, float>"}), ("vector", 2, {"embedding": "list<float>"})],
)
def test_a_data_set_of_numbers(kind: str, width: int, query: dict[str, str], tmp_path: Path) -> None:
    tables = {
        "items": {"item_id": [f"i{row}" for row in range(20)], "title": [f"T{row}" for row in range(20)]},
        "queries": {"query_id": [1, 2, 3], "split": ["train", "valid", "test"]} | NUMBERS[kind],
        "relevance": {"query_id": [1, 2, 3], "item_id": ["i0", "i1", "i2"]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    config = replace(with_encoder(input=kind), data=DataConfig(folder=str(tmp_path)))
    read = read_data(config, Storage("unused"))
    made = for_data(config, read)
    assert made.family.encoder.width == width
    corpus = read_corpus(made, Storage("unused"))
    items = corpus.items.read().table
    assert items["item_id"].to_pylist() == read.item_ids == tables["items"]["item_id"]
    assert items["title"].to_pylist() == tables["items"]["title"]
    assert (corpus.query, corpus.files) == (query, {})
    with pytest.raises(ValueError, match=rf"queries of {tmp_path} must be of encoder\.input "):
        for_data(
            replace(with_encoder(input="vector" if width == 6 else "features", width=width), data=config.data), read
        )


@pytest.mark.parametrize("kind", ["features", "vector"])
def test_numbers_need_a_folder(kind: str) -> None:
    message = r"recipe small-solar needs a data set with items, queries and relevance, got none: give its folder with"
    with pytest.raises(ValueError, match=message):
        read_data(with_encoder(input=kind), Storage("unused"))


@pytest.mark.parametrize("has_times", [False, True])
def test_a_bias_of_times_is_for_data_that_have_them(has_times: bool, tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path / "sequences")
    if has_times:
        interactions = pq.read_table(folder / "interactions.parquet")
        times = interactions["position"]
        pq.write_table(interactions.append_column("timestamp", times), folder / "interactions.parquet")
    encoder = HstuConfig(width=8, num_heads=2, max_length=4)
    config = replace(small_config().with_family(encoder=encoder), data=DataConfig(folder=str(folder)))
    made = for_data(config, read_data(config, Storage(str(tmp_path / "s"))))
    assert made.family.encoder.num_time_buckets == (encoder.num_time_buckets if has_times else 0)
