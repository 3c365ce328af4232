"""The stages on a real cluster: two training workers, Ray Data, and what each leaves in storage."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import oracles.ranking
from rails_ray import local, on_ray
from rails_ray.cli.stages import Calibrate, Evaluate
from rails_ray.cutoffs.measuring import drift, measure
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.errors import DamagedError, NotFoundError, TrainingError
from rails_ray.families import calibrations, config
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.modules.similarities.states import ItemState
from rails_ray.serving.cutoffs import calibration_of
from rails_ray.storage import runs, versions
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run
from rails_ray.training.evaluation.calibrating import positives_of
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.evaluation.report import HIT_RATES
from support.attributes import random_items, with_attributes
from support.data_folders import write_sequence_data
from support.examples import publish_here, small_history_config, times_of, write_untrained_run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def run(root: Path, run_config: RunConfig, ray_cluster: None) -> Run:
    """Trained on a folder of data that is relative to this process, whose workers are elsewhere."""
    folder = Path(str(run_config.data.folder))
    near = replace(run_config, data=DataConfig(folder=folder.name))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        return on_ray.train(near, str(root), run="first", num_workers=2)


@pytest.fixture(scope="module")
def encoded(root: Path, run: Run) -> Encoded:
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
    assert alone.training["losses"] == pytest.approx(run.training["losses"], rel=1e-2, abs=1e-3)
    store = Storage(str(root))
    model, other = (training_family(run_config).trained_model(runs.weights(store, one)) for one in (alone, run))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-2)
    assert reported[-1][:2] == (run_config.training.num_steps, run_config.training.num_steps)


def test_a_finished_run_is_returned_as_it_is(root: Path, run: Run, run_config: RunConfig) -> None:
    before = times_of(root / "runs" / "first")
    assert on_ray.train(run_config, str(root), run="first", num_workers=2) == run
    assert times_of(root / "runs" / "first") == before


def test_encoded_items_are_those_of_the_model(root: Path, run: Run, run_config: RunConfig, encoded) -> None:
    published = on_ray.publish(str(root), "v1")
    stored = Version(Storage(str(root)), published).items()
    data = read_data(run_config, Storage(str(root)))
    model = training_family(run_config).trained_model(runs.weights(Storage(str(root)), run))
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


def test_a_version_is_evaluated_before_it_is_published(root: Path, run: Run) -> None:
    on_ray.encode(str(root), run.name, version="unpublished", num_shards=2)
    assert on_ray.evaluate(str(root), version="unpublished") == on_ray.evaluate(str(root), run=run.name)
    assert not (root / "versions" / "unpublished" / "manifest.json").exists()


def naive_hit_rates(model: DualEncoder, items: ItemState, item_ids: list[str], data: DataSet) -> dict[int, float]:
    """By looking at the ids that each test query finds."""
    queries = data.queries["test"]
    found = []
    for inputs, relevant in zip(queries.inputs, queries.relevant, strict=True):
        (scores,) = model.score(model.encode_queries(model.query_features([inputs])), items).scores.tolist()
        wanted = {data.item_ids[row] for row in relevant}
        found.append([item_ids[row] in wanted for row in oracles.ranking.top_k(scores, len(scores))])
    return {k: sum(any(line[:k]) for line in found) / len(found) for k in HIT_RATES}


def test_an_earlier_version_is_evaluated_on_later_data_by_what_it_would_find(
    root: Path, run: Run, run_config: RunConfig, encoded: Encoded, grown: DataConfig
) -> None:
    store = Storage(str(root))
    data = read_data(replace(run_config, data=grown), store)
    model = training_family(run_config).trained_model(runs.weights(store, run))
    stored = Version(store, encoded).items()
    expected = naive_hit_rates(model, stored.state, stored.item_ids, data)
    measured = on_ray.evaluate(str(root), version="v1", data=grown)
    assert measured.hit_rate == pytest.approx(expected)
    assert 0 < expected[200] < 1, "some queries must ask only for items that the version lacks"
    assert measured.num_items == 60
    assert measured.num_queries == len(data.queries["test"])
    assert measured.cutoff_mass == run.cutoff_mass

    encoded_now = encode_items(model, model.item_features(data.item_inputs))
    expected = naive_hit_rates(model, encoded_now, data.item_ids, data)
    of_run = on_ray.evaluate(str(root), run=run.name, data=grown)
    assert of_run.hit_rate == pytest.approx(expected)
    assert (of_run.num_items, of_run.hit_rate[200]) == (90, 1)


def test_an_earlier_version_of_histories_is_evaluated_on_later_data(tmp_path: Path) -> None:
    """The later items come first, so that each item of the version is another row of the data."""
    before = write_sequence_data(tmp_path / "before", num_items=9)
    later = write_sequence_data(tmp_path / "later", num_items=12)
    items = pq.read_table(later / "items.parquet")
    pq.write_table(items.take(list(reversed(range(12)))), later / "items.parquet")
    store = Storage(str(tmp_path / "storage"))
    small = replace(small_history_config(), data=DataConfig(folder=str(before)))
    run_config = for_data(small, read_data(small, store))
    write_untrained_run(store, "r", run_config)
    encoded = on_ray.encode(str(store), "r", version="v", num_shards=2)

    measured = on_ray.evaluate(str(store), version="v", data=DataConfig(folder=str(later)))
    data = read_data(replace(run_config, data=DataConfig(folder=str(later))), store)
    model = DualEncoderTraining.of(run_config).model().eval()
    stored = Version(store, encoded).items()
    row_of = {item_id: row for row, item_id in enumerate(stored.item_ids)}
    queries, ranks = data.queries["test"], []
    assert queries.seen is not None
    for history, (wanted,), seen in zip(queries.inputs, queries.relevant, queries.seen, strict=True):
        known, hidden = (
            [row_of[item] for item in (data.item_ids[row] for row in rows) if item in row_of]
            for rows in (history, seen)
        )
        (scores,) = model.score(model.encode_queries(model.query_features([known])), stored.state).scores.tolist()
        order = [stored.item_ids[row] for row in oracles.ranking.top_k(scores, 9, hidden)]
        ranks.append(order.index(data.item_ids[wanted]) + 1 if data.item_ids[wanted] in order else np.inf)
    assert measured.hit_rate == pytest.approx({k: np.mean([rank <= k for rank in ranks]) for k in HIT_RATES})
    assert np.inf in ranks
    assert measured.num_items == 9


def test_a_version_is_calibrated_published_or_not_and_evaluation_measures_it(
    root: Path, run: Run, run_config: RunConfig
) -> None:
    """Against the ranks of this process: what is stored, promised and measured."""
    on_ray.encode(str(root), run.name, version="calibrated", num_shards=2)
    report = on_ray.calibrate(str(root), version="calibrated", split="train", measured_on="test", num_segments=2)
    store = Storage(str(root))
    stored = calibrations.read_current(store, "calibrated")
    assert stored is not None
    assert (stored.split, stored.background_name, stored.num_segments) == ("train", "uniform", 2)
    data, model = read_data(run_config, store), training_family(run_config).trained_model(runs.weights(store, run))
    items = encode_items(model, model.item_features(data.item_inputs))
    distribution = training_family(run_config).cutoff_support.distribution()
    before, after = (positives_of(rank_all(model, items, data.queries[s], 60), distribution) for s in ("train", "test"))
    assert stored.positives.num_queries == before.num_queries == report.num_queries
    assert np.sort(stored.positives.share) == pytest.approx(np.sort(before.share), rel=1e-3)
    calibration = calibration_of(training_family(run_config).cutoff_support, stored)
    expected = measure(calibration, after)
    assert [(one.nominal, one.segment) for one in report.measured] == [(one.nominal, one.segment) for one in expected]
    assert [one.coverage for one in report.measured] == pytest.approx([one.coverage for one in expected])
    assert [one.nominal for one in report.lists] == sorted({one.nominal for one in expected})
    assert on_ray.evaluate(str(root), version="calibrated").coverage == report.measured
    assert on_ray.evaluate(str(root), run=run.name).coverage is None
    again = on_ray.calibrate(str(root), version="calibrated", split="train", background="fitted")
    assert again.num_queries == report.num_queries
    refitted = calibrations.read_current(store, "calibrated")
    assert refitted is not None
    assert refitted.background == refitted.fitted == stored.fitted
    assert (refitted.background_name, refitted.num_segments) == ("fitted", 3)


def test_the_command_calibrates_under_a_filter(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The calibration of all items stays, and the pointer changes, so that servers which follow look again."""
    publish_here(tmp_path)
    store, filter = Storage(str(tmp_path)), {"price": {"$lt": 10}}
    with_attributes(store, random_items(60))
    before = store.read_tagged(versions.CURRENT)
    done = Calibrate(storage=str(tmp_path), split="train", filter=json.dumps(filter), plot=tmp_path / "c.png").run()
    assert done["filter"] == filter
    assert "as the filter hides all their relevant items" in capfd.readouterr().out
    version = local.open(str(tmp_path))
    assert (version.facts["calibration"], version.facts["calibrated_filters"]) == (None, [filter])
    [found] = version.search(["red"], cutoff={"coverage": 0.5}, filter=filter).results
    assert found.is_calibrated
    assert store.read_tagged(versions.CURRENT) != before
    with pytest.raises(ValueError, match=r"--filter must be JSON, such as .* got '{price': "):
        Calibrate(storage=str(tmp_path), filter="{price").run()


