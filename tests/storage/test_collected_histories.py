"""Any history of versions, tags, servers and collections."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rails_ray.families import changing
from rails_ray.families.compacting import compact
from rails_ray.families.version import Version
from rails_ray.storage import tags, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.garbage import RetentionPolicy
from rails_ray.storage.leases import Lease
from support.collected import add, build, cut_off, delete_all, files, files_of, known
from support.tried import tried


class Histories(RuleBasedStateMachine):
    """Any history of versions, tags, servers and collections, against what records say as plain JSON."""

    new_folder: ClassVar[Callable[[], Path]]

    @initialize(index=st.sampled_from(["flat", "ivf"]))
    def begin(self, index: str) -> None:
        self.storage, self.index, self.num = Storage(str(type(self).new_folder())), index, 0
        self.items, self.readers = dict[str, set[str]](), dict[str, Lease]()
        self.unfinished = set[str]()
        self.build()

    def note(self) -> str:
        version = versions.current_version(self.storage)
        self.items[version] = {str(own) for own in Version.published(self.storage).item_ids()}
        return version

    @rule()
    def build(self) -> None:
        self.num += 1
        build(self.storage, f"v{self.num}", 10 * self.num, self.index)
        self.note()

    @rule(seeds=st.lists(st.integers(0, 60), min_size=1, max_size=3, unique=True))
    def upsert(self, seeds: list[int]) -> None:
        before = self.note()
        add(self.storage, *seeds)
        assert self.items[self.note()] == self.items[before] | {f"i{own}" for own in seeds}

    @rule(seeds=st.lists(st.integers(0, 60), min_size=1, max_size=3, unique=True))
    def delete(self, seeds: list[int]) -> None:
        before = self.note()
        changing.delete(self.storage, [f"i{own}" for own in seeds])
        assert self.items[self.note()] == self.items[before] - {f"i{own}" for own in seeds}

    @rule()
    def compact(self) -> None:
        before = self.note()
        compact(self.storage)
        assert self.items[self.note()] == self.items[before]

    @rule()
    def cut_off(self) -> None:
        self.num += 1
        cut_off(self.storage, f"u{self.num}", 10 * self.num)
        self.unfinished.add(f"u{self.num}")

    @rule(number=st.integers(0, 9))
    def roll_back(self, number: int) -> None:
        versions.rollback(self.storage, sorted(self.items)[number % len(self.items)])

    @rule(name=st.sampled_from("ab"), number=st.integers(0, 9))
    def tag(self, name: str, number: int) -> None:
        tags.tag(self.storage, name, sorted(self.items)[number % len(self.items)])

    @precondition(lambda self: tags.listed(self.storage))
    @rule(number=st.integers(0, 9))
    def untag(self, number: int) -> None:
        names = [*tags.listed(self.storage)]
        tags.untag(self.storage, names[number % len(names)])

    @rule(name=st.sampled_from("ab"), number=st.integers(0, 9))
    def serve(self, name: str, number: int) -> None:
        version = sorted(self.items)[number % len(self.items)]
        lease = Lease(self.storage, lambda: version)
        lease.look()
        if former := self.readers.pop(name, None):
            former.end()
        self.readers[name] = lease

    @rule(name=st.sampled_from("ab"))
    def end_server(self, name: str) -> None:
        if former := self.readers.pop(name, None):
            former.end()

    @rule(keep=st.integers(0, 2), unfinished=st.booleans())
    def collect(self, keep: int, unfinished: bool) -> None:
        manifests = {
            version: json.loads(self.storage.read(f"versions/{version}/manifest.json")) for version in self.items
        }
        pointer = json.loads(self.storage.read("CURRENT"))
        kept = {pointer["version"], pointer["previous"], *tags.listed(self.storage).values()}
        kept |= {path.split("/")[1] for path in self.storage.walk("readers")}
        others = [version for version in manifests if version != pointer["version"]]
        others.sort(key=lambda version: (manifests[version]["created_at"], version))
        kept |= {*others[len(others) - keep :]}
        kept &= {*manifests}
        kept |= {manifests[version].get("base") or version for version in kept}
        delete_all(self.storage, RetentionPolicy(keep=keep, unfinished=unfinished))
        if unfinished:
            self.unfinished.clear()
        assert {*known(self.storage)} == kept | self.unfinished
        self.items = {version: self.items[version] for version in kept}
        needed = {path for version in kept | self.unfinished for path in files_of(self.storage, version)}
        assert files(self.storage) == needed

    @invariant()
    def each_version_is_whole(self) -> None:
        for version, items in getattr(self, "items", {}).items():
            found = Version.published(self.storage, version)
            assert {str(own) for own in found.item_ids()} == items
            assert [own for own in versions.damages(self.storage, found.manifest) if own] == []
            assert {*found.indexes(0)} == ({"average"} if self.index == "ivf" else set())


@pytest.mark.long
def test_any_history(tmp_path_factory: pytest.TempPathFactory) -> None:
    new_folder = staticmethod(lambda: tmp_path_factory.mktemp("history"))
    machine = type("InFolders", (Histories,), {"new_folder": new_folder})
    run_state_machine_as_test(machine, settings=settings(tried(25), stateful_step_count=15))
