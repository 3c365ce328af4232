"""The pipeline on a real cluster: what passes its gates is published, what was done is passed over."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from rails_ray import on_ray
from rails_ray.errors import ConflictError, GateError
from rails_ray.families import config
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.on_ray.pipelining import Outcome
from rails_ray.on_ray.progress import OnProgress
from rails_ray.serving.churn import compare_answers
from rails_ray.storage import manifest, runs, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.gates import Gates
from rails_ray.training.evaluation.report import Report
from support.examples import times_of, write_untrained_run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def write_useless_run(storage: Storage, run: str, run_config: RunConfig) -> None:
    """A finished run whose model ranks at random."""
    model = DualEncoderTraining.of(run_config).model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    runs.write(
        storage,
        run,
        weights=weight_files.to_bytes(model),
        validation=json.dumps({"cutoff_mass": None}).encode(),
        training={"seconds": 0, "losses": []},
        config=config.to_json(run_config),
    )


@dataclass
class Watched:
    """What a pipeline tells while it works."""

    stages: list[str] = field(default_factory=list)
    reports: list[tuple[Report, Report | None]] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[OnProgress]:
        self.stages.append(name)
        yield lambda done, total, note: self.progress.append((done, total))

    def on_report(self, report: Report, former: Report | None) -> None:
        self.reports.append((report, former))


def test_a_pipeline_publishes_what_passes_its_gates_and_goes_on_where_it_stopped(
    tmp_path: Path, run_config: RunConfig, grown: DataConfig
) -> None:
    storage = str(tmp_path)
    store = Storage(storage)

    def run_through(run_config: RunConfig, name: str, gates: Gates) -> tuple[Watched, Outcome | None, str]:
        watched = Watched()
        try:
            outcome = on_ray.pipeline(
                run_config,
                storage,
                run=name,
                num_workers=1,
                num_shards=2,
                gates=gates,
                stage=watched.stage,
                on_report=watched.on_report,
            )
        except GateError as error:
            return watched, None, str(error)
        assert watched.progress[-1][0] == watched.progress[-1][1]
        return watched, outcome, ""

    watched, outcome, _ = run_through(run_config, "one", Gates(min_hit_rate=0.5))
    assert outcome is not None
    assert watched.stages == ["train one", "encode one", "calibrate one", "evaluate one", "publish one"]
    assert watched.reports == [(outcome.report, None)]
    assert outcome.report == on_ray.evaluate(storage, version="one")
    assert outcome.run == runs.read(store, "one")
    assert outcome.manifest == manifest.read(store, "one")
    assert outcome.manifest.shard_items == [30, 30]
    assert versions.current_version(store) == "one"

    # Later data, on which the current version is measured as well.
    later = replace(run_config, data=grown)
    former = on_ray.evaluate(storage, version="one", data=grown)
    write_useless_run(store, "two", later)
    watched, outcome, refusal = run_through(later, "two", Gates(max_drop=0.05))
    assert outcome is None
    ((report, compared),) = watched.reports
    assert compared == former
    assert refusal == (
        "version two must pass the gates to be published: hit rate@10 must be at least "
        f"{former.hit_rate[10] - 0.05:.4f} (the current version's {former.hit_rate[10]:.4f} less max_drop 0.05), "
        f"got {report.hit_rate[10]:.4f}"
    )
    assert watched.stages == ["train two", "encode two", "calibrate two", "evaluate two"]
    assert versions.current_version(store) == "one"
    assert on_ray.evaluate(storage, version="two") == report

    watched, outcome, refusal = run_through(later, "two", Gates(max_drop=None, max_churn=0.05))
    assert outcome is None
    assert watched.stages[-1] == "compare two"
    churned = compare_answers(*(Version.encoded(store, name) for name in ("one", "two"))).churn
    assert churned is not None
    assert refusal == (
        f"version two must pass the gates to be published: churn@10 must be at most 0.05, got {churned[10]:.4f}"
    )
    assert versions.current_version(store) == "one"

    before = times_of(tmp_path / "runs" / "two") | times_of(tmp_path / "versions" / "two")
    watched, outcome, _ = run_through(later, "two", Gates(max_drop=None, max_churn=1.0))
    assert outcome is not None
    assert (outcome.report, outcome.former, outcome.churn) == (report, None, churned[10])
    assert versions.current_version(store) == "two"
    after = times_of(tmp_path / "runs" / "two") | times_of(tmp_path / "versions" / "two")
    assert {path.name for path in after if after[path] != before.get(path)} == {"manifest.json"}

    # A version that is current already is compared with none.
    watched, outcome, _ = run_through(later, "two", Gates(max_churn=0.0))
    assert outcome is not None
    assert (outcome.former, outcome.churn) == (None, None)
    assert "compare two" not in watched.stages
    assert versions.current_version(store) == "two"


@pytest.mark.long
def test_a_pipelines_folder_of_data_may_be_relative(
    tmp_path: Path, run_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Storage(str(tmp_path))
    for name in ("one", "two"):
        write_untrained_run(store, name, run_config)
    on_ray.pipeline(run_config, str(tmp_path), run="one", num_workers=1)
    folder = Path(str(run_config.data.folder))
    monkeypatch.chdir(folder.parent)
    near = replace(run_config, data=DataConfig(folder=folder.name))
    outcome = on_ray.pipeline(near, str(tmp_path), run="two", num_workers=1)
    assert outcome.former == outcome.report


@pytest.mark.long
def test_a_pipeline_does_not_publish_over_a_version_that_it_was_not_measured_against(
    tmp_path: Path, run_config: RunConfig
) -> None:
    store, storage = Storage(str(tmp_path)), str(tmp_path)
    for name in ("one", "two", "three"):
        write_untrained_run(store, name, run_config)
    on_ray.pipeline(run_config, storage, run="one", num_workers=1)
    on_ray.encode(storage, "three", version="three")
    with pytest.raises(
        ConflictError, match="version one must stay current while two is measured against it, got three"
    ):
        on_ray.pipeline(
            run_config, storage, run="two", num_workers=1, on_report=lambda *reports: on_ray.publish(storage, "three")
        )
    assert versions.current_version(store) == "three"

    weights = tmp_path / "versions" / "three" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        GateError,
        match=r"^version three, which is current, must answer the same queries, got: \S+ of version three must have "
        "the sha256 .*: repair it, or ignore it with --max-drop None$",
    ):
        on_ray.pipeline(run_config, storage, run="two", num_workers=1)
    with pytest.raises(GateError, match=r"^version three, which is current, .*: repair it, or leave --max-churn out$"):
        on_ray.pipeline(run_config, storage, run="two", num_workers=1, gates=Gates(max_drop=None, max_churn=1.0))
    on_ray.pipeline(run_config, storage, run="two", num_workers=1, gates=Gates(max_drop=None))
    assert versions.current_version(store) == "two"
