"""`rails-ray index diff`: what it prints, its JSON, its gate, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rails_ray.cli.diffing import diff_versions
from rails_ray.cli.main import main
from rails_ray.families import calibrations, default_searches
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions, encode
from rails_ray.families.in_process import InProcess
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.serving import local
from rails_ray.storage import manifest, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.versions import read_manifest
from support.calibrations import STORED
from support.data_folders import write_text_data
from support.default_searches import AVERAGE
from support.examples import small_config, write_untrained_run

AT = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`; `more`, which has ten items more, an index, a calibration and a default search and is current; `later`, of
    another model, which is not published."""
    folder = tmp_path_factory.mktemp("diff")
    store = Storage(str(folder))
    data = {num: DataConfig(folder=str(write_text_data(folder / f"data-{num}", num_items=num))) for num in (50, 60)}
    for run, num, seed in (("old", 50, 0), ("more", 60, 0), ("later", 60, 1)):
        write_untrained_run(store, run, replace(small_config(), seed=seed, data=data[num]))
        stored: dict[str, Any] = {"index": HnswConfig(M=8)} if run == "more" else {}
        made = encode(
            InProcess(), str(folder), run, EncodeOptions(version=run, num_shards=1, part_items=10, stored=stored)
        )
        if run != "later":
            versions.publish(store, made, AT)
    calibrations.write(store, "more", STORED)
    default_searches.write(store, "more", AVERAGE)
    return folder


def diff(root: Path, *words: str, code: int = 0) -> None:
    assert main(["index", "diff", *words, "--storage", str(root)]) == code


def test_what_is_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff(root, "old", "more")
    said = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in said.splitlines() if line.startswith("│")]
    found = {name: values for name, *values in rows}
    assert found["items"] == ["50", "60"]
    assert found["index"] == ["none", "hnsw fp32"]
    assert found["default search"] == ["brute_force", "average 12"]
    assert found["calibrated"] == ["not", AT]
    assert found["kept at coverage 0.9"][0] == "unknown"
    assert float(found["kept at coverage 0.9"][1]) > 0
    lines = said.splitlines()
    assert "items in both: 50" in lines
    assert "added: 10 (item-50, item-51, item-52, item-53, item-54, ..)" in lines
    assert {"removed: 0", "changed: 0", "models: equal", "calibrations: not equal"} <= set(lines)
    shared = sum(own.size_bytes for own in read_manifest(Storage(str(root)), "old").parts)
    assert f"bytes that both share: {shared / 1000:.1f} kB" in lines
    assert any(line.startswith("queries: ") and line.endswith(" queries of split valid") for line in lines)
    for k in (10, 100):
        [line] = [line for line in lines if line.startswith(f"churn@{k}: ")]
        assert line.endswith(", of items in both 0.0000")
    assert any(line.startswith("change of a score: mean ") for line in lines)


def test_the_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff(root, "old", "more", "--json", "--k", "5")
    found, made = json.loads(capsys.readouterr().out), read_manifest(Storage(str(root)), "more")
    answers = found.pop("answers")
    size_bytes = sum(own.size_bytes for own in made.entries)
    assert found.pop("second") == {
        "version": "more",
        "num_items": 60,
        "size_bytes": size_bytes,
        "index": "hnsw fp32",
        "search": {"method": "average", "num_candidates": 12},
        "calibrated_at": AT,
    }
    first = found.pop("first")
    assert (first["search"], first["calibrated_at"]) == ({"method": "brute_force"}, None)
    assert found.pop("shared_bytes") > 0
    assert found == {
        "format": 1,
        "items": {
            "common": 50,
            "added": 10,
            "removed": 0,
            "changed": 0,
            "examples": {"added": [f"item-{row}" for row in range(50, 55)], "removed": [], "changed": []},
        },
        "same_model": True,
        "same_calibration": False,
    }
    assert set(answers) == {
        "queries",
        "reason",
        "churn",
        "churn_of_common",
        "mean_score_change",
        "largest_score_change",
        "coverage",
        "mean_kept",
    }
    assert (answers["reason"], answers["coverage"], answers["mean_kept"][0]) == (None, 0.9, None)
    assert set(answers["churn"]) == set(answers["churn_of_common"]) == {"5", "10", "100"}


