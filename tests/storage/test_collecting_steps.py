"""Collections and changes that are killed at any step, or do any step while the other is at any of its own."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import ConflictError, NotFoundError
from rails_ray.families.compacting import compact
from rails_ray.families.version import Version
from rails_ray.storage import collecting, intents, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.garbage import RetentionPolicy
from rails_ray.storage.intents import FOLDER
from support.clocks import Clock
from support.collected import add, assert_whole, build, cut_off, delete_all, files, files_of, known
from support.failing import BEFORE_AND_AFTER, Failing
from support.processes import wait_for
from support.tried import IS_MANY

EVERY = 1 if IS_MANY else 3  # of the steps
LATER_S = 10 * max(intents.LASTS_S, collecting.LASTS_S)  # by then all that died has expired


@pytest.fixture
def later() -> Clock:
    clock = Clock()
    clock.now = time.time() + LATER_S
    return clock


def steps(root: Path, run: Callable[[Failing], Any], **options: Any) -> Iterator[Storage]:
    """A copy of a storage for each step of a command, in which that step failed; at last one where none did."""
    number, is_over = 1, False
    while not is_over:
        storage = copied(root, number)
        failing = Failing(storage, number, **options)
        with suppress(OSError):
            run(failing)
            is_over = failing.count < number
        yield storage
        number += EVERY
    assert number > 19


def copied(root: Path, number: int) -> Storage:
    copy = root.with_name(f"{root.name}-{number}")
    shutil.copytree(root, copy)
    return Storage(str(copy))


@pytest.mark.parametrize("is_done", BEFORE_AND_AFTER)
def test_a_collection_is_killed(tmp_path: Path, later: Clock, is_done: bool) -> None:
    """What is needed is whole, and another collection ends the work."""
    root = tmp_path / "storage"
    made, policy = Storage(str(root)), RetentionPolicy(keep=0, unfinished=True)
    build(made, "v1")
    add(made, 500)
    cut_off(made, "v2", 300)
    build(made, "v3", 100)
    current = add(made, 501)
    made.write("objects/" + 64 * "0", b"of nobody")
    needed = files_of(made, "v3") | files_of(made, current)
    for storage in steps(root, lambda failing: delete_all(failing, policy), is_done=is_done, is_dead=True):
        assert needed <= files(storage)
        for version in known(storage):
            if known(storage)[version] in ("published", "current"):
                assert_whole(storage, version)  # until its manifest is gone, also one that is to go
        delete_all(storage, policy, clock=later)
        assert files(storage) == needed
        assert {*known(storage)} == {"v3", current}


@pytest.mark.parametrize("is_done", BEFORE_AND_AFTER)
def test_a_change_is_killed(tmp_path: Path, later: Clock, is_done: bool) -> None:
    """What it left goes once its intent has expired, and no sooner."""
    root = tmp_path / "storage"
    build(Storage(str(root)), "v1")
    for storage in steps(root, lambda failing: add(failing, 1, 500), is_done=is_done, is_dead=True):
        if storage.walk(FOLDER):
            with pytest.raises(ConflictError, match="no change may be under way"):
                delete_all(storage)
        delete_all(storage, clock=later)
        assert storage.walk(FOLDER) == []
        assert files(storage) == {path for version in known(storage) for path in files_of(storage, version)}
        add(storage, 1, 500)
        assert_whole(storage, versions.current_version(storage))


@pytest.fixture
def written_before(tmp_path: Path) -> Path:
    """v1 is current, and what an addition to it would write is there already, for a version that is to go."""
    root = tmp_path / "storage"
    storage = Storage(str(root))
    build(storage, "v1")
    add(storage, 1, 500)
    build(storage, "v2", 100)
    build(storage, "v3", 200)
    versions.rollback(storage, "v1")
    return root


CHANGES: dict[str, Callable[[Storage], Any]] = {
    "add": lambda storage: add(storage, 1, 500),
    "compact": compact,
    "rollback": lambda storage: versions.rollback(storage, "v2"),
}


@pytest.mark.parametrize("is_alive", [True, False], ids=["its intent is live", "its intent has expired"])
@pytest.mark.parametrize("command", CHANGES)
def test_a_collection_at_each_step_of_a_change(
    written_before: Path, later: Clock, command: str, is_alive: bool
) -> None:
    if command == "compact":
        add(Storage(str(written_before)), 501)
    number, is_over, num_refused = 1, False, 0
    while not is_over:
        storage = copied(written_before, number)

        def between(storage: Storage = storage) -> None:
            nonlocal num_refused
            if is_alive and storage.walk(FOLDER):
                with pytest.raises(ConflictError, match="no change may be under way"):
                    delete_all(storage)
                num_refused += 1
            else:
                delete_all(storage, clock=later)

        failing = Failing(storage, number, before=between)
        try:
            CHANGES[command](failing)
        except (ConflictError, NotFoundError):
            assert command == "rollback"  # to a version that was collected before it, or while it stood still
        is_over = failing.count < number
        assert_whole(storage, versions.current_version(storage))
        if command == "add":
            assert {"i1", "i500"} <= {*Version.published(storage).item_ids()}
        number += EVERY
    assert num_refused > 1 or not is_alive


def test_a_change_at_each_step_of_a_collection(written_before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits, and writes what the collection has deleted."""
    monkeypatch.setattr(intents, "LOOK_S", 0.002)
    number, is_over, num_complete = 1, False, 0
    while not is_over:
        storage = copied(written_before, number)
        errors = list[BaseException]()

        def write(storage: Storage = storage, errors: list[BaseException] = errors) -> None:
            try:
                add(storage, 1, 500)
            except BaseException as error:
                errors.append(error)

        writer = threading.Thread(target=write)

        def between(storage: Storage = storage, writer: threading.Thread = writer) -> None:
            writer.start()
            wait_for(lambda: not writer.is_alive() or bool(storage.list(FOLDER)))
            writer.join(0.05)  # it is over, or waits

        failing = Failing(storage, number, before=between)
        with suppress(ConflictError):  # the change is under way
            num_complete += delete_all(failing).is_complete
        is_over = failing.count < number
        if not is_over:
            writer.join()
            assert {"i1", "i500"} <= {*Version.published(storage).item_ids()}
        assert not errors
        assert_whole(storage, versions.current_version(storage))
        number += EVERY
    assert num_complete > 5
