"""Code that a stored config names, on workers: they carry out what the call allows, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray import on_ray
from rails_ray.allowed_code import VARIABLE
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.families.config import DataConfig
from rails_ray.on_ray.pipelining import pipeline
from rails_ray.on_ray.relevance_matrix import fill
from rails_ray.schema.ranker import RankerConfig
from support.data_folders import write_text_data
from support.examples import small_config
from support.stored_code import OF_TEXTS, publish_with_encoder

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
NOT_TOLD = "code that this process is not allowed to run"
RUN_RANKER = "rails_ray.families.rbe.run_ranker:RunRanker"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored-code") / "storage"
    publish_with_encoder(root, OF_TEXTS.function)
    return root


def evaluate(root: Path, **how: Any) -> Any:
    return on_ray.evaluate(str(root), version="v1", **how)


def evaluate_run(root: Path, **how: Any) -> Any:
    return on_ray.evaluate(str(root), run="named", **how)


def calibrate(root: Path, **how: Any) -> Any:
    return on_ray.calibrate(str(root), version="v1", num_segments=1, **how)


def encode(root: Path, **how: Any) -> Any:
    return on_ray.encode(str(root), "named", version="again", num_shards=2, **how)


def fill_from_run(root: Path, **how: Any) -> Any:
    """The ranker is the user's word; what its run names is not."""
    ranker = RankerConfig(path=RUN_RANKER, folder=f"{root}/runs/named")
    data = f"{root.parent}/{root.name}-data"
    return fill(str(root), "m", data, ranker, num_relevant=3, **how)


@pytest.mark.parametrize("stage", [evaluate, evaluate_run, calibrate, encode, fill_from_run])
def test_no_stage_calls_it_unless_it_is_allowed(root: Path, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"(version v1|run named) names the encoder function '.*:encode', {NOT_TOLD}"):
        stage(root)
    assert stage(root, allow_code=["support"])
    with pytest.raises(ValueError, match=NOT_TOLD):
        stage(root, allow_code=["support.ranked"])
    monkeypatch.setenv(VARIABLE, "support.text_vectors")  # of this process alone: the cluster runs already
    assert stage(root)


def test_what_a_user_names_is_allowed_for_that_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, root = write_text_data(tmp_path / "data"), str(tmp_path / "s")
    named = ["--encoder.kind", "function", "--encoder.function", OF_TEXTS.function, "--data.folder", str(data)]
    train = ["train", "text-dot", "--run", "r", "--storage", root, "--training.num-steps", "3", "--workers", "1"]
    assert main([*train, *named]) == 0
    assert "next: rails-ray encode --run r --allow-code support.text_vectors --storage" in capsys.readouterr().out
    version = ["--run", "r", "--version", "v", "--storage", root]
    assert main(["encode", *version]) == EXIT_BAD_ARGUMENT
    assert f"run r names the encoder function 'support.text_vectors:encode', {NOT_TOLD}" in capsys.readouterr().err
    assert main(["encode", *version, "--allow-code", "support"]) == 0
    assert main(["evaluate", "--version", "v", "--storage", root]) == EXIT_BAD_ARGUMENT
    assert main(["evaluate", "--version", "v", "--storage", root, "--allow-code", "support"]) == 0
    assert main(["calibrate", "--version", "v", "--storage", root, "--allow-code", "support.ranked"]) == 2


@pytest.mark.long
def test_a_pipeline_is_one_call(tmp_path: Path) -> None:
    small = small_config("dot product")
    config = replace(small, data=DataConfig(folder=str(write_text_data(tmp_path / "data")))).with_family(
        encoder=OF_TEXTS
    )
    config = replace(config, training=replace(config.training, num_steps=3))
    made = pipeline(config, str(tmp_path / "s"), run="p", num_workers=1)
    assert made.manifest.version == "p"
