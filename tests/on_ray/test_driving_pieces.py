"""The driver of a run's pieces, without a cluster: what it shows and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rails_ray import on_ray
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.running import begin
from rails_ray.families.training_family import training_family
from rails_ray.on_ray.fitting import Every
from rails_ray.on_ray.run_state import RunState
from rails_ray.on_ray.training import Assignment, work
from rails_ray.storage import codes, runs
from rails_ray.storage.filesystem import Storage
from support.clocks import clock_of
from support.data_folders import write_text_data
from support.examples import small_config, small_solar_config
from support.pieces import CountingPiece

STEPS = 60
SIX = training_family(small_solar_config(num_chunks=6)).pieces()
ONE = training_family(small_config()).pieces()


@pytest.mark.parametrize(
    ("done", "failed", "expected"),
    [
        ([], {}, (40, "0 of 6 pieces: chunk-000 loss 1, chunk-002 loss 2, chunk-003 loss 3, 2 more")),
        ([2, 3], {}, (40 - 8 - 10 + 120, "2 of 6 pieces: chunk-000 loss 1, chunk-004 loss 4, chunk-005 loss 5")),
        ([0, 1, 2, 3, 4], {5: "lost"}, (5 * STEPS + 7, "5 of 6 pieces")),
        ([0, 1, 2, 3, 4, 5], {}, (6 * STEPS, "6 of 6 pieces")),
    ],
)
def test_all_pieces_are_one_progress(done: list[int], failed: dict[int, str], expected: tuple[int, str]) -> None:
    steps = {0: 6, 2: 8, 3: 10, 4: 9, 5: 7}
    shown = {
        SIX[chunk].name: (steps[chunk], STEPS, f"loss {number}") for number, chunk in enumerate([0, 2, 3, 4, 5], 1)
    }
    standing = RunState(SIX, [SIX[chunk].name for chunk in done])
    standing.failed = {SIX[chunk].name: reason for chunk, reason in failed.items()}
    unordered = dict(sorted(shown.items(), reverse=True))
    assert standing.seen(unordered) == (expected[0], 6 * STEPS, expected[1])


def test_a_run_of_one_piece_shows_that_piece() -> None:
    standing = RunState(ONE)
    assert standing.seen({}) == (0, STEPS, "starting")
    assert standing.seen({"": (7, STEPS, "loss 1.5")}) == (7, STEPS, "loss 1.5")
    assert standing.seen({"": (512, 4000, "items encoded")}) == (512, 4000, "items encoded")
    standing.done.append("")
    assert standing.seen({"": (900, 900, "queries ranked")}) == (STEPS, STEPS, "done")
    assert standing.seen({}) == (STEPS, STEPS, "done")  # if the board could not be asked


def test_a_piece_that_fits_itself_counts_as_a_step() -> None:
    standing = RunState([CountingPiece("a"), CountingPiece("b"), SIX[2]], ["a"])
    assert standing.seen({}) == (1, STEPS + 2, "1 of 3 pieces")
    assert standing.seen({"chunk-002": (5, STEPS, "loss 1")}) == (6, STEPS + 2, "1 of 3 pieces: chunk-002 loss 1")


def test_pieces_that_fail_are_told_by_why() -> None:
    sixteen = training_family(small_solar_config(num_chunks=16)).pieces()
    standing = RunState(sixteen, [piece.name for number, piece in enumerate(sixteen) if number not in (0, 1, 3)])
    standing.waiting.clear()
    standing.failed = {
        "chunk-003": "the disk is full",
        "chunk-000": "the loss must stay finite",
        "chunk-001": "the disk is full",
    }
    assert standing.failure_message("r") == (
        "all 16 pieces of run 'r' must be trained, got 13; chunk-000: the loss must stay finite; "
        "chunk-001, chunk-003: the disk is full: train it again under the same name for the rest"
    )


def test_pieces_wait_for_those_that_they_come_after() -> None:
    first, other = CountingPiece("first"), CountingPiece("other")
    second, third = CountingPiece("second", after=("first",)), CountingPiece("third", after=("second", "other"))
    standing = RunState([first, second, third, other], ["first"])
    assert standing.ready() == [second, other]
    standing.done += ["other", "second"]
    assert third in standing.ready()

    standing = RunState([first, second, third, other], ["other"])
    standing.waiting = [second, third]
    standing.failed = {"first": "the disk is full"}
    assert standing.ready() == []
    assert standing.failure_message("r") == (
        "all 4 pieces of run 'r' must be trained, got 1; first: the disk is full; second: it comes after first; "
        "third: it comes after second: train it again under the same name for the rest"
    )


@pytest.mark.parametrize("run_config", [small_config(), small_solar_config()], ids=lambda config: config.name)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"checkpoint_s": -1.0}, r"checkpoint_s must be at least 0, got -1\.0"),
        ({"timeout_s": 0.0}, r"timeout_s must be above 0, got 0\.0"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_starts(
    run_config: RunConfig, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        on_ray.train(run_config, str(tmp_path), **options)
    assert not list(tmp_path.iterdir())


def test_what_is_refused_takes_no_name(tmp_path: Path) -> None:
    folder, store = write_text_data(tmp_path / "data"), Storage(str(tmp_path / "storage"))
    many = replace(small_solar_config(num_buckets=61), data=DataConfig(folder=str(folder)))
    with pytest.raises(ValueError, match=r"encoder\.num_buckets must be at most the 60 items, got 61"):
        begin(many, store, "r")
    assert not runs.is_begun(store, "r")


def test_what_a_run_fixes_is_drawn_once(tmp_path: Path) -> None:
    folder, store = write_text_data(tmp_path / "data"), Storage(str(tmp_path / "storage"))
    run_config = replace(small_solar_config(), data=DataConfig(folder=str(folder)))
    begin(run_config, store, "r")
    assert runs.pieces(store, "r") == ["chunk-000", "chunk-001", "chunk-002", "chunk-003"]
    drawn = codes.read(store, "runs/r")
    others = replace(drawn, codes=drawn.codes[::-1].copy())
    codes.write(store, "runs/r", others)  # as if a former version had drawn otherwise
    begin(run_config, store, "r")
    assert (codes.read(store, "runs/r").codes == others.codes).all()


@pytest.mark.parametrize("piece", [0, 1])
def test_data_that_changed_since_the_run_began_train_no_piece(piece: int, tmp_path: Path) -> None:
    """SOLAR's codes, for one, would be those of other items."""
    folder, store = write_text_data(tmp_path / "data"), Storage(str(tmp_path / "storage"))
    small = [small_config(), small_solar_config()][piece]
    begun = begin(replace(small, data=DataConfig(folder=str(folder))), store, "r")
    items = pq.read_table(folder / "items.parquet")
    pq.write_table(items.take(list(range(len(items)))[::-1]), folder / "items.parquet")
    assignment = Assignment(
        storage=str(store), run="r", config=begun.config, piece=begun.pieces[piece], checkpoint_s=60, num_threads=1
    )
    name = ["r", "r/chunk-001"][piece]
    message = f"run '{name}' must keep the config and data that it was begun with, got another data_sha256"
    with pytest.raises(ValueError, match=message):
        work(assignment)


def test_a_checkpoint_is_due_once_in_so_many_seconds() -> None:
    every = Every(5, clock_of(0, 4.9, 5, 9.9, 10, 30, 34))
    assert [every() for _ in range(6)] == [False, True, False, True, True, False]
