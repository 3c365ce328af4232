"""`rails-ray tune`: which cut-off it picks, on which queries, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rails_ray.cli.main import main
from rails_ray.cli.tuning import tune_cutoffs
from rails_ray.cutoffs.policies import LENGTHS, cut
from rails_ray.data.encoding import encode_items
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.training_family import training_family
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.schema.requests import CutoffInput
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.metrics import list_quality
from rails_ray.training.evaluation.ranking import rank_all
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run


@pytest.fixture(scope="module")
def run_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = write_text_data(tmp_path_factory.mktemp("data"))
    return replace(small_config(), data=DataConfig(folder=str(folder)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, run_config: RunConfig) -> Path:
    """A run with a trained tau_q, as far as its config goes, and one without."""
    folder = tmp_path_factory.mktemp("storage")
    write_untrained_run(Storage(str(folder)), "one", run_config, cutoff_mass=0.999)
    plain = run_config.with_family(loss=ContrastiveConfig(kind="sampled_softmax"))
    write_untrained_run(Storage(str(folder)), "plain", plain, cutoff_mass=None)
    return folder


def test_the_best_of_each_kind_is_what_a_server_would_keep(root: Path, run_config: RunConfig) -> None:
    found = tune_cutoffs(Storage(str(root)), run="one", beta=1.0)
    assert (found.tuned, found.split, found.calibrated_on) == ("one", "valid", None)
    assert [one.f_beta for one in found.best] == sorted((one.f_beta for one in found.best), reverse=True)
    assert {one.kind for one in found.best} == {"top_k", "score", "mass", "nucleus", "probability"}
    assert found.left_out == [
        "coverage: cutoff coverage needs a version that is calibrated, got one that is not: run `rails-ray calibrate`, "
        "and restart a server that runs without --follow; or use another cut-off"
    ]
    store, own = Storage(str(root)), training_family(run_config)
    data = read_data(run_config, store, ["valid"])
    assert found.num_queries == len(data.queries["valid"])
    from rails_ray.storage import runs

    model = own.trained_model(runs.weights(store, runs.read(store, "one")))
    items = encode_items(model, model.item_features(data.item_inputs))
    ranking = rank_all(model, items, data.queries["valid"], 60, own.cutoff_support.logit)
    cutoffs = Cutoffs(own.cutoff_support, 60, 0.999)
    for one in found.best:
        given = CutoffInput(**{one.kind: int(one.value) if one.kind == "top_k" else one.value})
        policy = cutoffs.policy(given, 60, ranking.log_normaliser)
        kept = cut(ranking.scores, ranking.temperature, policy, np.zeros(len(ranking.scores), dtype=bool)).num_kept
        quality = list_quality(kept, ranking.is_relevant, ranking.num_relevant)
        assert (one.f_beta, one.precision, one.recall) == pytest.approx(
            (quality.f1, quality.precision, quality.recall), abs=1e-6
        )
        assert one.num_kept == pytest.approx(quality.num_kept)
        assert one.empty_fraction == pytest.approx(quality.empty_fraction)


def test_the_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(str(path) for path in root.rglob("*"))
    written = tmp_path / "tried.json"
    arguments = ["--run", "one", "--storage", str(root), "--beta", "2", "--to", str(written)]
    assert main(["tune", "--cutoff", "top_k", "mass", *arguments]) == 0
    told = capsys.readouterr().out
    assert "queries of split valid choose" in told
    assert "F2" in told
    assert told.count("best") >= 1
    [request] = [line.split(": ", 1)[1] for line in told.splitlines() if line.startswith("in a request")]
    tried = json.loads(written.read_text())
    assert {one["kind"] for one in tried["tried"]} == {"top_k", "mass"}
    assert sum(one["kind"] == "top_k" for one in tried["tried"]) == sum(length <= 60 for length in LENGTHS)
    best = tried["best"][0]
    assert json.loads(request) == {"cutoff": {best["kind"]: best["value"]}}
    assert CutoffInput(**json.loads(request)["cutoff"])
    assert sorted(str(path) for path in root.rglob("*")) == before, "nothing is stored"
    assert main(["tune", "--cutoff", "--run", "one", "--storage", str(root), "--split", "train"]) == 0
    told = capsys.readouterr().out
    assert "queries of split train choose" in told
    assert "left out: coverage: cutoff coverage needs a version that is calibrated" in told


def test_a_model_without_tau_q_is_tuned_without_mass(root: Path) -> None:
    found = tune_cutoffs(Storage(str(root)), run="plain")
    assert {one.kind for one in found.best} == {"top_k", "score", "nucleus", "probability"}
    assert found.left_out[0].startswith("mass: cutoff mass needs a model with a trained tau_q, got one without (loss ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--split", "test"], 2, "split must be valid or train, got 'test': test queries measure what others have"),
        (["--beta", "0"], 2, "beta must be above 0, got 0"),
        (["--version", "v1"], 2, "give a run or a version to tune, got run 'one' and version 'v1'"),
        (["--cutoff", "coverage"], 1, "one must offer a cut-off to try, got none: coverage: cutoff coverage needs a"),
    ],
)
def test_a_mistake_is_one_sentence(
    root: Path, arguments: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--run", "one", "--storage", str(root), *arguments]) == code
    told = capfd.readouterr().err
    assert told.startswith("rails-ray: ")
    assert message in told
    assert told.count("\n") == 1


def test_storage_without_a_version(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--cutoff", "--storage", str(tmp_path)]) == 1
    assert "storage must hold a published version, got none" in capfd.readouterr().err