def test_the_second_is_the_current_one_unless_it_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff(root, "later", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["first"]["version"], found["second"]["version"]) == ("later", "more")
    assert (found["items"]["changed"], found["same_model"]) == (60, False)
    watermark = read_manifest(Storage(str(root)), "more").watermark  # of the same data
    assert watermark is not None
    assert found["shared_bytes"] == watermark.size_bytes


def test_a_version_beside_itself_has_no_difference(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff(root, "more", "more", "--json", "--max-churn", "0")
    found = json.loads(capsys.readouterr().out)
    assert found["items"] == {
        "common": 60,
        **dict.fromkeys(("added", "removed", "changed"), 0),
        "examples": {"added": [], "removed": [], "changed": []},
    }
    assert found["first"] == found["second"]
    assert found["same_model"]
    assert found["same_calibration"]
    assert found["answers"]["churn"] == found["answers"]["churn_of_common"] == {"10": 0, "100": 0}


def test_the_gate(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff_versions(Storage(str(root)), "old", "more", k=3).answers.churn
    assert found is not None
    for k in (3, 10):
        assert 0 < found[k] < 1
        diff(root, "old", "more", "--max-churn", f"{found[k] + 1e-6}", "--k", str(k))
        assert capsys.readouterr().err == ""
        diff(root, "old", "more", "--max-churn", "0.001", "--k", str(k), code=1)
        said = capsys.readouterr()
        assert f"churn@{k}: {found[k]:.4f}" in said.out
        assert said.err == (
            f"rails-ray: version more must answer as old does: churn@{k} must be at most 0.001, got {found[k]:.4f}\n"
        )


def test_churn_that_nothing_measures_passes_no_gate(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)
    local.build(vectors, folder=str(root / "vectors"), version="v1")
    local.build(vectors[:, :5], folder=str(root / "vectors"), version="v2")
    diff(root / "vectors", "v1", "v2")
    assert "churn: unknown: recipe vector-cosine needs a data set with" in capsys.readouterr().out
    diff(root / "vectors", "v1", "v2", "--json", "--max-churn", "1", code=1)
    said = capsys.readouterr()
    assert json.loads(said.out)["answers"]["churn"] is None
    assert (
        "version v2 must answer as v1 does: churn@10 must be at most 1, got none, as it could not be measured: recipe"
        in said.err
    )


def test_calibrations_are_alike_but_for_their_time(root: Path) -> None:
    store = Storage(str(root))

    def is_same() -> bool:
        return diff_versions(store, "old", "more").same_calibration

    for calibration, expected in (
        (replace(STORED, created_at="2026-02-02T00:00:00Z"), True),
        (replace(STORED, num_items=40, num_changed=3), True),
        (replace(STORED, num_segments=2), False),
        (replace(STORED, positives=STORED.positives.take(STORED.positives.temperature < 0.2)), False),
    ):
        calibrations.write(store, "old", calibration)
        assert is_same() is expected
    for path in (root / "versions" / "old").glob("calibration*"):
        path.unlink()
    assert not is_same()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["old", "none"], 1, "version must be one of more, old, got 'none'"),
        (["none"], 1, "version must be one of more, old, got 'none'"),
        (["old", "--max-churn", "1.5"], 2, "--max-churn must be from 0 to 1, got 1.5"),
        (["old", "--max-churn", "-0.1"], 2, "--max-churn must be from 0 to 1, got -0.1"),
        (["old", "--max-churn", "nan"], 2, "--max-churn must be from 0 to 1, got nan"),
        (["old", "--k", "0"], 2, "--k must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_sentence(
    root: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    diff(root, *words, code=code)
    said = capsys.readouterr().err
    assert said == f"rails-ray: {message}\n"


def test_a_version_whose_encoding_was_cut_off(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Storage(str(root)).write("versions/begun/begun.json", b"{}")
    diff(root, "begun", code=1)
    assert "version must be one of more, old, got 'begun'" in capsys.readouterr().err


def test_storage_without_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff(tmp_path, "old", code=1)
    assert (
        f"version must be one of the published versions of {tmp_path}, which has none, got 'old'"
        in capsys.readouterr().err
    )


def test_a_damaged_part(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = manifest.read_encoded(Storage(str(root)), "later").parts[0]
    part = root / entry.path
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    diff(root, "old", "later", code=1)
    part.write_bytes(whole)
    assert f"{entry.path} of version later must have the sha256 of its manifest" in capsys.readouterr().err
