"""A change that is cut off before or after any of its steps."""

from pathlib import Path
from typing import Any

import pytest

from rails_ray import local
from rails_ray.errors import StorageError
from rails_ray.families import changing
from rails_ray.families.compacting import compact
from rails_ray.families.given_items import given_items
from rails_ray.families.version import Version
from rails_ray.storage import live_ids
from rails_ray.storage.filesystem import Storage
from support.changed import made, vectors_of
from support.failing import BEFORE_AND_AFTER, Failing


def add(storage: Any) -> None:
    changing.add(storage, given_items(vectors_of([50, 51]), ["new", "i7"], ["t50", "t51"]), replaces=True)


def delete(storage: Any) -> None:
    changing.delete(storage, ["i3", "i4"])


def write_anew(storage: Any) -> None:
    compact(storage)


@pytest.mark.parametrize("is_done", BEFORE_AND_AFTER)
@pytest.mark.parametrize("command", [add, delete, write_anew])
def test_each_point_of_a_crash(tmp_path: Path, command: Any, is_done: bool) -> None:
    """Either the former version or the new one answers. When the command is repeated, the result is the same."""
    number, is_over = 0, False
    while not is_over:
        number += 1
        folder = tmp_path / str(number)
        made(folder)
        if command is write_anew:
            delete(Storage(str(folder)))
        storage = Storage(str(folder))
        failing = Failing(storage, number, is_done=is_done)
        before = {*Version.published(storage).item_ids()}
        try:
            command(failing)
            is_over = failing.count < number
        except StorageError:
            between = {*local.open(str(folder)).version.item_ids()}
            command(storage)
            after = {*local.open(str(folder)).version.item_ids()}
            assert between in (before, after)
        expected = {add: before | {"new"}, delete: before - {"i3", "i4"}, write_anew: before}[command]
        assert {*Version.published(storage).item_ids()} == expected
        described = Version.published(storage).described
        assert live_ids.check_balance(storage, described) is None
    assert number > 5
