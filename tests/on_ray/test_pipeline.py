"""The stages on a real cluster: two training workers, Ray Data, and what each leaves in storage."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from examples import small_config, write_text_data
from rails_ray import build, config, on_ray
from rails_ray.config import DataConfig, RunConfig
from rails_ray.errors import DamagedError, NotFoundError, TrainingError
from rails_ray.evaluation.ranking import encode_items
from rails_ray.storage import manifest, runs, shards
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def run_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = write_text_data(tmp_path_factory.mktemp("data"))
    return replace(small_config(), data=DataConfig(folder=str(folder)))


@pytest.fixture(scope="module")
def run(root: Path, run_config: RunConfig, ray_cluster: None) -> Run:
    return on_ray.train(run_config, str(root), run="first", num_workers=2)


@pytest.fixture(scope="module")
def encoded(root: Path, run: Run) -> manifest.Encoded:
    return on_ray.encode(str(root), run.name, version="v1", num_shards=3)


def test_two_workers_train_a_model_that_finds_held_out_queries(run: Run, run_config: RunConfig) -> None:
    assert len(run.training["losses"]) == run_config.training.num_steps
    assert np.mean(run.training["losses"][-10:]) < 0.5 * np.mean(run.training["losses"][:10])
    assert run.validation["hit_rate"]["10"] > 0.8
    assert 0 < run.cutoff_mass < 1
    assert config.from_json(run.config) == run_config


def test_one_worker_gives_the_same_losses_as_two(root: Path, run: Run, run_config: RunConfig) -> None:
    reported: list[tuple[int, int, str]] = []
    alone = on_ray.train(
        run_config, str(root), run="alone", num_workers=1, on_progress=lambda *args: reported.append(args)
    )
    # Workers average the losses of their own slices; the first one reports its own.
    assert np.mean(alone.training["losses"][-10:]) == pytest.approx(np.mean(run.training["losses"][-10:]), rel=0.3)
    model, other = (build.trained_model(run_config, one.weights) for one in (alone, run))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-2)
    assert reported[-1][:2] == (run_config.training.num_steps, run_config.training.num_steps)


def test_encoded_items_are_those_of_the_model(root: Path, run: Run, run_config: RunConfig, encoded) -> None:
    published = on_ray.publish(str(root), "v1")
    stored = shards.read_shards(Storage(str(root)), published, range(3))
    data = build.data(run_config, Storage(str(root)))
    model = build.trained_model(run_config, run.weights)
    expected = encode_items(model, model.item_features(data.item_inputs))
    assert stored.item_ids == data.item_ids
    assert torch.allclose(stored.state.components, expected.components, atol=1e-5)
    assert torch.allclose(stored.state.gate, expected.gate, atol=1e-5)
    assert torch.allclose(stored.state.average, expected.average, atol=1e-5)
    assert published.shard_items == [20, 20, 20]
    assert published.cutoff_mass == run.cutoff_mass


def test_evaluation_of_a_version_equals_that_of_its_run(root: Path, run: Run, encoded) -> None:
    on_ray.publish(str(root), "v1")
    assert on_ray.evaluate(str(root)) == on_ray.evaluate(str(root), run=run.name)
    assert on_ray.evaluate(str(root), run=run.name, split="valid").hit_rate == {
        int(k): value for k, value in run.validation["hit_rate"].items()
    }


def test_a_part_written_by_a_dead_attempt_is_no_part_of_the_version(root: Path, encoded) -> None:
    """A retried task leaves a second file of the same rows, which nothing names."""
    part = root / "versions" / "v1" / encoded.parts[0].path
    part.with_name("part-000000000-deadbeef.parquet").write_bytes(part.read_bytes())
    published = on_ray.publish(str(root), "v1")
    assert len(shards.read_shards(Storage(str(root)), published, range(3)).item_ids) == 60


def test_a_damaged_version_is_not_published(root: Path, run: Run) -> None:
    made = on_ray.encode(str(root), run.name, version="damaged", num_shards=1)
    part = root / "versions" / "damaged" / made.parts[0].path
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="of version damaged must have the sha256 of its manifest"):
        on_ray.publish(str(root), "damaged")


def test_a_damaged_version_is_told_in_a_sentence_by_evaluation(root: Path, run: Run) -> None:
    made = on_ray.encode(str(root), run.name, version="damaged-later", num_shards=1)
    on_ray.publish(str(root), "damaged-later")
    part = root / "versions" / "damaged-later" / made.parts[0].path
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(
        DamagedError, match=r"^shard-000/part-\S+ of version damaged-later must have the sha256"
    ) as told:
        on_ray.evaluate(str(root), version="damaged-later")
    assert "\n" not in str(told.value)


def test_a_folder_of_data_may_be_relative(root: Path, run_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(run_config.data.folder)
    monkeypatch.chdir(folder.parent)
    short = replace(run_config.training, num_steps=2)
    made = on_ray.train(
        replace(run_config, data=DataConfig(folder=folder.name), training=short), str(root), run="near", num_workers=1
    )
    assert config.from_json(made.config).data.folder == str(folder.resolve())


def test_arguments_that_cannot_be(root: Path, run: Run, run_config: RunConfig) -> None:
    storage = str(root)
    with pytest.raises(ValueError, match="run must be a new name, got 'first'"):
        on_ray.train(run_config, storage, run="first")
    with pytest.raises(ValueError, match=r"run must be made of letters, digits, .*, got '\.\./x'"):
        on_ray.train(run_config, storage, run="../x")
    with pytest.raises(ValueError, match="num_workers must be at least 1, got 0"):
        on_ray.train(run_config, storage, num_workers=0)
    with pytest.raises(ValueError, match=r"training\.batch_size must be a multiple of the 3 workers, got 16"):
        on_ray.train(run_config, storage, num_workers=3)
    with pytest.raises(NotFoundError, match=r"items\.parquet must exist"):
        on_ray.train(replace(run_config, data=DataConfig(folder=str(root / "nowhere"))), storage)
    with pytest.raises(NotFoundError, match=r"run must be one of .*first.*, got 'nope'"):
        on_ray.encode(storage, "nope")
    with pytest.raises(ValueError, match="num_shards must be at least 1 and at most the 60 items, got 61"):
        on_ray.encode(storage, "first", num_shards=61)
    with pytest.raises(NotFoundError, match="got 'nope'"):
        on_ray.publish(storage, "nope")
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        on_ray.evaluate(storage, split="dev")
    with pytest.raises(ValueError, match="give a run or a version to evaluate, got run 'first' and version 'v1'"):
        on_ray.evaluate(storage, run="first", version="v1")
    with pytest.raises(NotFoundError, match="run must be one of"):
        on_ray.evaluate(storage, run="nope")


def test_a_worker_that_fails_ends_the_run_with_a_sentence_and_no_run(root: Path, run_config: RunConfig) -> None:
    hot = replace(run_config, training=replace(run_config.training, learning_rate=1e30))
    with pytest.raises(TrainingError, match=r"run 'hot' must end with a model, got: .*the loss must stay finite"):
        on_ray.train(hot, str(root), run="hot", num_workers=1)
    with pytest.raises(NotFoundError, match="got 'hot'"):
        runs.read(Storage(str(root)), "hot")
