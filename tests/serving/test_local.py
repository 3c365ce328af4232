"""A version in this process: a server's answers, without Ray."""

import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles.cutoffs import nucleus
from rails_ray.cli.main import main
from rails_ray.cli.tuning import tune_cutoffs
from rails_ray.cutoffs.distributions import Background, BetaDistribution
from rails_ray.cutoffs.temperatures import Factor, Factors
from rails_ray.errors import NotFoundError, UnsupportedError
from rails_ray.families import calibrations
from rails_ray.families.data import read_data
from rails_ray.families.version import Version
from rails_ray.schema.requests import CutoffInput
from rails_ray.serving import held_shards, local
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.calibrations import STORED
from support.examples import publish_here


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    publish_here(folder, num_shards=3)
    calibrations.write(Storage(str(folder)), "v1", STORED)
    return folder


@pytest.fixture(scope="module")
def version(root: Path) -> LocalVersion:
    return local.open(str(root))


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "cuda:64", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there(root: Path, device: str) -> None:
    with pytest.raises(
        ValueError, match=rf"device must be cpu, or cuda where torch sees a GPU \(it sees \d+\), got '{device}'"
    ):
        local.open(str(root), device=device)


def test_it_says_what_it_is(version: LocalVersion) -> None:
    assert (version.facts["version"], version.facts["num_items"], version.facts["num_shards"]) == ("v1", 60, 3)
    assert version.facts["query"] == {"text": "string"}


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "per_embedding", "average", "combined", "gated"])
def test_lists_are_those_of_the_whole_corpus(root: Path, version: LocalVersion, method: str) -> None:
    answer = version.search(["red", "blue hat"], k=7, cutoff={"top_k": 7}, method=method, num_candidates=60)
    assert answer.method == method
    assert [len(result.items) for result in answer.results] == [7, 7]
    for result in answer.results:
        assert result.scores == sorted(result.scores, reverse=True)
        explained = version.explain("red", result.items)
        if result is answer.results[0]:
            assert torch.allclose(torch.tensor([own.score for own in explained.items]), torch.tensor(result.scores))


@pytest.mark.parametrize("cutoff", [{"coverage": 0.9}, {"mass": 0.9}, {"score": 0.1}, {"nucleus": 0.5}, None])
def test_every_cut_off(version: LocalVersion, cutoff: dict[str, float] | None) -> None:
    answer = version.search(["red"], cutoff=cutoff)
    assert answer.results[0].num_kept == len(answer.results[0].items)
    assert answer.cutoff == (cutoff or {"mass": version.engine.cutoffs.version_mass, "min_items": 1})


@pytest.mark.parametrize("default", [None, {"score": 2 / 3}, {"score": 1.0}, {"nucleus": 0.5}, {"top_k": 2}])
def test_a_request_that_names_k_alone_gets_its_k_best(root: Path, default: dict[str, float] | None) -> None:
    """And is told where the cut-off would end that it would get without k, which keeps one item at least."""
    own = local.open(str(root), cutoff=None if default is None else CutoffInput(**default))
    best = own.search(["red"], k=5, cutoff={"top_k": 5}).results[0]
    cut = own.search(["red"])
    assert len(cut.results[0].items) == cut.results[0].num_kept >= 1
    for k in (1, 5, 60, 100):
        answer = own.search(["red"], k=k)
        result = answer.results[0]
        assert len(result.items) == min(k, 60)
        assert result.items[:5] == best.items[:k]
        assert result.num_kept == min(cut.results[0].num_kept, k)
        assert result.is_truncated == (cut.results[0].num_kept > k)
        assert answer.cutoff == cut.cutoff
        assert answer.is_exact


def test_fewer_items_than_k_are_what_there_is(version: LocalVersion) -> None:
    """Whatever another query of the request excludes."""
    every = version.search(["red"], k=60).results[0].items
    for cutoff in (None, {"top_k": 100}):
        queries = [{"text": "red", "exclude": every[:58]}, {"text": "red", "exclude": every}, {"text": "red"}]
        answer = version.search(queries, k=100, cutoff=cutoff)
        assert [len(result.items) for result in answer.results] == [2, 0, 60]
        assert [result.num_searched for result in answer.results] == [2, 0, 60]
        assert answer.is_exact


