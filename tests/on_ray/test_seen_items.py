"""Sessions that come back to an item, from training to a version: every stage asks as requests are asked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray import on_ray
from rails_ray.cli.main import main
from rails_ray.families import calibrations
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.serving import local
from rails_ray.storage import runs, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.gates import Gates
from rails_ray.training.evaluation.report import Report
from rails_ray.training.evaluation.seen import ALLOWED, EXCLUDED
from support.sessions import (
    NUM_REPEATED,
    NUM_SESSIONS,
    publish_repeating,
    repeating,
    sessions_config,
    write_sessions,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

SHARE = NUM_REPEATED / NUM_SESSIONS


def told(split: str) -> str:
    of_all = f"15 of the 50 relevant items of split {split} (30.0%)"
    return f"{of_all} are in the history of their own query: answers leave them out in the first figure"


def write_run(storage: Storage, run: str, config: RunConfig) -> None:
    """A finished run of the model that repeats the last item, as an earlier release stored it."""
    fields = json.loads(to_json(config))
    del fields["data"]["exclude_seen"]
    runs.write(
        storage,
        run,
        weights=weight_files.to_bytes(repeating(config)),
        validation=json.dumps({"cutoff_mass": None, "hit_rate": {"1": 0.0, "10": 0.0}, "mrr": 0.0}).encode(),
        training={"seconds": 0, "losses": []},
        config=json.dumps(fields).encode(),
    )


@pytest.fixture(scope="module")
def root(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an earlier release, and a version of it; nobody chose."""
    folder = tmp_path_factory.mktemp("sessions")
    storage = Storage(str(folder))
    write_run(storage, "r", sessions_config(write_sessions(folder / "data")))
    on_ray.encode(str(folder), "r", version="v")
    on_ray.publish(str(folder), "v")
    return folder


def test_evaluation_of_a_run_and_of_a_version_has_both_figures(root: Path) -> None:
    for named in ({"run": "r"}, {"version": "v"}):
        report = on_ray.evaluate(str(root), **named)
        assert report.hit_rate[200] == 1 - SHARE
        assert report.seen_items is not None
        assert report.seen_items.allowed is not None
        assert (report.seen_items.allowed.hit_rate[1], report.seen_items.allowed.hit_rate[200]) == (SHARE, 1)
        allowed = on_ray.evaluate(str(root), **named, data=DataConfig(exclude_seen=False))
        assert (allowed.hit_rate[1], allowed.hit_rate[200]) == (SHARE, 1)
        excluded = on_ray.evaluate(str(root), **named, data=DataConfig(exclude_seen=True))
        assert (excluded.hit_rate, excluded.mrr) == (report.hit_rate, report.mrr)


