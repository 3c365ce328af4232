"""Items that are added, replaced and deleted: a version in deltas answers as one that was made of the same items."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from rails_ray import local
from rails_ray.families import changing, shards
from rails_ray.families.compacting import compact
from rails_ray.families.given_items import given_items
from rails_ray.families.shards import deltas_of
from rails_ray.families.version import Version
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.missing_files import missing_bytes
from rails_ray.storage import deltas, live_ids, manifest, versions
from rails_ray.storage.deltas import is_compaction_due
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from support.changed import NUM_BASE, WIDTH, made, vectors_of

QUERIES = np.random.default_rng(12345).standard_normal((4, WIDTH)).astype(np.float32)


def assert_answers(found: LocalVersion, items: dict[str, int], k: int = 8, **options: Any) -> None:
    """Check lists, titles and counts against all scores.

    Args:
        items: the seed of each item's vector and title, by id.
    """
    ids, seeds = list(items), list(items.values())
    vectors = vectors_of(seeds)
    scores = (QUERIES / np.linalg.norm(QUERIES, axis=1)[:, None]) @ (
        vectors / np.linalg.norm(vectors, axis=1)[:, None]
    ).T
    answer = found.search(QUERIES, k=k, **options)
    assert answer.coverage.num_items == answer.coverage.items_searched == len(items)
    for line, result in zip(scores, answer.results, strict=True):
        best = np.argsort(-line, kind="stable")[:k]
        assert result.items == [ids[row] for row in best]
        assert result.titles == [f"t{seeds[row]}" for row in best]
        np.testing.assert_allclose(result.scores, line[best], rtol=0, atol=2e-6)
        assert result.num_searched == len(items)
        assert result.certificate.is_exact


class Changes(RuleBasedStateMachine):
    """Any history of changes, against a dictionary."""

    new_folder: ClassVar[Callable[[], Path]]

    @initialize(index=st.sampled_from(["flat", "hnsw"]))
    def begin(self, index: str) -> None:
        self.folder = type(self).new_folder()
        self.index = index
        self.opened = made(self.folder, index=index)
        self.storage = Storage(str(self.folder))
        self.items = {f"i{seed}": seed for seed in range(NUM_BASE)}
        self.former = dict[str, dict[str, int]]()

    some = st.lists(st.integers(0, NUM_BASE + 10), min_size=1, max_size=4, unique=True)

    @rule(numbers=some, seed=st.integers(100, 1000))
    def upsert(self, numbers: list[int], seed: int) -> None:
        ids, seeds = [f"i{number}" for number in numbers], [seed + number for number in numbers]
        num_there = sum(own in self.items for own in ids)
        change = self.opened.add(vectors_of(seeds), ids, titles=[f"t{own}" for own in seeds], replace=True)
        assert (change.num_added, change.num_replaced) == (len(ids) - num_there, num_there)
        for own, other in zip(ids, seeds, strict=True):  # a newer row comes last
            self.items.pop(own, None)
            self.items[own] = other

    @rule(numbers=some)
    def delete(self, numbers: list[int]) -> None:
        ids = [f"i{number}" for number in numbers]
        there = [own for own in ids if own in self.items]
        if len(there) == len(self.items):
            return
        change = self.opened.delete(ids)
        assert (change.num_deleted, change.num_unknown) == (len(there), len(ids) - len(there))
        for own in there:
            del self.items[own]

    @rule()
    def compact(self) -> None:
        made = compact(self.storage)
        assert made.num_items == made.num_live == len(self.items)
        assert not made.num_deltas
        self.opened.refresh()

    @rule()
    def open_again(self) -> None:
        """As a server does that starts now."""
        self.opened = local.open(str(self.folder))

    @rule()
    def roll_back_and_forth(self) -> None:
        if len(self.former) > 1:
            versions.rollback(self.storage)
            self.opened.refresh()
            assert_answers(self.opened, self.former[self.opened.manifest.version])
            versions.rollback(self.storage)
            self.opened.refresh()

    @invariant()
    def answers(self) -> None:
        if not hasattr(self, "opened"):
            return
        self.former[self.opened.manifest.version] = dict(self.items)
        assert_answers(self.opened, self.items)
        if self.index == "flat":
            assert_answers(self.opened, self.items, k=len(self.items) + 3, method="ann")
        described = self.opened.manifest
        assert live_ids.check_balance(self.storage, described) is None
        assert list(self.opened.version.item_ids()) == list(dict.fromkeys(self.opened.version.item_ids()))
        assert {*self.opened.version.item_ids()} == {*self.items}


def test_any_history_equals_a_dictionary(tmp_path_factory: pytest.TempPathFactory) -> None:
    new_folder = staticmethod(lambda: tmp_path_factory.mktemp("history"))
    machine = type("InFolders", (Changes,), {"new_folder": new_folder})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))


@pytest.fixture
def opened(tmp_path: Path) -> LocalVersion:
    return made(tmp_path)


def items_of(**changed: Any) -> dict[str, int]:
    return {f"i{seed}": seed for seed in range(NUM_BASE)} | changed


def test_what_a_manifest_says(opened: LocalVersion) -> None:
    """Nothing of the parent is written again but the manifest."""
    parent, storage = opened.manifest, opened.version.storage
    before = {path: storage.read(path) for path in storage.walk("objects")}
    opened.add(vectors_of([50]), ["new"], titles=["t50"])
    opened.delete(["i3"])
    made = opened.manifest
    assert (made.format, made.home, parent.num_items, made.num_items, made.num_live) == (6, "v1", 30, 31, 30)
    assert [part.delta for part in made.parts] == [None, 1]
    assert made.parts[0].path == parent.parts[0].path
    assert {path: storage.read(path) for path in before} == before
    assert len(storage.walk("objects")) == len(before) + 2  # a part of a row, and a row that is hidden
    assert made.parent is not None
    assert manifest.read(storage, made.parent).parent == "v1"
    assert made.made_by
    assert opened.index()["num_items"] == 30


def test_explanations_and_exclusions_know_what_is_live(opened: LocalVersion) -> None:
    opened.add(vectors_of([50, 51]), ["new", "i7"], titles=["t50", "t51"], replace=True)
    opened.delete(["i3"])
    explained = opened.explain({"embedding": QUERIES[0].tolist()}, ["i7", "new"])
    assert [(own.item, own.title) for own in explained.items] == [("i7", "t51"), ("new", "t50")]
    with pytest.raises(ValueError, match="must be an item of the index, got 'i3'"):
        opened.explain({"embedding": QUERIES[0].tolist()}, ["i3"])
    query = {"embedding": QUERIES[0].tolist(), "exclude": ["i7", "i3", "i0"]}
    [result] = opened.search([query], k=40).results
    assert len(result.items) == result.num_searched == 28
    assert not {"i7", "i3", "i0"} & {*result.items}
    assert result.num_unknown_excluded == 1


def test_cut_offs_by_score_reach_into_deltas(opened: LocalVersion) -> None:
    opened.add(QUERIES, ["q0", "q1", "q2", "q3"])
    for number, result in enumerate(opened.search(QUERIES, cutoff={"score": 0.999}).results):
        assert result.items == [f"q{number}"]


def test_a_method_of_an_index(tmp_path: Path) -> None:
    """The graph holds the base; what came later is scanned, so that it is never passed over."""
    opened = made(tmp_path, 300, index="hnsw")
    opened.add(QUERIES, ["q0", "q1", "q2", "q3"], titles=["", "", "", ""])
    opened.delete([f"i{number}" for number in range(0, 300, 3)])
    found = opened.search(QUERIES, k=5, method="ann").results
    exact = opened.search(QUERIES, k=5).results
    assert [own.items for own in found] == [own.items for own in exact]
    assert [own.items[0] for own in found] == ["q0", "q1", "q2", "q3"]


def test_a_compaction_builds_the_index_anew(tmp_path: Path) -> None:
    opened = made(tmp_path, 300, index="hnsw")
    opened.add(QUERIES, ["q0", "q1", "q2", "q3"])
    opened.delete([f"i{number}" for number in range(100)])
    before = [own.items for own in opened.search(QUERIES, k=9).results]
    compact(opened.version.storage)
    assert opened.refresh()
    [index] = opened.version.indexes(0).values()
    assert isinstance(index, FaissIndex)
    assert index.num_items == 204
    assert [own.items for own in opened.search(QUERIES, k=9, method="ann").results] == before
    assert compact(opened.version.storage).version == opened.manifest.version  # nothing is left to do


def test_a_base_is_loaded_once(opened: LocalVersion) -> None:
    base = opened.shards[0].held.segments[0]
    opened.add(vectors_of([50]), ["new"])
    opened.delete(["i2"])
    later = opened.shards[0].held.segments
    assert later[0].searcher is base.searcher
    assert len(later) == 2


def test_when_a_compaction_is_due(opened: LocalVersion) -> None:
    assert not is_compaction_due(opened.manifest)
    opened.add(vectors_of([50]), ["new"])
    assert not is_compaction_due(opened.manifest)
    opened.delete(["i0"])
    assert is_compaction_due(opened.manifest)  # 2 of 31 rows are more than a twentieth


def test_many_deltas_make_it_due(tmp_path: Path) -> None:
    opened = made(tmp_path, 1000)
    for number in range(deltas.MOST_DELTAS + 1):
        assert not is_compaction_due(opened.manifest)
        opened.add(vectors_of([5000 + number]), [f"n{number}"])
    assert is_compaction_due(opened.manifest)


def test_a_delta_of_which_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not count, and is not read, whatever lies before and after it; a compaction takes it away."""
    opened, folder = made(tmp_path), str(tmp_path)
    for number in range(3):
        opened.add(vectors_of([50 + number, 60 + number]), [f"n{number}", f"m{number}"],
                   titles=[f"t{50 + number}", f"t{60 + number}"])  # fmt: skip
    opened.delete(["n1", "m1", "n2", "i4"])
    items = items_of(n0=50, m0=60, m2=62)
    del items["i4"]
    [gone] = [part for part in opened.manifest.parts if not part.num_live]
    assert (opened.manifest.num_deltas, gone.delta) == (2, 2)
    assert opened.index()["num_deltas"] == 2
    assert sum(part.size_bytes for part in deltas_of(opened.manifest, 0)) == missing_bytes(
        opened.version, 0, opened.shards[0]
    )
    whole, seen = shards.read_part, list[str]()
    monkeypatch.setattr(
        shards,
        "read_part",
        lambda storage, described, entry: seen.append(entry.path) or whole(storage, described, entry),
    )
    again = local.open(folder)
    assert seen
    assert gone.path not in seen
    for version in (opened, again):
        assert_answers(version, items, k=40)
    opened.add(vectors_of([70]), ["n1"], titles=["t70"])
    assert [part.delta for part in opened.manifest.parts] == [None, 1, 2, 3, 4]
    opened.delete(["n0", "m0", "m2", "n1"])
    assert opened.manifest.num_deltas == 0
    assert len(opened.shards[0].held.segments) == 1
    for own in ("n0", "m0", "m2"):
        del items[own]
    assert_answers(opened, items)
    compacted = compact(opened.version.storage)
    assert (compacted.num_items, [part.delta for part in compacted.parts]) == (NUM_BASE - 1, [None])


