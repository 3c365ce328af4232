"""Two versions' answers compared: as loops over lists that a local version answers do it, and where they cannot be."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles.versions
from rails_ray.cli.main import main
from rails_ray.errors import DamagedError
from rails_ray.families import calibrations
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_data
from rails_ray.families.encoding import EncodeOptions, encode
from rails_ray.families.in_process import InProcess
from rails_ray.families.version import Version
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.serving import churn, local
from rails_ray.serving.churn import AnswersDiff, compare_answers
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import manifest, versions
from rails_ray.storage.comparing import compare_items
from rails_ray.storage.filesystem import Storage
from support import sessions
from support.calibrations import STORED
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run
from support.sessions import publish_repeating

LISTS = st.lists(
    st.permutations(range(6)).flatmap(lambda own: st.integers(0, 6).map(lambda end: own[:end])), min_size=3, max_size=3
)


@given(LISTS, LISTS, st.integers(1, 7))
def test_churn_is_that_of_loops(former: list[list[int]], latter: list[list[int]], k: int) -> None:
    scored = [[[(item, 0.0) for item in line] for line in lists] for lists in (former, latter)]
    assert churn.churn(*scored, k) == pytest.approx(oracles.versions.churn(former, latter, k))


def make(root: Path, version: str, *, num_items: int = 60, seed: int = 0, num_shards: int = 2, **stored: Any) -> None:
    """A published version of a model with random weights, of the first items of `write_text_data`."""
    data, store = write_text_data(root / f"data-{num_items}", num_items=num_items), Storage(str(root))
    write_untrained_run(store, version, replace(small_config(), seed=seed, data=DataConfig(folder=str(data))))
    options = EncodeOptions(version=version, num_shards=num_shards, part_items=7, stored=stored)
    encode(InProcess(), str(root), version, options)
    publish(store, version)


def publish(store: Storage, version: str) -> None:
    versions.publish(store, manifest.read_encoded(store, version), "2026-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`; `more`, which has ten items more; and `other`, of another model."""
    folder = tmp_path_factory.mktemp("churn")
    make(folder, "old", num_items=50)
    make(folder, "more", num_items=60, num_shards=3)
    make(folder, "other", num_items=60, seed=1)
    for name in ("more", "other"):
        calibrations.write(Storage(str(folder)), name, STORED)
    return folder


def diff(root: Path, first: str, second: str, **how: Any) -> AnswersDiff:
    store = Storage(str(root))
    both = [Version.encoded(store, name) for name in (first, second)]
    return compare_answers(*both, items=compare_items(store, *(own.described for own in both)), **how)


def valid_texts(root: Path, num_items: int) -> list[str]:
    import pyarrow.parquet as pq

    rows = pq.read_table(root / f"data-{num_items}" / "queries.parquet").to_pylist()
    return [row["text"] for row in rows if row["split"] == "valid"]


@pytest.mark.parametrize(("first", "second"), [("old", "more"), ("more", "old"), ("more", "other")])
def test_the_figures_are_those_of_answers(root: Path, first: str, second: str) -> None:
    check_figures(root, first, second, valid_texts(root, 50 if second == "old" else 60))


def check_figures(root: Path, first: str, second: str, texts: list[str]) -> None:
    """They are what loops find in the lists of a hundred items that local versions answer."""
    found = diff(root, first, second, ks=(3, 10, 100))
    assert (found.queries, found.reason) == (f"{len(texts)} queries of split valid", None)
    opened = [local.open(str(root), name) for name in (first, second)]
    lists = [[result.items for result in own.search(texts, k=100).results] for own in opened]
    scores = [[result.scores for result in own.search(texts, k=100).results] for own in opened]
    assert found.churn == pytest.approx({k: oracles.versions.churn(*lists, k) for k in (3, 10, 100)})
    common = set.intersection(*({item for shard in own.shards for item in shard.item_ids} for own in opened))
    of_common = [[[item for item in line if item in common] for line in own] for own in lists]
    assert len(common) == (50 if "old" in (first, second) else 60)
    assert found.churn_of_common == pytest.approx({k: oracles.versions.churn(*of_common, k) for k in (3, 10, 100)})
    changes = [
        abs(float(own) - dict(zip(lists[0][query], scores[0][query], strict=True))[item])
        for query in range(len(texts))
        for item, own in zip(lists[1][query], scores[1][query], strict=True)
        if item in lists[0][query]
    ]
    assert found.mean_score_change == pytest.approx(sum(changes) / len(changes), abs=1e-6)
    assert found.largest_score_change == pytest.approx(max(changes), abs=1e-6)


STORED_SO = [{"codes": (3, 4)}, {"index": HnswConfig(M=8)}, {"dtype": "bfloat16"}]


