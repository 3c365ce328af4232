"""What a run reads: its data set and its corpus, and how these complete its config."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.data.batch import PairSampler, WindowSampler
from rails_ray.data.corpus import item_inputs
from rails_ray.data.forms import history as history_form
from rails_ray.families import config
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_corpus, read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.storage import manifest
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_sequence_data, write_text_data
from support.examples import small_config, small_history_config


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
        ValueError, match=r"recipe small needs a data set with items and interactions, got none: give its folder with"
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
        model = DualEncoderTraining.of(made).model()
        sampler = DualEncoderTraining.of(made).sampler(model, data, rank=1, num_workers=2)
        assert isinstance(sampler, kind)
        assert len(sampler.batch(0).queries) == made.training.batch_size // 2
        step = DualEncoderTraining.of(made).training_step(model, lambda mean: mean)
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
    model = DualEncoderTraining.of(for_data(histories, data)).model()
    assert model.encode_items(model.item_features(inputs)).components.shape[0] == 4
    assert corpus.query == {"history": "string", "user_id": "string"}
    stored = {name: pq.read_table(io.BytesIO(data)) for name, data in corpus.files.items()}
    assert stored[manifest.ITEMS]["item_id"].to_pylist() == data.item_ids
    user_ids, rows = history_form.histories_of(stored[manifest.HISTORIES])
    assert user_ids == data.user_ids
    assert list(map(list, rows)) == list(map(list, data.histories))
    assert model.encode_queries(model.query_features(rows)).components.shape[0] == len(user_ids)
