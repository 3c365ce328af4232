"""The driver of SOLAR's chunks, without a cluster: what it shows and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rails_ray import config
from rails_ray.config import DataConfig
from rails_ray.on_ray import chunks
from rails_ray.on_ray.fitting import Every
from rails_ray.storage.filesystem import Storage
from support.clocks import clock_of
from support.examples import small_config, small_solar_config, write_text_data

STEPS = 60


@pytest.mark.parametrize(
    ("done", "failed", "expected"),
    [
        ([], {}, (40, "0 of 6 chunks: chunk 0 loss 1, chunk 2 loss 2, chunk 3 loss 3, 2 more")),
        ([2, 3], {}, (40 - 8 - 10 + 120, "2 of 6 chunks: chunk 0 loss 1, chunk 4 loss 4, chunk 5 loss 5")),
        ([0, 1, 2, 3, 4], {5: "lost"}, (5 * STEPS + 7, "5 of 6 chunks")),
        ([0, 1, 2, 3, 4, 5], {}, (6 * STEPS, "6 of 6 chunks")),
    ],
)
def test_all_chunks_are_one_progress(done: list[int], failed: dict[int, str], expected: tuple[int, str]) -> None:
    steps = {0: 6, 2: 8, 3: 10, 4: 9, 5: 7}
    latest = {chunk: (steps[chunk], STEPS, f"loss {number}") for number, chunk in enumerate([0, 2, 3, 4, 5], start=1)}
    unordered = dict(sorted(latest.items(), reverse=True))
    assert chunks._seen(unordered, 6, STEPS, done, failed) == (expected[0], 6 * STEPS, expected[1])


def test_chunks_that_fail_are_told_by_why() -> None:
    failed = {3: "the disk is full", 0: "the loss must stay finite", 1: "the disk is full"}
    assert chunks._told(failed, "r", 16) == (
        "all 16 chunks of run 'r' must be trained, got 13; chunk 0: the loss must stay finite; "
        "chunk 1, 3: the disk is full: train it again under its name for the missing ones"
    )


@pytest.mark.parametrize(
    ("run_config", "options", "message"),
    [
        (small_config(), {}, "train_chunks is for SOLAR, got recipe small: train trains models of one piece"),
        (small_solar_config(), {"at_once": 0}, "workers must be at least 1, got 0"),
        (small_solar_config(), {"checkpoint_s": -1.0}, "checkpoint_s must be at least 0, got -1.0"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_starts(
    run_config: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        chunks.train_chunks(run_config, str(tmp_path), **options)
    assert not list(tmp_path.iterdir())


def test_data_that_changed_since_the_run_began_train_no_chunk(tmp_path: Path) -> None:
    """The codes of its items would be those of others."""
    folder, store = write_text_data(tmp_path / "data"), Storage(str(tmp_path / "storage"))
    run_config = replace(small_solar_config(), data=DataConfig(folder=str(folder)))
    run_config, missing = chunks._begin(store, "r", run_config)
    assert missing == [0, 1, 2, 3]
    items = pq.read_table(folder / "items.parquet")
    pq.write_table(items.take(list(range(len(items)))[::-1]), folder / "items.parquet")
    settings = {"config": config.to_json(run_config), "storage": str(store), "run": "r", "chunk": 1, "num_threads": 1}
    message = "run 'r/chunk-001' must go on with the config and data that it was begun with, got another data_sha256"
    with pytest.raises(ValueError, match=message):
        chunks._train_chunk(settings)


def test_a_checkpoint_is_due_once_in_so_many_seconds() -> None:
    every = Every(5, clock_of(0, 4.9, 5, 9.9, 10, 30, 34))
    assert [every() for _ in range(6)] == [False, True, False, True, True, False]
