"""The pieces of a run on a cluster, most of them SOLAR's: each is what it would be alone, none is lost with another."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from ray.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

import support.pieces
from rails_ray import on_ray
from rails_ray.cli.main import main
from rails_ray.errors import TrainingError
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.running import Begun, begin
from rails_ray.families.solar.model import Solar, predicted_buckets
from rails_ray.families.solar.train import SolarTraining
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.on_ray.pipelining import pipeline
from rails_ray.on_ray.resources import TrainResources
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.training import Settings, fit_pieces
from rails_ray.storage import codes, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import checkpoints
from rails_ray.training.loop import train
from support.command_line import options_of
from support.data_folders import write_number_data, write_text_data
from support.examples import mark, publish_solar, small_solar_config, times_of
from support.one_serve import served
from support.pieces import CountingPiece
from support.processes import finished, interrupted, kill_one, kill_owner, killed

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

MARK_S = 1e6
TASKS = TrainResources(backend="tasks")
NUM_CHUNKS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run_config(folder: Path) -> RunConfig:
    return replace(small_solar_config(num_chunks=NUM_CHUNKS), data=DataConfig(folder=str(folder)))


@pytest.fixture(scope="module")
def trained(run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, runs.Run]:
    """The root of a storage, and the run `r` in it."""
    root = str(tmp_path_factory.mktemp("storage"))
    seen: list[tuple[int, int, str]] = []
    run = on_ray.train(
        run_config,
        root,
        run="r",
        num_workers=3,  # of which a batch is no multiple
        placing=TASKS,
        on_progress=lambda done, total, note: seen.append((done, total, note)),
    )
    assert seen[-1] == (NUM_CHUNKS * 60, NUM_CHUNKS * 60, f"{NUM_CHUNKS} of {NUM_CHUNKS} pieces")
    return root, run


def alone(run_config: RunConfig, number: int) -> dict[str, torch.Tensor]:
    """The weights of a chunk that is trained in this process."""
    data = read_data(run_config, Storage("."))
    chunk = SolarTraining.of(run_config).chunk(number, float(data.queries["train"].relevant.lengths.mean()))
    family = SolarTraining.of(run_config)
    own = family.chunk_training(chunk, data, family.codes(data.item_ids).codes[:, number])
    train(own.step, own.sampler.batch, run_config.training, seed=[chunk.seed], report=lambda *_: None)
    return weight_files.copy(chunk)


def weights_of(store: Storage, run: str, number: int) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(store.read(f"runs/{run}/{name_of(number)}/model.safetensors"))


def name_of(number: int) -> str:
    return f"chunk-{number:03d}"


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


@pytest.fixture(scope="module")
def slow(run_config: RunConfig) -> RunConfig:
    """Two chunks: the first is far from its end when the second has begun; Ray Train starts one after the other."""
    return replace(
        run_config.with_family(encoder=replace(run_config.family.encoder, num_chunks=2)),
        training=replace(run_config.training, num_steps=4000),
    )


@pytest.fixture(scope="module")
def slow_alone(slow: RunConfig) -> list[dict[str, torch.Tensor]]:
    return [alone(slow, number) for number in range(2)]


def test_each_chunk_is_what_it_would_be_alone(run_config: RunConfig, trained: tuple[str, runs.Run]) -> None:
    root, run = trained
    for number in range(NUM_CHUNKS):
        assert equal(weights_of(Storage(root), "r", number), alone(run_config, number))
    told = run.training["pieces"]
    assert [piece["piece"] for piece in told] == ["chunk-000", "chunk-001", "chunk-002"]
    for piece in told:
        own = runs.read_piece(Storage(root), "r", piece["piece"])
        expected = {name: own.validation[name] for name in ("loss", "bucket_recall")}
        assert piece == {"piece": piece["piece"], **expected, "seconds": own.training["seconds"]}


def test_a_finished_run_is_left_as_it_is(run_config: RunConfig, trained: tuple[str, runs.Run]) -> None:
    assert on_ray.train(run_config, trained[0], run="r", placing=TASKS) == trained[1]


@pytest.mark.faults
@pytest.mark.usefixtures("trained")  # has warmed two workers, so that the chunks of tasks begin together
@pytest.mark.parametrize(
    ("backend", "title"),
    [
        ("tasks", "_train_task"),
        ("ray_train", "RayTrainWorker"),
        ("ray_train", "TrainController"),
        ("ray_train", "_fit_task"),
        ("tasks", "ProgressBoard"),
    ],
)
def test_a_process_that_dies_takes_its_own_chunk_back_to_its_checkpoint(
    slow: RunConfig,
    slow_alone: list[dict[str, torch.Tensor]],
    backend: Literal["tasks", "ray_train"],
    title: str,
    tmp_path: Path,
) -> None:
    checkpoints = [tmp_path / "runs" / "r" / name_of(number) / "checkpoint.safetensors" for number in range(2)]
    kills: list[bool] = []
    notes: list[str] = []

    def disturb(done: int, total: int, note: str) -> None:
        notes.append(note)
        if not kills and all(checkpoint.exists() for checkpoint in checkpoints):
            token = os.environ["RAY_AUTH_TOKEN"]
            is_owner = title in ("TrainController", "_fit_task")
            kills.append(kill_owner(title, "RayTrainWorker", token) if is_owner else kill_one(title, token))

    placing = TrainResources(backend=backend)
    run = on_ray.train(
        slow, str(tmp_path), run="r", num_workers=2, placing=placing, checkpoint_s=0.05, on_progress=disturb
    )
    assert list(run.weights_sha256) == ["chunk-000/model.safetensors", "chunk-001/model.safetensors"]
    assert kills == [True], "both chunks must have been at work at once"
    going_on = {piece for note in notes for piece in re.findall(r"chunk-00(\d) [^,]+, going on from step", note)}
    back = 0 if title == "ProgressBoard" else 1
    assert len(going_on) == back, "the chunk whose process died must go on from its checkpoint, the other as it was"
    for number, weights in enumerate(slow_alone):
        assert equal(weights_of(Storage(str(tmp_path)), "r", number), weights)


@pytest.mark.faults
@pytest.mark.parametrize("backend", ["tasks", "ray_train"])
def test_a_driver_that_is_interrupted_or_killed_loses_no_chunk_that_was_done(
    run_config: RunConfig, backend: str, tmp_path: Path
) -> None:
    root = tmp_path / "storage"
    # So many steps that a worker cannot end them before it notices that its driver is gone.
    run_config = replace(
        run_config.with_family(encoder=replace(run_config.family.encoder, num_chunks=2)),
        training=replace(run_config.training, num_steps=2000),
    )
    training = ["train", "text-solar", "--run", "r", "--storage", str(root), "--workers", "1"]
    training += ["--checkpoint-s", "0.2", "--chunks.backend", backend, *options_of(run_config)]
    folder = root / "runs" / "r"
    interrupted(training, folder / "chunk-000" / "checkpoint.safetensors")
    mark(folder / "chunk-000" / "checkpoint.safetensors", MARK_S)
    killed(training, folder / "chunk-001" / "checkpoint.safetensors")
    mark(folder / "chunk-001" / "checkpoint.safetensors", MARK_S)
    first = folder / "chunk-000" / "model.safetensors"
    before = first.stat().st_mtime_ns
    assert not (folder / "config.json").exists()
    told = finished([*training, "--resume"])
    assert first.stat().st_mtime_ns == before, "what was trained must not be trained again"
    assert "2 of 2 pieces" in told
    for number in range(2):
        own = runs.read_piece(Storage(str(root)), "r", name_of(number))
        assert own.training["seconds"] > MARK_S, "it must go on from its checkpoint"
        assert f"{own.validation['loss']:.3f} │" in told
        assert equal(weights_of(Storage(str(root)), "r", number), alone(run_config, number))


def test_chunks_that_are_done_are_all_that_a_run_needs(
    run_config: RunConfig, trained: tuple[str, runs.Run], tmp_path: Path
) -> None:
    """As where the driver was killed after the last of them."""
    folder = Path(shutil.copytree(trained[0], tmp_path / "storage")) / "runs" / "r"
    (folder / "config.json").unlink()
    assert not runs.is_finished(Storage(str(tmp_path / "storage")), "r")
    before = [times_of(path) for path in sorted(folder.glob("chunk-*"))]
    assert on_ray.train(run_config, str(tmp_path / "storage"), run="r", placing=TASKS) == trained[1]
    assert [times_of(path) for path in sorted(folder.glob("chunk-*"))] == before


@pytest.mark.long
def test_chunks_that_fail_are_named_and_the_others_can_be_served_if_asked(
    run_config: RunConfig, tmp_path: Path
) -> None:
    root, store = str(tmp_path), Storage(str(tmp_path))
    own = for_data(run_config, read_data(run_config, store))
    begin(run_config, store, "r")
    # A checkpoint of another seed, as if folders had been mixed up.
    other = SolarTraining.of(replace(own, seed=1)).chunk(1)
    step = torch.nn.ModuleDict({"chunk": other})
    optimizer = torch.optim.AdamW(step.parameters())
    facts = {"losses": [1.0], "validations": [], "seconds": 1.0}
    runs.write_checkpoint(store, "r/chunk-001", checkpoints.checkpoint_to_bytes(step, optimizer, facts, None))

    message = "all 3 pieces of run 'r' must be trained, got 2; chunk-001: weights of a chunk must be of seed 1, got"
    for placing in (TASKS, TrainResources()):  # then for the missing one alone, by Ray Train
        with pytest.raises(TrainingError, match=f"{message} seed 1001"):
            on_ray.train(run_config, root, run="r", placing=placing)
        assert runs.finished_pieces(store, "r") == ["chunk-000", "chunk-002"]

    with pytest.raises(ValueError, match="run 'r' must have all 3 trained pieces, got 2: train it again"):
        on_ray.encode(root, "r", version="v")
    assert main(["encode", "--run", "r", "--version", "v", "--min-chunks", "2", "--storage", root]) == 0
    encoded = on_ray.publish(root, "v")
    assert [entry.path for entry in encoded.weights] == ["chunk-000/model.safetensors", "chunk-002/model.safetensors"]
    assert training_family(own).model_facts(encoded) == {"chunks_trained": 2, "num_chunks": 3}
    assert on_ray.evaluate(root, version="v").hit_rate[10] > 0.3, "by chance it is 1 in 6"

    store.delete("runs/r/chunk-001/checkpoint.safetensors")
    before = times_of(tmp_path / "runs" / "r" / "chunk-002")
    on_ray.train(run_config, root, run="r", placing=TASKS)
    assert times_of(tmp_path / "runs" / "r" / "chunk-002") == before
    assert equal(weights_of(store, "r", 1), alone(run_config, 1))


@pytest.fixture
def _carried() -> Iterator[None]:
    """Workers do not see the modules of tests: what they need of this one travels to them."""
    register_pickle_by_value(support.pieces)
    yield
    unregister_pickle_by_value(support.pieces)


@pytest.mark.usefixtures("_carried")
def test_pieces_in_order_without_a_step(run_config: RunConfig, tmp_path: Path) -> None:
    """Each reads what those before it left; one that fails stops those that come after it, and no other."""
    store = Storage(str(tmp_path))
    own = for_data(run_config, read_data(run_config, store))
    broken = CountingPiece("broken", fails_by="nothing can be counted")
    pieces = [
        CountingPiece("first"),
        broken,
        CountingPiece("second", after=("first",)),
        CountingPiece("third", after=("first", "second")),
        CountingPiece("never", after=("broken",)),
    ]
    digest = read_data(own, store).digest()
    runs.begin(store, "r", to_json(own), digest, [piece.name for piece in pieces])
    begun = Begun(storage=store, run="r", config=to_json(own), pieces=pieces)
    settings = Settings(placing=TASKS).on_cluster(pieces)
    seen: list[tuple[int, int, str]] = []
    with pytest.raises(TrainingError) as told:
        fit_pieces(begun, settings, lambda *progress: seen.append(progress))
    assert str(told.value) == (
        "all 5 pieces of run 'r' must be trained, got 3; broken: nothing can be counted; never: it comes after broken: "
        "train it again under the same name for the rest"
    )
    assert seen[-1] == (3, 5, "3 of 5 pieces")
    assert runs.finished_pieces(store, "r") == ["first", "second", "third"]
    counted = [runs.read_piece(store, "r", name).validation["counted"] for name in ("first", "second", "third")]
    assert counted == [counted[0], 2 * counted[0], 4 * counted[0]]
    assert counted[0] > 0
    before = times_of(tmp_path / "runs" / "r" / "first")
    mended = [replace(piece, fails_by="") for piece in pieces]
    fit_pieces(replace(begun, pieces=mended), settings)
    assert runs.finished_pieces(store, "r") == [piece.name for piece in pieces]
    assert times_of(tmp_path / "runs" / "r" / "first") == before


def test_items_come_and_go_by_versions_alone(
    run_config: RunConfig, trained: tuple[str, runs.Run], tmp_path: Path
) -> None:
    root, store = trained[0], Storage(trained[0])
    first = on_ray.encode(root, "r", version="first")
    on_ray.publish(root, "first")
    own = codes.of_version(store, first)
    assert np.array_equal(own.codes, codes.read(store, "runs/r").codes)
    assert first.columns["codes"] == "fixed_size_list<item: int32>[3]"

    def corpus(name: str, rows: range) -> DataConfig:
        """The items of some rows of a larger data set."""
        folder = write_text_data(tmp_path / name, num_items=80)
        items = pq.read_table(folder / "items.parquet")
        pq.write_table(items.slice(rows.start, len(rows)), folder / "items.parquet")
        return DataConfig(folder=str(folder))

    grown = on_ray.encode(root, "r", version="grown", data=corpus("grown", range(5, 75)))
    on_ray.publish(root, "grown")
    of_grown = codes.of_version(store, grown)
    assert of_grown.item_ids == [f"item-{row}" for row in range(5, 75)]
    assert np.array_equal(of_grown.codes[:55], own.codes[5:]), "items that stay keep their codes"

    again = on_ray.encode(root, "r", version="again", data=corpus("again", range(80)))
    of_again = codes.of_version(store, again)
    assert np.array_equal(of_again.codes[5:75], of_grown.codes), "new items keep theirs in the next version"
    assert np.array_equal(of_again.codes[:5], own.codes[:5]), "and those that come back have what was trained for them"

    on_ray.publish(root, "again")
    same = on_ray.encode(root, "r", version="again", data=corpus("again", range(80)))
    assert same.parts == again.parts, "what is current now does not matter to a version that was begun before"
    on_ray.publish(root, "grown")

    newest = corpus("again", range(80))
    newer = ["--folder", str(newest.folder), "--new-codes", "predicted"]
    assert main(["encode", "--run", "r", "--version", "predicted", *newer, "--storage", root]) == 0
    predicted = on_ray.publish(root, "predicted")
    of_predicted, model = codes.of_version(store, predicted), Version(store, predicted).model
    assert np.array_equal(of_predicted.codes[:75], of_again.codes[:75])
    assert isinstance(model, Solar)
    texts = pq.read_table(Path(str(newest.folder)) / "items.parquet")["text"].to_pylist()[75:]
    best = predicted_buckets(model, texts)
    assert best.is_known.all()
    assert (of_predicted.codes[75:, :, None] == best.buckets).any(axis=2).all(), "new items stand in predicted buckets"


def test_a_run_made_anew_under_its_name_has_codes_of_its_own(folder: Path, tmp_path: Path) -> None:
    store, versions = Storage(str(tmp_path)), []
    for seed in (0, 1):
        versions.append(publish_solar(tmp_path, folder, [0, 1, 2, 3], version=f"v{seed}", seed=seed))
        assert np.array_equal(codes.of_version(store, versions[-1]).codes, codes.read(store, "runs/solar").codes)
        shutil.rmtree(tmp_path / "runs" / "solar")
    assert not np.array_equal(*(codes.of_version(store, version).codes for version in versions))


@pytest.mark.parametrize("kind", ["vector", pytest.param("features", marks=pytest.mark.long)])
def test_queries_that_are_numbers_from_data_to_a_current_version(kind: str, tmp_path: Path) -> None:
    """Each label has a feature of its own, so that a model that has learnt finds it first."""
    folder = write_number_data(tmp_path / "data", kind)
    small = small_solar_config(num_chunks=2)
    encoder = replace(small.family.encoder, input=kind, ngram_sizes=())
    training = replace(small.training, num_steps=150)
    own = replace(small.with_family(encoder=encoder), training=training, data=DataConfig(folder=str(folder)))
    done = pipeline(own, str(tmp_path), run="r", placing=TASKS)
    assert done.report.hit_rate[1] == 1
    assert done.manifest.query == (
        {"features": "map<int64, float>"} if kind == "features" else {"embedding": "list<float>"}
    )
    assert training_family(own).model_facts(done.manifest) == {"chunks_trained": 2, "num_chunks": 2}
    with pytest.raises(ValueError, match="new_codes predicted needs items with texts and codes, got run 'r' of"):
        on_ray.encode(str(tmp_path), "r", version="other", new_codes="predicted")
    on_ray.encode(str(tmp_path), "r", version="other")  # whose name was not taken by what was refused
    if kind == "vector":  # as numbers of features are read of JSON's words, they are what needs a server
        return
    with served(ServeArgs(storage=str(tmp_path), allow_anonymous=True)) as url:
        queries = [{"features": {"5": 1.0}}, {"features": {"11": 2.0, "30": 0.5}}, {"features": {}}]
        found = httpx.post(f"{url}/v1/search", json={"queries": queries, "k": 1}, timeout=60).json()["results"]
    assert [result["items"] for result in found[:2]] == [[5], [11]]
    assert [result["is_known"] for result in found] == [True, True, False]
