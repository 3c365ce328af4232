"""SOLAR as one job on a cluster with a GPU, of which chunks reserve parts; no device stands behind it here."""

from dataclasses import replace
from pathlib import Path

import pytest
from ray.util.state import list_placement_groups

from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.command_line import options_of
from support.examples import small_solar_config
from support.head_node import ROOT, HeadNode, submit

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_two_chunks_share_a_gpu(head: HeadNode, run_config: RunConfig, tmp_path: Path) -> None:
    small = replace(small_solar_config(num_chunks=2), data=DataConfig(folder=run_config.data.folder))
    words = ["text-solar", "--run", "r", "--storage", str(tmp_path), "--workers", "2", "--chunks.num-gpus", "0.5"]
    ended = submit(head, "python", "-m", "rails_ray.jobs.train", *words, *options_of(small), working_dir=str(ROOT))
    assert ended.code == 0, ended.log
    assert ended.told["run"] == "r"
    assert "2 of 2 pieces" in ended.log
    assert runs.finished_pieces(Storage(str(tmp_path)), "r") == ["chunk-000", "chunk-001"]
    groups = list_placement_groups(head.address, detail=True)
    reserved = [bundle["unit_resources"] for group in groups for bundle in group.bundles]
    assert reserved.count({"CPU": 1, "GPU": 0.5}) == 2, "each chunk must have reserved its part"