@pytest.mark.long
def test_the_command_warns_where_coverage_has_drifted(
    root: Path, run: Run, run_config: RunConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Queries that are no longer answered by what answered them."""
    on_ray.encode(str(root), run.name, version="drifting", num_shards=1)
    on_ray.calibrate(str(root), version="drifting", split="train", num_segments=1)
    before = on_ray.evaluate(str(root), version="drifting", split="train")
    assert before.coverage is not None
    assert drift(before.coverage) is None
    assert run_config.data.folder is not None
    folder = Path(shutil.copytree(run_config.data.folder, tmp_path / "later"))
    relevance = pq.read_table(folder / "relevance.parquet")
    others = relevance["item_id"].to_pylist()[::-1]
    pq.write_table(pa.table({"query_id": relevance["query_id"], "item_id": others}), folder / "relevance.parquet")
    now = on_ray.evaluate(str(root), version="drifting", split="train", data=DataConfig(folder=str(folder)))
    assert now.coverage is not None
    told = drift(now.coverage)
    assert told is not None

    Evaluate(storage=str(root), version="drifting", split="train").run()
    assert "warning" not in capfd.readouterr().err
    Evaluate(storage=str(root), version="drifting", split="train", folder=str(folder)).run()
    said = capfd.readouterr()
    assert f"rails-ray: warning: {told}" in said.err
    assert "what the calibration of this version keeps" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "split must be one of train, valid, test, got 'dev'"),
        ({"split": "test"}, "measured_on must differ from split, got 'test' for both"),
        ({"background": "flat"}, "background must be one of uniform, sphere, fitted, got 'flat'"),
        ({"num_segments": 0}, "segments must be at least 1, got 0"),
    ],
)
def test_calibrations_that_cannot_be(root: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_ray.calibrate(str(root), version="v1", **arguments)


def test_a_part_written_by_a_dead_attempt_is_no_part_of_the_version(root: Path, encoded) -> None:
    """A task that dies before its record leaves an object that nothing names."""
    part = root / encoded.parts[0].path
    part.with_name("deadbeef").write_bytes(part.read_bytes())
    published = on_ray.publish(str(root), "v1")
    assert len(Version(Storage(str(root)), published).items().item_ids) == 60


def test_a_damaged_version_is_not_published(root: Path, run: Run) -> None:
    made = on_ray.encode(str(root), run.name, version="damaged", num_shards=1)
    part = root / made.parts[0].path
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="of version damaged must have the sha256 of its manifest"):
        on_ray.publish(str(root), "damaged")


def test_a_damaged_version_is_told_in_a_sentence_by_evaluation(root: Path, run: Run) -> None:
    made = on_ray.encode(str(root), run.name, version="damaged-later", num_shards=1)
    on_ray.publish(str(root), "damaged-later")
    part = root / made.parts[0].path
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=r"^objects/\S+ of version damaged-later must have the sha256") as told:
        on_ray.evaluate(str(root), version="damaged-later")
    assert "\n" not in str(told.value)


def test_a_folder_of_data_may_be_relative(run: Run, run_config: RunConfig) -> None:
    assert config.from_json(run.config).data.folder == str(Path(str(run_config.data.folder)).resolve())


def test_arguments_that_cannot_be(root: Path, run: Run, run_config: RunConfig) -> None:
    storage = str(root)
    with pytest.raises(
        ValueError,
        match="run 'first' must keep the config and data that it was begun with, got another seed: 1 instead of "
        "0: choose another --run",
    ):
        on_ray.train(replace(run_config, seed=1), storage, run="first")
    with pytest.raises(ValueError, match=r"run must be made of letters, digits, .*, got '\.\./x'"):
        on_ray.train(run_config, storage, run="../x")
    with pytest.raises(ValueError, match="seed: Input should be a valid integer"):
        on_ray.train(replace(run_config, seed="one"), storage)
    with pytest.raises(ValueError, match="num_workers must be at least 1, got 0"):
        on_ray.train(run_config, storage, num_workers=0)
    with pytest.raises(ValueError, match=r"training\.batch_size must be a multiple of the 3 workers, got 16"):
        on_ray.train(run_config, storage, num_workers=3)
    with pytest.raises(NotFoundError, match=r"items\.parquet must exist"):
        on_ray.train(replace(run_config, data=DataConfig(folder=str(root / "nowhere"))), storage)
    with pytest.raises(NotFoundError, match=r"run must be one of .*first.*, got 'nope'"):
        on_ray.encode(storage, "nope")
    with pytest.raises(ValueError, match="must be at most the 60 items, got 61"):
        on_ray.encode(storage, "first", num_shards=61)
    with pytest.raises(NotFoundError, match="got 'nope'"):
        on_ray.publish(storage, "nope")
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        on_ray.evaluate(storage, split="dev")
    with pytest.raises(ValueError, match="give a run or a version to evaluate, got run 'first' and version 'v1'"):
        on_ray.evaluate(storage, run="first", version="v1")
    with pytest.raises(NotFoundError, match="run must be one of"):
        on_ray.evaluate(storage, run="nope")
    with pytest.raises(NotFoundError, match=r"version must be one of .*, got 'nope'"):
        on_ray.evaluate(storage, version="nope")
    with pytest.raises(NotFoundError, match=r"nowhere/items\.parquet must exist"):
        on_ray.evaluate(storage, run="first", data=DataConfig(folder=str(root / "nowhere")))


def test_a_worker_that_fails_ends_the_run_with_a_sentence_and_no_run(root: Path, run_config: RunConfig) -> None:
    hot = replace(run_config, training=replace(run_config.training, learning_rate=1e30))
    with pytest.raises(TrainingError, match=r"run 'hot' must end with a model, got: .*the loss must stay finite"):
        on_ray.train(hot, str(root), run="hot", num_workers=1)
    with pytest.raises(NotFoundError, match="got 'hot'"):
        runs.read(Storage(str(root)), "hot")
