"""SOLAR as one job on a cluster with a GPU, of which chunks reserve parts; no device stands behind it here."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import options_of
from examples import small_solar_config
from head_node import ROOT, HeadNode, Heard, submit
from rails_ray.config import DataConfig, RunConfig
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage

NUM_CHUNKS = 3


@pytest.mark.cluster
def test_chunks_share_a_gpu_and_one_that_needs_more_is_refused(
    head: HeadNode, run_config: RunConfig, tmp_path: Path
) -> None:
    small = replace(small_solar_config(num_chunks=NUM_CHUNKS), data=DataConfig(folder=run_config.data.folder))

    def train(run: str, num_gpus: str) -> Heard:
        words = ["train", "text-solar", "--run", run, "--storage", str(tmp_path), "--chunks.num-gpus", num_gpus]
        words += ["--workers", str(NUM_CHUNKS), *options_of(small)]
        return submit(head, "python", "-m", f"jobs.{words[0]}", *words[1:], working_dir=str(ROOT))

    with ThreadPoolExecutor() as threads:
        halves, two = threads.submit(train, "halves", "0.5"), threads.submit(train, "two", "2")
    assert two.result().told == {
        "job": "train",
        "error": "the cluster must have the 1 CPUs and 2 GPUs that a chunk reserves, got 4 and 1: "
        "set --chunks.num-cpus and --chunks.num-gpus",
    }
    assert halves.result().code == 0, halves.result().log
    assert halves.result().told["run"] == "halves"
    assert f"{NUM_CHUNKS} of {NUM_CHUNKS} chunks" in halves.result().log
    assert runs.finished_chunks(Storage(str(tmp_path)), "halves") == list(range(NUM_CHUNKS))
