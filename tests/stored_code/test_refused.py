"""Code that a stored config names is neither imported nor called unless it is ours or allowed.

Each version here has right checksums. A program or a module that runs leaves a file.
"""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rails_ray.allowed_code import VARIABLE
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.cli.tuning import tune_cutoffs
from rails_ray.families.config import from_json, to_json
from rails_ray.families.data import read_data
from rails_ray.families.rbe.run_ranker import RunRanker
from rails_ray.families.training_family import training_family
from rails_ray.on_ray.serving.app import application, build
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.reranking.rankers.calling import ranker_of
from rails_ray.schema.deployment import RankerArgs
from rails_ray.schema.ranker import RankerConfig
from rails_ray.serving import local
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.ranked import BY_PAIRS
from support.stored_code import NOT_TOLD, SUPPORT, renamed, was_imported, write_program


def test_a_version_with_a_program_as_its_ranker_is_not_opened(of_ranker: Path, made: Path) -> None:
    told = (
        f"version v1 names the ranker 'subprocess:Popen', {NOT_TOLD}: if you trust everyone who can write to its "
        "storage, allow it by --allow-code subprocess, by allow_code in Python and in Serve's args, or by "
        "RAILS_RAY_ALLOW_CODE"
    )
    with pytest.raises(ValueError, match=f"^{told}$"):
        local.open(str(of_ranker))
    assert not made.exists()


def test_a_version_that_runs_the_text_of_a_query_is_not_opened(of_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"version v1 names the encoder function 'subprocess:getoutput', {NOT_TOLD}"):
        local.open(str(of_encoder)).search([f"touch {tmp_path / 'it-ran'}"])
    assert not (tmp_path / "it-ran").exists()


