"""The bench of the whole system on a GPU, with a GPU that Ray only counts."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.benches import gpu_system, gpu_system_serving
from jobs.benches.gpu_measuring import Case
from jobs.benches.gpu_system import Section
from jobs.benches.gpu_system_setting import System
from jobs.benches.gpu_system_versions import beside_plan, planned_mb
from rails_ray.families.version import Version
from rails_ray.on_ray.serving.plan import DeploymentSize
from rails_ray.serving.gpu_room import CONTEXT_BYTES, needed_bytes
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here

ROOT = Path(__file__).parents[2]
HERE = "benches.test_gpu_system"
SYSTEM = System("cpu", True, "")


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.cluster
@pytest.mark.long
def test_every_section_has_its_rows_and_none_fails(tmp_path: Path) -> None:
    """All but `serve`, which takes as long as the others together, and has a test of its own."""
    sections = [name for name in gpu_system.SECTIONS if name != "serve"]
    command = [sys.executable, "-m", "jobs.benches.gpu_system", "--device", "cpu", "--small", "--out", str(tmp_path)]
    command += ["--limit-s", "1600", "--only", *sections]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=1700)
    described, *rows = rows_in(tmp_path / "gpu_system.jsonl")
    assert not [row for row in rows if "failed" in row], done.stderr[-3000:]
    assert done.returncode == 0
    assert (described["kind"], described["device"], described["is_small"]) == ("environment", "cpu", True)
    cases = {(row["section"], row["case"], row.get("on")): row for row in rows if "case" in row}
    assert {section for section, _, _ in cases} == set(sections)
    places = ("pretended GPU", "cpu")

    for place, gpu_ids in zip(places, (["0"], []), strict=True):
        [worker] = cases["train", "mixture, one worker", place]["workers"]
        assert (worker["way"], worker["gpu_ids"]) == ("a task", gpu_ids)
    assert cases["train", "mixture, one worker", "cpu"]["losses_off"] == 0
    assert cases["train", "SOLAR, chunks", "cpu"]["losses_off"] == 0
    for worker in cases["train", "SOLAR, chunks", places[0]]["workers"]:
        assert (worker["way"], worker["gpu_ids"]) == ("Ray Train", ["0"])
    assert len(cases["train", "mixture, two workers of Ray Train", "cpu"]["workers"]) == 2

    assert cases["encode", "the GPU's items beside the CPU's", None]["off"]["components"] == 0
    for place in places:
        assert cases["large", "start", place]["processes"] == 2
    loads = [row for row in rows if row.get("case") == "load"]
    assert all(row["queries_per_s"] > 0 and row["p99_ms"] >= row["p50_ms"] for row in loads)
    assert {(row["clients"], row["queries"]) for row in loads} == {(1, 1), (1, 32), (8, 1), (8, 32)}


@pytest.mark.cluster
@pytest.mark.long
def test_answers_over_http_are_those_of_one_process_through_all_of_serve(tmp_path: Path) -> None:
    """Cut-offs, clients at once, and another version and back, of replicas on a GPU that is counted and on the CPU."""
    command = [sys.executable, "-m", "jobs.benches.gpu_system", "--device", "cpu", "--small", "--out", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [*command, "--limit-s", "900", "--only", "serve"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=1000,
    )  # fmt: skip
    _, *rows = rows_in(tmp_path / "gpu_system.jsonl")
    assert not [row for row in rows if "failed" in row], done.stderr[-3000:]
    assert done.returncode == 0
    for place in ("pretended GPU", "cpu"):
        cases = {row["case"]: row for row in rows if row.get("on") == place}
        assert cases.keys() >= {"start", *gpu_system_serving.CUTOFFS, "explain", "swap, there and back", "load"}
        assert cases["start"]["processes"] == 6  # two routers, and two replicas of each of two shards


def some_cases(system: System) -> Iterator[Case]:
    yield Case({"case": "first"}, lambda: {"value": 1})
    yield Case({"case": "second"}, no_cases)
    yield Case({"case": "third"}, lambda: {"value": 3})
    raise RuntimeError("no server")


def no_cases(*_: object) -> Any:
    raise ValueError("k must be at least 1, got 0")


def dying_cases(system: System) -> Iterator[Case]:
    yield Case({"case": "first"}, lambda: os._exit(3))


def hanging_cases(system: System) -> Iterator[Case]:
    time.sleep(600)
    yield Case({"case": "first"}, lambda: {"value": 1})


@pytest.mark.long
def test_a_failure_is_a_row_and_the_other_cases_still_run(capfd: pytest.CaptureFixture[str]) -> None:
    rows = list(gpu_system.rows_of(Section(f"{HERE}:some_cases", 60), SYSTEM, 60))
    assert [(row.get("case"), row.get("value"), row.get("failed")) for row in rows] == [
        ("first", 1, None),
        ("second", None, "ValueError: k must be at least 1, got 0"),
        ("third", 3, None),
        (None, None, "RuntimeError: no server"),
    ]
    assert "in no_cases" in capfd.readouterr().err  # the traceback


@pytest.mark.long
def test_a_section_that_dies_or_hangs_is_a_row() -> None:
    [row] = gpu_system.rows_of(Section(f"{HERE}:dying_cases", 60), SYSTEM, 60)
    assert row == {"failed": "a section must end by itself, got exit code 3"}
    [row] = gpu_system.rows_of(Section(f"{HERE}:hanging_cases", 60), SYSTEM, 4)
    assert row == {"failed": "a section must end within 4 s"}


def test_a_gpu_is_needed_unless_the_cpu_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu_system.main([])
    assert "--device must be cpu where torch sees no GPU, got cuda" in capsys.readouterr().err


def result(scores: dict[str, float], threshold: float | None = None) -> dict[str, Any]:
    return {"items": list(scores), "scores": list(scores.values()), "threshold": threshold}


def test_answers_agree_but_for_rounding() -> None:
    expected = [result({"a": 0.9, "b": 0.5, "c": 0.4})]
    near = [result({"a": 0.9001, "c": 0.4001, "d": 0.4})]
    assert gpu_system_serving.agreement(expected, expected) == {"off": 0.0, "items": 3}
    assert "1 items of one side alone" in gpu_system_serving.agreement(near, expected)["failed"]  # b is no tie
    tied = [result({"a": 0.9001, "b": 0.5, "d": 0.4001})]
    assert "failed" not in gpu_system_serving.agreement(tied, expected)
    assert "failed" in gpu_system_serving.agreement([result({"a": 0.91, "b": 0.5, "c": 0.4})], expected)
    cut = [result({"a": 0.9}, 0.5001)]
    assert "failed" not in gpu_system_serving.agreement(cut, [result({"a": 0.9, "b": 0.5}, 0.5)])
    assert "failed" in gpu_system_serving.agreement([result({}, 0.95)], [result({"a": 0.9}, 0.85)])


def test_more_memory_than_planned_is_a_failure(tmp_path: Path) -> None:
    publish_here(tmp_path, 2)
    size = DeploymentSize(replicas=3, num_gpus=0.25, router_gpus=0.1)
    version = Version.published(Storage(str(tmp_path)))
    of_items = needed_bytes(version, 0) + needed_bytes(version, 1)
    assert planned_mb(str(tmp_path), size) == 3 * (3 * CONTEXT_BYTES + of_items) / 1e6
    assert planned_mb(str(tmp_path), DeploymentSize()) is None
    assert beside_plan(109.0, 100.0) == {"planned_mb": 100.0}
    assert beside_plan(111.0, 100.0)["failed"] == "replicas must take at most 1.1 of 100 MB, got 111"
    assert beside_plan(None, None) == {}
