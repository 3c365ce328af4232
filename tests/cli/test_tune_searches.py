"""`rails-ray tune --target-recall`: which search it picks, on which queries, what it stores, and what it refuses."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oracles.recall
from rails_ray.cli.main import main
from rails_ray.cli.tuning_searches import tune_search
from rails_ray.families import default_searches
from rails_ray.serving import local, measuring
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import manifest, versions
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.versions import read_manifest
from support.examples import publish_here

TOOK_S = {"brute_force": 1.0, "two_pass": 2.0, "average": 0.1, "gated": 0.3}  # others 0.5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    publish_here(tmp_path, num_shards=2)
    return tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes in searches alone, by their method and a little by their candidates."""
    now, search = [0.0], ShardSearch.search

    def slowed(shard: ShardSearch, query: Any, request: ShardRequest, exclude: Any) -> Any:
        now[0] += TOOK_S.get(request.method, 0.5) + 1e-4 * request.params.num_scored
        return search(shard, query, request, exclude)

    monkeypatch.setattr(ShardSearch, "search", slowed)
    return lambda: now[0]


def test_the_fastest_that_reaches_the_target_is_stored_and_served(root: Path, clock: Any) -> None:
    store = Storage(str(root))
    before = {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = tune_search(store, target_recall=0.6, k=4, clock=clock)
    assert found.queries == f"{found.num_queries} queries of split valid"
    assert found.why_items is None
    named = [(json.dumps([own.method, dict(own.params)]), own.low, own.ms) for own in found.measured]
    fastest = oracles.recall.fastest(named, 0.6)
    assert found.chosen is not None
    assert json.dumps([found.chosen.method, dict(found.chosen.params)]) == fastest
    assert found.chosen.method == "average"
    assert default_searches.read_current(store, "v1") == found.chosen
    after = {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert before.pop(versions.CURRENT) != after.pop(versions.CURRENT)  # which servers that follow look at
    assert versions.current_version(store) == "v1"
    assert {name: own for name, own in after.items() if not name.startswith(("search", "."))} == before
    opened = local.open(str(root))
    assert opened.facts["search"]["params"] == found.chosen.params
    assert opened.search(["red"], k=4).method == "average"


def test_where_only_a_scan_is_sure_it_is_chosen_and_said(root: Path, clock: Any) -> None:
    found = tune_search(Storage(str(root)), target_recall=1.0, k=4, clock=clock)
    assert found.chosen is not None
    assert found.chosen.method == "brute_force"
    assert found.choice.nearest is not None
    [sentence] = found.remarks
    assert sentence.startswith(
        "no search faster than brute_force reaches a recall of 1 by the lower end of its interval; nearest: "
    )
    found = replace(found, target_recall=0.99)
    assert found.num_needed == 381
    assert found.remarks[1] == (
        "at least 381 queries must be measured to show a recall of 0.99 of a method that may miss an item, got "
        f"{found.num_queries}: lower --target-recall, or take more queries"
    )
    none = replace(found, chosen=None)
    assert none.remarks[0].startswith("no search reaches a recall of 0.99")


def test_the_command(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "MOST_TIMED", 1)
    store, arguments = Storage(str(root)), ["tune", "--storage", str(root), "--target-recall", "0.5", "--k", "4"]
    written = tmp_path / "tried.json"
    assert main([*arguments, "--dry-run", "--to", str(written)]) == 0
    said = capsys.readouterr().out
    assert "queries of split valid choose" in said
    assert "the default search of version v1 would be " in said
    assert default_searches.current(store, "v1") is None
    tried = json.loads(written.read_text())
    assert {own["method"] for own in tried["measured"]} >= {"brute_force", "two_pass", "average", "gated"}
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "the default search of version v1 is now " in said
    assert "next: rails-ray serve --allow-anonymous --version v1 --storage " in said
    stored = default_searches.read_current(store, "v1")
    assert stored is not None
    assert (stored.k, stored.target_recall) == (4, 0.5)


def test_items_choose_where_the_data_have_no_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local.build(np.random.default_rng(0).standard_normal((70, 5)).astype(np.float32), folder=str(tmp_path))
    assert main(["tune", "--storage", str(tmp_path), "--target-recall", "0.9", "--k", "3"]) == 0
    said = capsys.readouterr().out
    assert "v1: 70 of its items as queries choose" in said
    assert "its data have no queries that choose: recipe vector-cosine needs a data set with items, queries" in said
    stored = default_searches.read_current(Storage(str(tmp_path)), "v1")
    assert stored is not None
    assert stored.queries == "70 of its items as queries"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-recall", "0"], "--target-recall must be above 0 and at most 1, got 0"),
        (["--target-recall", "1.1"], "--target-recall must be above 0 and at most 1, got 1.1"),
        (["--target-recall", "nan"], "--target-recall must be above 0 and at most 1, got nan"),
        (["--target-recall", "0.9", "--k", "0"], "k must be at least 1, got 0"),
        (["--target-recall", "0.9", "--k", "61"], "k must be at most the 60 items of the version, got 61"),
        (["--target-recall", "0.9", "--split", "test"], "split must be valid or train, got 'test'"),
        (["--target-recall", "0.9", "--cutoff", "top_k"], "--cutoff must be left out beside --target-recall"),
        (["--target-recall", "0.9", "--run", "r"], "--run must be left out beside --target-recall"),
        (["--target-recall", "0.9", "--beta", "2"], "--beta must be left out beside --target-recall"),
        (["--k", "5"], "--k and --dry-run must be given with --target-recall, got --k 5 alone"),
        (["--dry-run"], "--k and --dry-run must be given with --target-recall, got --dry-run alone"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    publish_here(tmp_path)
    assert main(["tune", "--storage", str(tmp_path), *arguments]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_version_is_tuned_before_it_is_published(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, whole = Storage(str(root)), read_manifest(Storage(str(root)))
    fields = {own.name: getattr(whole, own.name) for own in dataclasses.fields(Encoded)}
    for entry in whole.files:
        store.write(f"versions/later/{entry.path}", manifest.read_file(store, "v1", entry))
    manifest.write_encoded(store, Encoded(**fields | {"version": "later"}))
    arguments = ["tune", "--storage", str(root), "--target-recall", "0.5", "--k", "4", "--version", "later"]
    assert main(arguments) == 0
    assert "next: rails-ray publish --version later --storage " in capsys.readouterr().out
    assert default_searches.read_current(store, "later") is not None
    assert default_searches.read_current(store, "v1") is None


def test_data_that_are_named_must_have_queries(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", "--storage", str(root), "--target-recall", "0.9", "--folder", str(root / "nowhere")]
    assert main(arguments) in (1, 2)
    assert "nowhere" in capfd.readouterr().err


def test_a_version_without_items(root: Path) -> None:
    store = Storage(str(root))
    whole = read_manifest(store)
    fields = {own.name: getattr(whole, own.name) for own in dataclasses.fields(Encoded)}
    empty = {"version": "empty", "num_items": 0, "shard_items": [0], "parts": []}
    manifest.write_encoded(store, Encoded(**fields | empty))
    with pytest.raises(ValueError, match="version empty must have items to measure its searches, got none"):
        tune_search(store, target_recall=0.9, version="empty")