def test_what_evaluate_prints(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--version", "v", "--storage", str(root)]) == 0
    text = capsys.readouterr().out
    assert told("test") in text
    lines = [line for line in text.splitlines() if "seen items" in line and "│" in line]
    assert [f"v, {label}" in line for line, label in zip(lines, (EXCLUDED, ALLOWED), strict=True)] == [True, True]
    assert f"{SHARE:.4f}" in lines[1]
    assert main(["evaluate", "--version", "v", "--storage", str(root), "--no-exclude-seen"]) == 0
    text = capsys.readouterr().out
    assert "history of their own query" not in text
    [line] = [line for line in text.splitlines() if "seen items" in line]
    assert f"v, {ALLOWED}" in line
    assert f"{SHARE:.4f}" in line


def test_cut_offs_are_calibrated_on_the_answers_of_requests(root: Path, tmp_path: Path) -> None:
    """The score of an item that answers never hold calibrates nothing."""
    report = on_ray.calibrate(str(root), version="v", num_segments=1)
    assert report.num_queries == NUM_SESSIONS - NUM_REPEATED
    assert any("15 of the 50 relevant items of split valid" in own for own in report.left_out)
    publish_repeating(tmp_path, exclude_seen=False)
    report = on_ray.calibrate(str(tmp_path), version="v1", num_segments=1)
    assert report.num_queries == NUM_SESSIONS
    assert not any("history" in own for own in report.left_out)
    stored = calibrations.read_current(Storage(str(tmp_path)), "v1")
    assert stored is not None
    assert len(stored.positives.share) == NUM_SESSIONS


def test_a_version_may_be_encoded_for_other_requests(root: Path) -> None:
    """Without another training. What a version was begun with, it keeps."""
    arguments = ["encode", "--run", "r", "--version", "allowing", "--storage", str(root)]
    assert main([*arguments, "--no-exclude-seen"]) == 0
    told = "version 'allowing' must keep the exclude_seen that it was begun with, False, got None: choose another"
    with pytest.raises(ValueError, match=told):
        on_ray.encode(str(root), "r", version="allowing")
    store = Storage(str(root))
    assert Version.encoded(store, "allowing").config.data.exclude_seen is False
    on_ray.publish(str(root), "allowing")
    try:
        asked = {"user_id": 0}
        for version, is_excluded in (("v", True), ("allowing", False)):
            opened = local.open(str(root), version)
            assert opened.facts["exclude_seen"] == is_excluded
            [found] = opened.search([asked], k=1, cutoff={"top_k": 1}).results
            [again] = opened.search([{**asked, "exclude_seen": False}], k=1, cutoff={"top_k": 1}).results
            assert (found.items == again.items) != is_excluded
        assert on_ray.evaluate(str(root), version="allowing").hit_rate[1] == SHARE
    finally:
        versions.rollback(store)


def trained(
    root: Path, run: str, exclude_seen: bool | None, capsys: pytest.CaptureFixture[str]
) -> tuple[str, runs.Run]:
    """What `train` prints, and its run, of a few steps."""
    config = sessions_config(write_sessions(root / "data"), exclude_seen)
    training = TrainingConfig(num_steps=4, batch_size=8, validate_every=2, patience=5)
    made = on_ray.train(replace(config, training=training), str(root), run=run, num_workers=1)
    small = ["--training.num-steps", "4", "--training.batch-size", "8", "--training.validate-every", "2"]
    option = {None: [], True: ["--exclude-seen"], False: ["--no-exclude-seen"]}[exclude_seen]
    arguments = ["train", "ml1m-sasrec", "--run", f"by-{run}", "--data.folder", str(root / "data"), "--workers", "1"]
    assert main([*arguments, *small, *option, "--storage", str(root)]) == 0
    return capsys.readouterr().out, made


@pytest.mark.long
def test_training_validates_as_it_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for run, exclude_seen in (("both", None), ("excluded", True), ("allowed", False)):
        text, made = trained(tmp_path, run, exclude_seen, capsys)
        found[run] = made.validation
        assert (told("valid") in text) == (exclude_seen is None)
        assert (f", {EXCLUDED}, " in text, f", {ALLOWED}, " in text) == (
            exclude_seen is not False,
            exclude_seen is not True,
        )
        best = max(own["value"] for own in made.training["validations"])
        assert best == pytest.approx(made.validation["mrr"])
    both = found["both"]
    assert both["hit_rate"]["200"] == 1 - SHARE
    assert both["seen_items"]["allowed"]["hit_rate"]["200"] == 1 == found["allowed"]["hit_rate"]["200"]
    assert both["hit_rate"] == found["excluded"]["hit_rate"]
    assert both["mrr"] == found["excluded"]["mrr"]
    assert (found["excluded"]["seen_items"]["allowed"], found["allowed"]["seen_items"]["allowed"]) == (None, None)
    assert runs.read(Storage(str(tmp_path)), "by-allowed").validation["hit_rate"]["200"] == 1


@pytest.mark.long
def test_a_pipeline_asks_the_current_version_as_its_own(tmp_path: Path) -> None:
    """The current version allows seen items, the new one excludes them; a gate compares the same figure of both."""
    publish_repeating(tmp_path, exclude_seen=False)
    config = sessions_config(tmp_path / "data")
    config = replace(config, training=TrainingConfig(num_steps=2, batch_size=8))
    reports = list[tuple[Report, Report | None]]()
    on_ray.pipeline(
        config,
        str(tmp_path),
        run="new",
        num_workers=1,
        gates=Gates(max_drop=1.0),
        on_report=lambda *both: reports.append(both),
    )
    [(report, former)] = reports
    assert former is not None
    assert former.seen_items is not None
    assert former.seen_items.is_excluded
    assert (report.hit_rate[200], former.hit_rate[200]) == (1 - SHARE, 1 - SHARE)
    assert [name for name, _ in former.by_name("current version")] == [f"current version, {EXCLUDED}"]
    assert [name for name, _ in report.by_name("new version")] == [
        f"new version, {EXCLUDED}",
        f"new version, {ALLOWED}",
    ]
