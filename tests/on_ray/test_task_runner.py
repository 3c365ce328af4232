"""Numbered tasks on a real cluster: each is done once, so many at a time; one that fails ends the others."""

import time
from functools import partial
from pathlib import Path

import pytest
import ray

from rails_ray.on_ray.task_runner import run_tasks, start_workers

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def note(folder: Path, number: int) -> None:
    began = time.time()
    time.sleep(0.1)  # so long that tasks which are not held back overlap
    with (folder / str(number)).open("x") as file:
        file.write(f"{began} {time.time()}")


@pytest.mark.parametrize(("num_tasks", "num_workers"), [(1, 3), (7, 2)])
def test_each_is_done_once_and_so_many_at_a_time(num_tasks: int, num_workers: int, tmp_path: Path) -> None:
    run_tasks(partial(note, tmp_path), num_tasks, num_workers, 0)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(num_tasks))
    spans = [tuple(map(float, path.read_text().split())) for path in tmp_path.iterdir()]
    at_once = [sum(began <= start < ended for began, ended in spans) for start, _ in spans]
    assert max(at_once) <= num_workers


def fails_first(folder: Path, number: int) -> None:
    if number == 0:
        raise ValueError("things must be others, got these")
    (folder / "begun").touch()
    time.sleep(600)  # ends in time only if it is cancelled


def test_one_that_fails_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"^things must be others, got these$"):
        run_tasks(partial(fails_first, tmp_path), 9, 2, 0)
    run_tasks(partial(note, tmp_path), 4, 4, 0)  # all four CPUs are free again
    assert time.monotonic() - began < 300


def test_processes_import_what_they_will_need() -> None:
    started = start_workers(["json", "rails_ray.storage.parts"], 2)
    assert ray.get(started) == [None, None]
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        ray.get(start_workers(["no_such_module"], 1))