@pytest.mark.parametrize("stored", STORED_SO, ids=lambda own: next(iter(own)))
def test_the_figures_are_those_of_answers_however_items_are_stored(tmp_path: Path, stored: dict[str, Any]) -> None:
    make(tmp_path, "old", num_items=50, **stored)
    make(tmp_path, "more", num_items=60, num_shards=3, **stored)
    check_figures(tmp_path, "old", "more", valid_texts(tmp_path, 60))


def test_items_that_share_no_term_with_a_query_are_in_no_list(tmp_path: Path) -> None:
    for name, num_items in (("old", 50), ("more", 60)):
        data = write_text_data(tmp_path / f"data-{num_items}", num_items=num_items)
        options = ["--recipe", "baseline-bm25", "--folder", str(data), "--version", name, "--storage", str(tmp_path)]
        assert main(["encode", *options]) == 0
        publish(Storage(str(tmp_path)), name)
    check_figures(tmp_path, "old", "more", valid_texts(tmp_path, 60))


def test_a_history_is_read_without_the_items_that_a_version_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_repeating(tmp_path / "all", True)
    monkeypatch.setattr(sessions, "NUM_ITEMS", 12)
    publish_repeating(tmp_path / "few", True)
    few, every = (Version.encoded(Storage(str(tmp_path / name))) for name in ("few", "all"))
    data = read_data(every.config, every.storage, ["valid"])
    ids, histories = list(data.item_ids), data.queries["valid"].inputs
    queries = [{"history": [ids[row] for row in histories[number]]} for number in range(len(histories))]
    queries = [query for query in queries if set(query["history"]) & set(few.item_ids())]
    assert 5 < len(queries) < 50, "few know some of the histories"
    lists = [
        [result.items for result in local.open(str(tmp_path / name)).search(queries, k=10).results]
        for name in ("few", "all")
    ]
    found = compare_answers(few, every)
    assert found.queries == f"{len(queries)} queries of split valid"
    assert found.churn is not None
    assert found.churn[10] == pytest.approx(oracles.versions.churn(*lists, 10))


@pytest.mark.parametrize("excludes", [True, False])
def test_the_second_version_says_what_becomes_of_seen_items(tmp_path: Path, excludes: bool) -> None:
    """Both leave out the items of a query's history, or neither does."""
    publish_repeating(tmp_path / "a", not excludes)
    publish_repeating(tmp_path / "b", excludes)
    both = [Version.encoded(Storage(str(tmp_path / name))) for name in "ab"]
    samples, _ = churn._samples(*both, 100)
    assert samples is not None
    for sample in samples:
        assert [len(own) > 0 for own in sample.exclude] == [excludes] * 50
    assert compare_answers(*both).churn == {10: 0, 100: 0}


def test_items_that_are_added_leave_the_others_where_they_were(root: Path) -> None:
    found = diff(root, "old", "more")
    assert found.churn is not None
    assert 0 < found.churn[10] < 1
    assert found.churn_of_common == {10: 0, 100: 0}
    assert found.largest_score_change == pytest.approx(0, abs=1e-6)


def test_a_version_beside_itself(root: Path) -> None:
    found = diff(root, "more", "more")
    assert found.churn == found.churn_of_common == {10: 0, 100: 0}
    assert (found.mean_score_change, found.largest_score_change) == (0, 0)
    assert found.mean_kept[0] == found.mean_kept[1] is not None


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_each_query_has_its_own_floor(root: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churn, "BATCH", batch)
    version = Version.encoded(Storage(str(root)), "more")
    samples, _ = churn._samples(version, version, 7)
    assert samples is not None
    shards = [ShardSearch(version, shard) for shard in range(version.num_shards)]
    every = churn._searched(shards, samples[0], 60, None)
    lengths = [1, 59, 8, 3, 30, 2, 20]
    between = [(line[num - 1][1] + line[num][1]) / 2 for line, num in zip(every, lengths, strict=True)]
    found = churn._searched(shards, samples[0], 60, np.array(between))
    expected = [[item for item, _ in line[:num]] for line, num in zip(every, lengths, strict=True)]
    assert [[item for item, _ in line] for line in found] == expected


def test_what_a_calibrated_cut_off_keeps(root: Path) -> None:
    found, texts = diff(root, "more", "other"), valid_texts(root, 60)
    for name, mean_kept in zip(("more", "other"), found.mean_kept, strict=True):
        answered = local.open(str(root), name).search(texts, cutoff={"coverage": 0.9})
        assert mean_kept == pytest.approx(np.mean([result.num_kept for result in answered.results]))
    assert diff(root, "old", "more").mean_kept[0] is None, "it is not calibrated"


