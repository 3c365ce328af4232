"""An evaluation that also measures a version's methods, as its task carries it out; and what the command shows."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rails_ray import on_ray
from rails_ray.allowed_code import OURS_ALONE
from rails_ray.cli.main import main
from rails_ray.on_ray import cluster
from rails_ray.on_ray.evaluating import _evaluate
from rails_ray.serving import measuring
from support.examples import publish_here


@pytest.fixture(autouse=True)
def few_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_TIMED", 1)


def test_methods_are_measured_where_that_is_wanted(tmp_path: Path) -> None:
    publish_here(tmp_path)
    evaluated = partial(_evaluate, str(tmp_path), None, "v1", "test", None, OURS_ALONE)
    plain, measured = evaluated(False), evaluated(True)
    assert plain.searches is None
    assert measured.searches is not None
    assert {own.k for own in measured.searches} == {10, 60}
    exact = [own for own in measured.searches if own.method in ("brute_force", "two_pass")]
    assert [(own.recall, own.certified_fraction) for own in exact] == [(1, 1)] * 4
    assert measured.hit_rate == plain.hit_rate


def test_the_command_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_here(tmp_path)

    def here(storage: str, on_progress: Any, with_searches: bool, **how: Any) -> Any:
        return _evaluate(storage, how["run"], how["version"], how["split"], None, OURS_ALONE, with_searches)

    monkeypatch.setattr(on_ray, "evaluate", here)
    monkeypatch.setattr(cluster, "cluster", nullcontext)
    assert main(["evaluate", "--storage", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "methods of current version against brute force, by " in shown
    assert "per_embedding" in shown
    assert main(["evaluate", "--storage", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {own["method"] for own in found["searches"]} >= {"brute_force", "average", "gated"}
    assert found["num_queries"] >= found["searches"][0]["num_queries"] > 0
