"""Progress of work on the cluster: what a worker writes, what a task yields, and what the bar shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray import counting, on_ray
from rails_ray.cli.main import main
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.on_ray import training
from rails_ray.on_ray.progress import ProgressBoard, Reporter, in_task
from rails_ray.on_ray.training import Assignment, Settings
from support.clocks import clock_of
from support.data_folders import write_vector_data
from support.processes import wait_for

Seen = list[tuple[int, int, str]]


class Board:
    """A board in this process."""

    def __init__(self) -> None:
        self.board = ProgressBoard()
        self.write: Any = self
        self.remote = self.board.write


@pytest.mark.parametrize(("piece", "shown"), [("", (40, 50, "items encoded")), ("a", (7, 9, "40 of 50 items encoded"))])
def test_counts_take_the_place_of_steps_or_stand_beside_them(piece: str, shown: tuple[int, int, str]) -> None:
    board = Board()
    report = Reporter(board, 9, piece=piece, clock=clock_of(0.0, 1.0, 1.1, 2.0, 2.1))
    report(7, 1.5)
    assert board.board.read() == {piece: (7, 9, "loss 1.500")}
    report.count(40, 50, "items encoded")
    assert board.board.read() == {piece: shown}
    report.count(45, 50, "items encoded")  # too soon
    assert board.board.read() == {piece: shown}
    report(8, 1.25)
    assert board.board.read() == {piece: (8, 9, "loss 1.250")}
    report(9, 1.0)
    assert board.board.read() == {piece: (9, 9, "validating")}


def test_a_piece_without_steps_is_a_plain_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of Ray Train starts two processes more, which takes longer than what there is to do."""
    asked = list[Assignment]()

    class Task:
        def options(self, **options: object) -> "Task":
            return self

        def remote(self, worker: object, assignment: Assignment) -> None:
            asked.append(assignment)

    monkeypatch.setattr(training, "_train_task", Task())
    [piece] = training_family(by_name("vector-cosine")).pieces()
    assignment = Assignment(storage="s", run="r", config=b"", piece=piece, checkpoint_s=1.0)
    training._start(training.work, assignment, Settings())
    assert [one.piece for one in asked] == [piece]
    encoder = training_family(by_name("text-mol")).pieces()[0]
    training._start(training.work, replace(assignment, piece=encoder), Settings(num_workers=1))
    assert encoder.shares_gradient
    assert asked[-1].piece == encoder, "a single worker has nobody to share its gradient with"


def counts(num: int, seen: str) -> str:
    """Count to 1, wait until the file `seen` exists, then count to `num`."""
    counting.advance(1, num, "things")
    wait_for(Path(seen).exists)
    for done in range(1, num):
        counting.advance(done + 1, num, "things")
    return "result"


def fails() -> None:
    raise ValueError("things must be others, got these")


@pytest.mark.cluster
@pytest.mark.usefixtures("ray_cluster")
def test_a_task_tells_what_it_counts(tmp_path: Path) -> None:
    seen, first = Seen(), tmp_path / "first"

    def note(*one: Any) -> None:
        seen.append(one)
        first.touch()

    assert in_task(counts, 4, str(first), on_progress=note) == "result"
    assert (seen[0], seen[-1]) == ((1, 4, "things"), (4, 4, "things"))
    assert seen == sorted(set(seen))
    assert {(total, note) for _, total, note in seen} == {(4, "things")}
    assert in_task(counts, 1, str(first)) == "result"
    with pytest.raises(ValueError, match=r"^things must be others, got these$"):
        in_task(fails)


@pytest.mark.cluster
@pytest.mark.usefixtures("ray_cluster")
def test_items_that_are_encoded_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, storage = write_vector_data(tmp_path / "data", num_items=60), str(tmp_path / "s")
    told = ("--storage", storage)
    assert main(["train", "vector-cosine", "--data.folder", str(data), "--run", "r", *told]) == 0
    seen = Seen()
    on_ray.encode(storage, "r", version="v", part_items=20, on_progress=lambda *one: seen.append(one))
    assert seen[-1] == (60, 60, "items")
    assert all(0 <= done <= 60 and total == 60 for done, total, _ in seen)
    capfd.readouterr()
    assert main(["evaluate", "--run", "r", *told]) == 0
    assert "evaluate" in capfd.readouterr().out
