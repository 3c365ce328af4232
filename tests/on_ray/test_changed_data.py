"""Data that change between the beginning of a run and the moment in which its workers read them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.errors import TrainingError
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.on_ray import training
from rails_ray.storage.filesystem import Storage

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

OTHER_DATA = (
    "^training of run 'r' must end with a model, got: run 'r' must keep the config and data that it was begun "
    "with, got another data_sha256: '[0-9a-f]{64}' instead of '[0-9a-f]{64}': choose another --run$"
)


def train_by(worker: training.Worker, run_config: RunConfig, root: Path) -> None:
    """Begin run `r` and train it by what each of two workers does here."""
    begun = training.begin(run_config, Storage(str(root)), "r")
    settings = training.Settings(num_workers=2).on_cluster(begun.pieces)
    training.fit_pieces(begun, settings, worker=worker)


@pytest.mark.long
def test_data_that_change_before_the_workers_read_them_are_not_trained_on(
    tmp_path: Path, run_config: RunConfig
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(str(run_config.data.folder), folder)
    own = replace(run_config, data=DataConfig(folder=str(folder)))
    begun = training.begin(own, Storage(str(tmp_path)), "r")
    items = pq.read_table(folder / "items.parquet").to_pydict()
    items["text"][0] += " changed"
    pq.write_table(pa.table(items), folder / "items.parquet")
    with pytest.raises(TrainingError, match=OTHER_DATA):
        training.fit_pieces(begun, training.Settings(num_workers=2).on_cluster(begun.pieces))
    assert sorted(path.name for path in (tmp_path / "runs" / "r").iterdir()) == ["begun.json"], "no step must be done"


@pytest.mark.faults
def test_data_that_change_between_two_starts_are_not_trained_on(tmp_path: Path, run_config: RunConfig) -> None:
    folder, starts = tmp_path / "data", tmp_path / "starts"
    shutil.copytree(str(run_config.data.folder), folder)
    starts.mkdir()
    own = replace(run_config, data=DataConfig(folder=str(folder)))

    def worker(assignment: training.Assignment) -> None:  # sent to the workers as it stands here
        import os
        import uuid

        import pyarrow as pa
        import pyarrow.parquet as pq
        import ray.train

        from rails_ray.on_ray import training

        if ray.train.get_context().get_world_rank() == 0:
            (starts / uuid.uuid4().hex).touch()
            if len(list(starts.iterdir())) == 1:
                items = pq.read_table(folder / "items.parquet").to_pydict()
                items["text"][0] += " changed"
                pq.write_table(pa.table(items), folder / "items.parquet")
                os._exit(1)
        training.work(assignment)

    with pytest.raises(TrainingError, match=OTHER_DATA):
        train_by(worker, own, tmp_path)
    assert len(list(starts.iterdir())) == 2


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_alone_reads_other_data_ends_the_run(tmp_path: Path, run_config: RunConfig, rank: int) -> None:
    """The other one waits for it by then."""
    starts = tmp_path / "starts"
    starts.mkdir()

    def worker(assignment: training.Assignment) -> None:  # sent to the workers as it stands here
        import dataclasses
        import uuid

        import ray.train

        from rails_ray.on_ray import training
        from rails_ray.storage.ids import ItemIds

        (starts / uuid.uuid4().hex).touch()
        if ray.train.get_context().get_world_rank() == rank:
            read = training.read_data

            def changed(*arguments: Any) -> Any:
                data = read(*arguments)
                return dataclasses.replace(data, item_ids=ItemIds([*data.item_ids[:-1], "another"]))

            training.read_data = changed
        training.work(assignment)

    with pytest.raises(TrainingError, match=OTHER_DATA):
        train_by(worker, run_config, tmp_path)
    assert len(list(starts.iterdir())) == 2, "it would come again: no retry"
    assert not (tmp_path / "runs" / "r" / "config.json").exists()