@pytest.fixture(scope="module")
def tempered_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version whose calibration has fitted temperatures."""
    folder = tmp_path_factory.mktemp("tempered")
    publish_here(folder, num_shards=3)
    factors = Factors({"held_out": Factor(2.0, 1.9, 2.1, 90)}, Factor(3.0, 2.9, 3.1, 90))
    fitted = replace(STORED, factors=factors, held_out=Background(0.5, 7.0), mass=0.75)
    calibrations.write(Storage(str(folder)), "v1", fitted)
    return folder


def test_shards_and_thresholds_go_by_the_fitted_temperatures(tempered_root: Path) -> None:
    version = local.open(str(tempered_root))
    assert version.facts["cutoff"] == {"mass": 0.75, "min_items": 1}
    assert version.facts["calibration"]["factors"]["softmax"]["value"] == 3.0
    ranked = version.search(["red"], k=60, cutoff={"top_k": 60}).results[0].scores
    tau = float(version.engine.encoder([{"text": "red"}]).state.temperature[0])
    weights = [((1 + score) / 2) ** (1 / (3 * tau)) for score in ranked]
    for share in (0.3, 0.6, 0.9):
        assert version.search(["red"], cutoff={"nucleus": share}).results[0].num_kept == nucleus(weights, share)
    asked = version.search(["red"], cutoff={"probability": 0.02}).results[0]
    assert asked.num_kept == sum(weight >= 0.02 * sum(weights) for weight in weights)
    expected = BetaDistribution(Background(0.5, 7.0)).quantile(0.5, np.array([2 * tau]))[0]
    assert version.search(["red"], cutoff={"mass": 0.5}).results[0].threshold == pytest.approx(expected, abs=1e-6)


def test_a_version_is_tuned_as_it_is_served(tempered_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tune_cutoffs(Storage(str(tempered_root)), version="v1", kinds=["nucleus", "coverage"])
    assert found.calibrated_on == "90 queries of split valid"
    version = local.open(str(tempered_root))
    data = read_data(Version(Storage(str(tempered_root)), version.manifest).config, Storage(str(tempered_root)), [])
    queries = data.queries["valid"]
    assert found.num_queries == len(queries)
    for one in found.best:
        answers = version.search(list(queries.inputs), cutoff={one.kind: one.value}).results
        assert sum(own.num_kept for own in answers) / len(answers) == pytest.approx(one.mean_kept)
    assert main(["tune", "--cutoff", "--storage", str(tempered_root)]) == 0
    told = capsys.readouterr().out
    assert "v1: " in told
    assert "next: rails-ray serve --allow-anonymous --cutoff " in told


def test_a_query_by_its_fields(version: LocalVersion) -> None:
    best = version.search(["red"], k=1, cutoff={"top_k": 1}).results[0].items
    others = version.search([{"text": "red", "exclude": best}], k=59, cutoff={"top_k": 59}).results[0].items
    assert set(others) | set(best) == set(version.search(["red"], k=60, cutoff={"top_k": 60}).results[0].items)
    width = version.engine.encoder.model.representation_width
    assert len(version.search([[0.1] * width], k=2, cutoff={"top_k": 2}).results[0].items) == 2


def test_threads_share_it(version: LocalVersion) -> None:
    expected = [version.search([text], k=5).results for text in ("red", "blue", "car", "hat")]
    found = dict[int, object]()

    def ask(number: int) -> None:
        for _ in range(5):
            found[number] = version.search([("red", "blue", "car", "hat")[number]], k=5).results

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(4)] == expected


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        ([], {}, "queries must have a length of at least 1, got"),
        ("red", {}, "queries must be a list, got 'red' alone: put it into brackets"),
        ({"text": "red"}, {}, "queries must be a list, got {'text': 'red'} alone"),
        (np.array("red"), {}, "queries must be a list, got array"),
        (None, {}, "queries must be a list, got null alone"),
        ([b"red"], {}, r"queries\[0\] must be a JSON object, got b'red'"),
        (np.zeros(8, np.float32), {}, "queries must be vectors, got one of 8 numbers: put it into brackets"),
        (torch.zeros(8), {}, "queries must be vectors, got one of 8 numbers: put it into brackets"),
        (["red"], {"k": 0}, "k must be greater than or equal to 1, got 0"),
        (["red"], {"method": "magic"}, "method must be 'brute_force', .*, got 'magic'"),
        (["red"], {"cutoff": {"mass": 2}}, r"cutoff\.mass must be less than 1, got 2"),
        (["red"], {"wrong": 1}, "wrong must not be given, as there is no such field, got 1"),
        (["?!"], {}, r"queries\[0\]\.text must hold a letter or a digit, got '\?!'"),
        ([[1.0, 2.0]], {}, r"queries\[0\]\.embedding must have 8 numbers, got 2"),
        ([{"text": "red", "user_id": 3}], {}, r"queries\[0\] must have exactly one of"),
    ],
)
def test_requests_that_cannot_be(version: LocalVersion, queries: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        version.search(queries, **options)


def test_feedback_is_measured(root: Path) -> None:
    version = local.open(str(root))
    best = version.search(["red"], cutoff={"coverage": 0.5}).results[0].items
    answer = version.feedback(["red", "blue"], [best, ["nowhere"]], cutoff={"coverage": 0.5})
    assert answer.kept == [[True] * len(best), [False]]
    measured = version.index()["feedback"]
    assert (measured["num_queries"], measured["coverage"], measured["promised"]) == (2, 0.5, 0.5)


def test_items_that_are_not_there(version: LocalVersion) -> None:
    with pytest.raises(ValueError, match=r"items\[1\] must be an item of the index, got 'nowhere'"):
        version.explain("red", ["item-1", "nowhere"])


def test_versions_that_are_not_there(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="version must be one of v1, got 'v9'"):
        local.open(str(root), "v9")
    with pytest.raises(NotFoundError):
        local.open(str(tmp_path))


def test_what_a_version_lacks(tmp_path: Path) -> None:
    publish_here(tmp_path)
    with pytest.raises(UnsupportedError, match="cutoff coverage needs a version that is calibrated"):
        local.open(str(tmp_path)).search(["red"], cutoff={"coverage": 0.9})


@pytest.mark.long
def test_ray_is_not_imported(root: Path) -> None:
    """By the snippet of the module's docstring, as it were."""
    code = f"""
import sys
from rails_ray import local
found = local.open({str(root)!r}).search(["red", "hat"], k=3).results
assert [len(own.items) <= 3 for own in found] == [True, True]
assert not [name for name in sys.modules if name.split(".")[0] in ("ray", "fastapi")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "red", "--local", "--storage", str(root), "--show", "2"]) == 0
    told = capsys.readouterr().out
    assert "version v1, brute_force: exact" in told
    assert "item-" in told
    assert main(["query", "red", "--local", "--storage", str(root), "--version", "v9"]) == 1
    assert "version must be one of v1, got 'v9'" in capsys.readouterr().err


@pytest.mark.parametrize("length", [1e20, 1e-25, 1e37, 1e-40])
def test_vectors_of_any_length_have_the_cosine_of_their_direction(length: float) -> None:
    directions = np.random.default_rng(0).normal(size=(20, 8))
    long = directions / np.linalg.norm(directions, axis=1, keepdims=True) * length
    ordinary = local.build(directions).search(directions, k=5).results
    for items, queries in ((long, directions), (directions, long), (long, long)):
        for found, expected in zip(local.build(items).search(queries, k=5).results, ordinary, strict=True):
            assert found.items == expected.items
            assert found.scores == pytest.approx(expected.scores, abs=1e-5 if length > 1e-38 else 1e-4)


def test_a_query_that_is_zero_in_float32_is_refused() -> None:
    version = local.build(np.eye(3, 8))
    with pytest.raises(ValueError, match=r"queries\[0\]\.embedding must hold a number other than 0, got 8 zeros"):
        version.search([[1e-50] * 8])
    with pytest.raises(ValueError, match=r"queries\[0\]\.embedding must hold numbers up to 3.40282e\+38, got 1e\+39"):
        version.search([[1e39] * 8])


def test_the_package_carries_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    emoji = local.open("emoji")
    assert emoji.facts["num_items"] == 3963
    found = emoji.search(["dog", "birthday cake", "soleil"], k=1).results
    assert [one.items[0] for one in found] == ["🐕", "🎂", "☀️"]
    assert list(versions.damages(Storage(local.place_of("emoji")), emoji.manifest)) == [None] * 3
    (tmp_path / "emoji").mkdir()  # a folder of the name goes before it
    with pytest.raises(NotFoundError, match=f"must hold a published version, got none in {tmp_path}/emoji"):
        local.open("emoji")
    for name in ("../packaged/emoji", "none", "."):
        assert local.place_of(name) == name


def test_shards_are_searched_at_once_and_a_failing_one_waits_for_the_others(
    version: LocalVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_shards, "IN_TURN_S", -1.0)  # as if they took long
    together, ended = threading.Barrier(3, timeout=30), list[int]()

    def search(number: int, *arguments: object) -> None:
        together.wait()
        if number == 0:
            raise ValueError("no items here")
        time.sleep(0.05)  # so long that a search which does not wait for this is over before
        ended.append(number)

    for number, shard in enumerate(version.shards):
        monkeypatch.setattr(shard, "search", partial(search, number))
    with pytest.raises(ValueError, match="no items here"):
        version.search(["red"], k=3)
    assert sorted(ended) == [1, 2]