def test_a_calibration_of_too_few_queries_keeps_nothing(tmp_path: Path) -> None:
    make(tmp_path, "few")
    few = STORED.positives.take(np.arange(STORED.positives.num_queries) < 3)
    calibrations.write(Storage(str(tmp_path)), "few", replace(STORED, positives=few))
    assert diff(tmp_path, "few", "few").mean_kept == (None, None)


def test_a_version_is_compared_before_it_is_published(root: Path) -> None:
    store = Storage(str(root))
    encode(InProcess(), str(root), "old", EncodeOptions(version="later"))
    assert not store.exists("versions/later/manifest.json")
    assert diff(root, "old", "later").churn == {10: 0, 100: 0}


def test_no_more_queries_than_wanted(root: Path) -> None:
    assert diff(root, "more", "other", most=3).queries == "3 queries of split valid"


def vectors_of(num: int, width: int = 6, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((num, width)).astype(np.float32)


def test_items_are_queries_where_the_data_have_none(tmp_path: Path) -> None:
    local.build(vectors_of(40), folder=str(tmp_path), version="a")
    local.build(vectors_of(50), folder=str(tmp_path), version="b")
    found = diff(tmp_path, "a", "b")
    assert found.queries == "40 items of version a as queries"
    assert found.reason is not None
    assert found.reason.startswith("recipe vector-cosine needs a data set")
    opened = [local.open(str(tmp_path), name) for name in "ab"]
    lists = [[result.items for result in own.search(vectors_of(40), k=10).results] for own in opened]
    assert found.churn is not None
    assert found.churn[10] == pytest.approx(oracles.versions.churn(*lists, 10))
    assert found.churn_of_common is not None
    assert found.churn_of_common[10] == 0


def test_versions_without_an_item_in_common(tmp_path: Path) -> None:
    local.build(vectors_of(9), folder=str(tmp_path), version="a")
    local.build(vectors_of(9), range(10, 19), folder=str(tmp_path), version="b")
    found = diff(tmp_path, "a", "b")
    assert (found.churn, found.churn_of_common) == ({10: 1, 100: 1}, None)
    assert (found.mean_score_change, found.largest_score_change) == (None, None)


def test_vectors_of_two_widths_answer_no_query(tmp_path: Path) -> None:
    local.build(vectors_of(9), folder=str(tmp_path), version="a")
    local.build(vectors_of(9, 5), folder=str(tmp_path), version="b")
    found = diff(tmp_path, "a", "b")
    assert found.queries is None
    assert found.reason is not None
    assert found.reason.endswith("; nor are items of version a vectors that both versions take as queries")


def test_kinds_of_query_that_differ(root: Path) -> None:
    local.build(vectors_of(9), folder=str(root), version="vectors")
    for first, second in (("old", "vectors"), ("vectors", "old")):
        found = diff(root, first, second)
        assert (found.churn, found.queries) == (None, None)
        forms = {"old": "text of old", "vectors": "vector of vectors"}
        assert found.reason == (
            f"versions must read one form of query to answer the same ones, got {forms[first]} and {forms[second]}; "
            f"nor are items of version {first} vectors that both versions take as queries"
        )


def test_data_that_are_gone(tmp_path: Path) -> None:
    make(tmp_path, "v1")
    (tmp_path / "data-60" / "queries.parquet").unlink()
    found = diff(tmp_path, "v1", "v1")
    assert (found.churn, found.queries) == (None, None)
    assert found.reason is not None
    assert "queries" in found.reason
    assert found.reason.endswith("; nor are items of version v1 vectors that both versions take as queries")


def test_queries_that_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "v1")
    monkeypatch.setattr(churn, "known_queries", lambda queries, model: [])
    found = diff(tmp_path, "v1", "v1")
    assert found.reason is not None
    assert found.reason.startswith("split valid must have a query that is blank to neither version's model, got none")


def test_a_version_without_items(root: Path) -> None:
    old = Version.encoded(Storage(str(root)), "old")
    empty = dataclasses.replace(old.described, version="empty", num_items=0, shard_items=[0], parts=[])
    for both in ((old, Version(old.storage, empty)), (Version(old.storage, empty), old)):
        assert compare_answers(*both) == AnswersDiff(None, "version empty must have items to be searched, got none")


def test_a_k_that_cannot_be(root: Path) -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        diff(root, "old", "more", ks=(10, 0))


def test_common_items_are_left_out_if_nobody_wants_them(root: Path) -> None:
    both = (Version.encoded(Storage(str(root)), name) for name in ("old", "more"))
    found = compare_answers(*both)
    assert found.churn is not None
    assert found.churn_of_common is None


def test_a_damaged_model_is_no_reason(tmp_path: Path) -> None:
    make(tmp_path, "v1")
    weights = tmp_path / "versions" / "v1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=r"model\.safetensors of version v1 must have the sha256 of its manifest"):
        diff(tmp_path, "v1", "v1")