def test_a_ranker_that_is_given_takes_the_place_of_the_versions(of_ranker: Path, made: Path) -> None:
    answer = local.open(str(of_ranker), ranker=ranker_of(BY_PAIRS, SUPPORT)).search(["red hat"], k=3)
    assert len(answer.results[0].items) == 3
    assert not made.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["query", "touch IT-RAN", "--local"],
        ["serve", "--single", "--allow-anonymous"],
        ["serve", "--print-config", "--allow-anonymous"],
        ["serve", "--print-config", "--allow-anonymous", "--ranker.timeout-s", "3"],
    ],
)
@pytest.mark.parametrize("which", ["of_ranker", "of_encoder"])
def test_no_command_opens_them(
    command: list[str], which: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    root, ran = request.getfixturevalue(which), tmp_path / "it-ran"
    asked = [word.replace("IT-RAN", str(ran)) for word in command]
    assert main([*asked, "--storage", str(root)]) == EXIT_BAD_ARGUMENT
    told = capsys.readouterr()
    assert told.out == ""
    assert f"{NOT_TOLD}: if you trust" in told.err
    assert told.err.startswith("rails-ray: version v1 names the ")
    assert told.err.count("\n") == 1
    assert not ran.exists()
    assert not request.getfixturevalue("made").exists()


@pytest.mark.parametrize("of_run", [True, False])
def test_an_encoder_is_not_called_to_tune(of_encoder: Path, of_run: bool) -> None:
    named = {"run": "named"} if of_run else {"version": "v1"}
    told = f"{'run named' if of_run else 'version v1'} names the encoder function 'subprocess:getoutput', {NOT_TOLD}"
    with pytest.raises(ValueError, match=told):
        tune_cutoffs(Storage(str(of_encoder)), **named)


@pytest.mark.parametrize("which", ["of_ranker", "of_encoder"])
def test_serve_builds_no_application_of_them(which: str, request: pytest.FixtureRequest) -> None:
    args = ServeArgs(storage=str(request.getfixturevalue(which)), allow_anonymous=True)
    with pytest.raises(ValueError, match=f"^version v1 names the .* 'subprocess:.*', {NOT_TOLD}"):
        build(args)
    assert not request.getfixturevalue("made").exists()


def test_what_is_allowed_travels_in_serves_arguments(
    of_ranker: Path, tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the router in its arguments, and to the replicas of the ranker: they read no environment."""
    root, bound = renamed(of_ranker, tmp_path, "mine:Ranker"), list[Any]()
    monkeypatch.setattr("ray.serve.Deployment.bind", lambda self, *given: bound.append((self.name, given)))
    args = ServeArgs(storage=str(root), allow_anonymous=True)
    with pytest.raises(ValueError, match=f"names the ranker 'mine:Ranker', {NOT_TOLD}"):
        application(args, DeploymentSize())
    monkeypatch.setenv(VARIABLE, "other, mine")
    application(args, DeploymentSize())
    placed = dict(bound)
    assert placed["Router"][1].allow_code == ["other", "mine"]
    assert placed["Router"][1].ranker.path == "mine:Ranker"
    assert placed["Ranker"][-1].named == ("other", "mine")
    monkeypatch.delenv(VARIABLE)
    application(args.model_copy(update={"allow_code": ["mine"]}), DeploymentSize())
    assert dict(bound)["Ranker"][-1].named == ("mine",)
    named = args.model_copy(update={"ranker": RankerArgs(path="mine.sub:rank")})
    application(named, DeploymentSize())  # the word of whoever deploys
    assert dict(bound)["Ranker"][-1].named == ("mine.sub:rank",)
    assert was_imported(modules) == [], "the replica imports it"


def test_what_a_version_names_is_not_the_word_of_whoever_deploys(
    of_ranker: Path, tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the command copies it into the arguments of the deployment: the replica then looks where it is
    defined."""
    program, ran = write_program(tmp_path)
    root, bound = renamed(of_ranker, tmp_path, "mine:Popen", str(program)), list[Any]()
    monkeypatch.setattr("ray.serve.Deployment.bind", lambda self, *given: bound.append((self.name, given)))
    printed = ["serve", "--print-config", "--allow-anonymous", "--storage", str(root), "--allow-code", "mine"]
    assert main(printed) == 0
    [served] = yaml.safe_load(capsys.readouterr().out)["applications"]
    application(ServeArgs.model_validate(served["args"]), DeploymentSize())
    allowed = dict(bound)["Ranker"][-1]
    assert allowed.named == ("mine",)
    with pytest.raises(ValueError, match="must name a ranker that is defined where code is allowed, got 'mine:Popen'"):
        ranker_of(RankerConfig(path="mine:Popen", folder=str(program)), allowed)
    assert not ran.exists()
    assert main([*printed[:-2], "--ranker.path", "mine:rank"]) == 0  # the user's own word in this call
    [served] = yaml.safe_load(capsys.readouterr().out)["applications"]
    assert served["args"]["allow_code"] == ["mine:rank"]


def test_a_run_that_ranks_names_no_code_either(of_encoder: Path, of_ranker: Path, tmp_path: Path) -> None:
    """A ranker of ours that reads another config."""
    told = f"run named names the encoder function 'subprocess:getoutput', {NOT_TOLD}"
    path, folder = "rails_ray.families.rbe.run_ranker:RunRanker", f"{of_encoder}/runs/named"
    with pytest.raises(ValueError, match=told):
        ranker_of(RankerConfig(path=path, folder=folder))
    with pytest.raises(ValueError, match=told):
        RunRanker(folder)
    with pytest.raises(ValueError, match=told):
        local.open(str(renamed(of_ranker, tmp_path, path, folder)))


def test_a_width_that_the_config_leaves_out_calls_nothing(of_encoder: Path) -> None:
    """What a config leaves out is filled in by a call of the encoder."""
    found = runs.read(Storage(str(of_encoder)), "named")
    config: Any = from_json(found.config)
    config = config.with_family(encoder=replace(config.family.encoder, width=0))
    with pytest.raises(ValueError, match=NOT_TOLD):
        training_family(from_json(to_json(config))).completed(read_data(config, Storage(str(of_encoder))))


def test_a_model_that_travels_takes_its_allowance_along(of_ranker: Path, tmp_path: Path) -> None:
    found = runs.read(Storage(str(of_ranker)), "named")
    own = training_family(from_json(found.config))
    model: Any = pickle.loads(pickle.dumps(own.trained_model(runs.weights(Storage(str(of_ranker)), found))))
    with pytest.raises(ValueError, match=NOT_TOLD):
        model.query_features(["a text that nobody has scored"])


def test_in_a_process_of_its_own(of_ranker: Path, made: Path) -> None:
    """As the report has it: the command, as a user runs it."""
    command = [sys.executable, "-m", "rails_ray.cli", "query", "red", "--local", "--storage", str(of_ranker)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == EXIT_BAD_ARGUMENT
    assert ended.stderr.startswith("rails-ray: version v1 names the ranker 'subprocess:Popen', code that")
    assert not made.exists()
