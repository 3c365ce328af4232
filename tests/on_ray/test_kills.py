"""kill -9 of a driver and of a worker, in training and in encoding: what was done stays done, and the work goes on."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray import on_ray
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.storage import manifest, runs
from rails_ray.storage.filesystem import Storage
from support.command_line import options_of
from support.data_folders import write_text_data
from support.examples import mark, small_config, write_untrained_run
from support.loss_curves import curve_of
from support.processes import finished, kill_one, killed, stop_one

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

NUM_STEPS = 400
MARK_S = 1e6
LOOKS = 20  # for a worker to kill, in each call of the progress
COPIES = 12


@pytest.fixture(scope="module")
def run_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = write_text_data(tmp_path_factory.mktemp("data"), num_items=120)
    small = replace(small_config(), data=DataConfig(folder=str(folder)))
    return replace(small, training=replace(small.training, num_steps=NUM_STEPS, validate_every=100))


@pytest.fixture(scope="module")
def undisturbed(run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return curve_of(run_config, Storage(str(tmp_path_factory.mktemp("storage"))))


@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_driver_of_training_and_of_encoding(
    run_config: RunConfig, undisturbed: list[float], tmp_path: Path
) -> None:
    root, sizes = tmp_path / "storage", run_config.training
    training = ["train", "text-mol", "--run", "r", "--storage", str(root), "--workers", "1", "--checkpoint-s", "0"]
    training += ["--encoder.ngram-sizes", "3", "4", *options_of(run_config)]
    killed(training, root / "runs" / "r" / "checkpoint.safetensors")
    assert not (root / "runs" / "r" / "config.json").exists()  # no half run is to be seen
    mark(root / "runs" / "r" / "checkpoint.safetensors", MARK_S)
    finished(training)
    run = runs.read(Storage(str(root)), "r")
    assert len(run.training["losses"]) == sizes.num_steps
    assert run.training["losses"] == pytest.approx(undisturbed, rel=1e-3, abs=1e-4)
    assert run.training["seconds"] > MARK_S, "it must go on from the checkpoint"
    assert [validation["step"] for validation in run.training["validations"]] == [100, 200, 300, 400]
    assert not (root / "runs" / "r" / "checkpoint.safetensors").exists()

    encoding = ["encode", "--run", "r", "--storage", str(root), "--version", "v", "--part-items", "4"]
    records = root / "versions" / "v" / "parts"
    killed(encoding, records / "000000000004.json")
    before = {record.name: record.read_bytes() for record in records.glob("[0-9]*.json")}
    assert 0 < len(before) < 30
    assert not (root / "versions" / "v" / "encoded.json").exists()
    finished(encoding)
    for name, record in before.items():
        assert (records / name).read_bytes() == record, "what was written must not be written again"
    on_ray.encode(str(root), "r", version="undisturbed", part_items=4)
    store = Storage(str(root))
    one, other = (manifest.read_encoded(store, version) for version in ("v", "undisturbed"))
    assert [part.sha256 for part in one.parts] == [part.sha256 for part in other.parts], "byte-identical parts"
    manifest.check_rows(one)


@pytest.mark.usefixtures("ray_cluster")
def test_workers_that_die_and_hang_while_the_other_waits_for_them(run_config: RunConfig, tmp_path: Path) -> None:
    """With negatives from both workers, which meet in every step several times, and batches of different sizes."""
    training = replace(run_config.training, num_steps=300, batch_size=15)
    shared = replace(run_config, training=training).with_family(negatives=CrossDeviceNegatives())
    faults: list[int] = []

    def disturb(done: int, total: int, note: str) -> None:
        token = os.environ["RAY_AUTH_TOKEN"]
        if not faults and done > 20:
            faults.append(done)
            stop_one("RayTrainWorker", token, pause_s=1, is_killed=True)  # the other is inside an exchange by then
        elif len(faults) == 1 and faults[0] + 40 < done < total:
            faults.append(done)
            stop_one("RayTrainWorker", token, pause_s=8, is_killed=False)
        notes.add(note)

    notes: set[str] = set()
    run = on_ray.train(shared, str(tmp_path), run="r", num_workers=2, checkpoint_s=0, timeout_s=5, on_progress=disturb)
    gone_on_from = sorted({int(note.rpartition(" ")[2]) for note in notes if "going on from step" in note})
    # A step is reported before its checkpoint is written.
    assert [before - 1 <= after for before, after in zip(faults, gone_on_from, strict=True)] == [True, True]
    assert gone_on_from[-1] < training.num_steps
    assert run.training["losses"] == pytest.approx(curve_of(shared, Storage(str(tmp_path))), rel=1e-3, abs=1e-4)


@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_worker_of_encoding(run_config: RunConfig, tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data", num_items=120)
    items = pq.read_table(folder / "items.parquet")
    texts = items["text"].to_pylist() * COPIES  # so many that warm workers are not done before they are looked for
    pq.write_table(
        pa.table({"item_id": [f"item-{row}" for row in range(len(texts))], "text": texts}), folder / "items.parquet"
    )
    root = str(tmp_path / "storage")
    write_untrained_run(Storage(root), "r", replace(run_config, data=DataConfig(folder=str(folder))))
    kills: list[int] = []

    def kill_once(done: int, total: int, note: str) -> None:
        for _ in range(LOOKS):
            if not kills and done < total and kill_one("ray::MapBatches", os.environ["RAY_AUTH_TOKEN"]):
                kills.append(done)

    encoded = on_ray.encode(root, "r", version="v", part_items=1, on_progress=kill_once)
    assert kills, "a worker must have been killed on the way"
    assert len(encoded.parts) == len(texts)
    assert on_ray.publish(root, "v").num_items == len(texts)