def test_items_replaced_again_and_again_are_one_delta(tmp_path: Path) -> None:
    opened = made(tmp_path, 1000)
    for number in range(deltas.MOST_DELTAS + 2):
        opened.add(vectors_of([5000 + number]), ["n"], replace=True)
    assert opened.manifest.num_deltas == 1
    assert not is_compaction_due(opened.manifest)


def test_integer_ids(tmp_path: Path) -> None:
    opened = local.build(vectors_of([0, 1, 2]), [10, 2**60, -7], folder=str(tmp_path))
    opened.add(vectors_of([3]), [11])
    change = opened.delete(["10", "1152921504606846976", "ten", "-07", 2**70])
    assert (change.num_deleted, change.num_unknown) == (2, 3)
    assert [*opened.version.item_ids()] == [-7, 11]


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    """Each begins again from what the other has made; nothing is lost."""
    made(tmp_path)
    errors = list[BaseException]()

    def write(number: int) -> None:
        try:
            for turn in range(3):
                items = given_items(vectors_of([1000 + 10 * number + turn]), [f"w{number}-{turn}"])
                changing.add(Storage(str(tmp_path)), items)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    ids = [*Version.published(Storage(str(tmp_path))).item_ids()]
    assert len(ids) == len({*ids}) == NUM_BASE + 9


def test_ids_alone_are_read(opened: LocalVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of an earlier release has no checksums of pages, and is read whole."""
    wanted = ItemIds(pa.chunked_array([["i3", "nobody"]]))
    monkeypatch.setattr(live_ids, "read_file", _not_to_be_called)
    found = live_ids.find(opened.version.storage, opened.manifest, wanted)
    assert found.is_found.tolist() == [True, False]
    assert [rows.tolist() for rows in found.rows.values()] == [[3]]


def _not_to_be_called(*_: Any) -> bytes:
    raise AssertionError("a part was read whole")


def test_texts_are_read_after_their_titles() -> None:
    """As those of a data set and of a request are."""
    items = given_items(["red", "blue"], ["a", "b"], ["hat", ""])
    assert items["input"].to_pylist() == ["hat\nred", "blue"]
    assert given_items(["red"], ["a"])["input"].to_pylist() == ["red"]
