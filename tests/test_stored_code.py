"""Code that a stored config names: nothing is imported or called unless it is ours or allowed, whoever opens it.

Each version here has right checksums. A program or a module that runs leaves a file.
"""

import importlib
import pickle
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rails_ray.allowed_code import VARIABLE, AllowedCode
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.cli.tuning import tune_cutoffs
from rails_ray.families.config import from_json, to_json
from rails_ray.families.data import read_data
from rails_ray.families.rbe.run_ranker import RunRanker
from rails_ray.families.registry import family
from rails_ray.on_ray.serving.app import application, build
from rails_ray.on_ray.serving.plan import DeploymentSize, RankerArgs, ServeArgs
from rails_ray.reranking import rankers
from rails_ray.reranking.rankers.calling import OWN_RANKERS, RankerConfig, ranker_of
from rails_ray.serving import local
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.ranked import BY_PAIRS
from support.stored_code import SUPPORT, publish_with_encoder, publish_with_ranker, rename_ranker, write_program

NOT_TOLD = "code that this process was not told to run"
MINE = """
import pathlib
from functools import partial
from subprocess import Popen, getoutput

from rails_ray.reranking.rankers.cross_encoder import CrossEncoderRanker
from rails_ray.storage.filesystem import Storage
from support.ranked import by_pairs as borrowed

pathlib.Path(__file__).with_name("imported").touch()


def rank(query, candidates):
    return [float(len(candidate.fields["text"])) for candidate in candidates]


class Ranker:
    def __init__(self, folder=""):
        self.folder = folder

    def __call__(self, query, candidates):
        return rank(query, candidates)


def with_more(more, query, candidates):
    return rank(query, candidates)


halved, hidden, instance = partial(with_more, 2), partial(getoutput), Ranker()
bound = instance.__call__
"""


@pytest.fixture(scope="module")
def of_ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version of the report: a ranker that runs a program, which is its folder."""
    root = tmp_path_factory.mktemp("popen") / "storage"
    program, _ = write_program(root.parent / "program")
    publish_with_ranker(root, RankerConfig(path="subprocess:Popen", folder=str(program)))
    return root


@pytest.fixture(scope="module")
def of_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The other version of the report: an encoder that runs the text of a query in a shell."""
    root = tmp_path_factory.mktemp("getoutput") / "storage"
    publish_with_encoder(root, "subprocess:getoutput")
    return root


@pytest.fixture
def made(of_ranker: Path) -> Path:
    """What the program makes if it runs."""
    return of_ranker.parent / "program" / "it-ran"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that can be imported, and tell that they were."""
    folder = tmp_path / "modules"
    for package in ("mine", "mine/sub", "mine_evil", "rails_ray_evil"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(folder))
    for name in list(sys.modules):
        if name.partition(".")[0] in ("mine", "mine_evil", "rails_ray_evil"):
            monkeypatch.delitem(sys.modules, name)
    return folder


def was_imported(modules: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(modules)) for path in modules.rglob("imported"))


def renamed(root: Path, tmp_path: Path, path: str, folder: str = "") -> Path:
    """A version like that of `of_ranker` that names another ranker."""
    return rename_ranker(root, tmp_path / "renamed", RankerConfig(path=path, folder=folder))


def test_a_version_with_a_program_as_its_ranker_is_not_opened(of_ranker: Path, made: Path) -> None:
    told = (
        f"version v1 names the ranker 'subprocess:Popen', {NOT_TOLD}: if you trust whoever can write to its storage, "
        "allow it by --allow-code subprocess, by allow_code in Python and in Serve's args, or by RAILS_RAY_ALLOW_CODE"
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
        ["serve", "--lite", "--allow-anonymous"],
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


def test_our_own_rankers_may_lie_in_the_storage() -> None:
    """As where the storage is a folder that holds the virtual environment."""
    here = str(Path(rankers.__file__).parents[3])
    for path in OWN_RANKERS:
        AllowedCode().read_by("version v", here).check_place("ranker", path, OWN_RANKERS)


@pytest.mark.parametrize(
    ("allow_code", "told"),
    [
        (["rails_ray"], "must name modules of your own, got rails_ray: the rankers of rails-ray are allowed"),
        (["rails_ray.serving.http"], "must name modules of your own, got rails_ray.serving.http"),
        (["my rankers"], "must name modules, such as my_rankers or my_rankers.fast, got 'my rankers'"),
        (["a", ""], "got ''"),
        ([".relative"], r"got '\.relative'"),
        (["*"], r"got '\*'"),
    ],
)
def test_what_cannot_be_allowed(of_ranker: Path, allow_code: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=f"allow_code {told}" if told.startswith("must") else told):
        local.open(str(of_ranker), allow_code=allow_code)
    with pytest.raises(ValueError, match=told):
        ServeArgs(storage="s", allow_anonymous=True, allow_code=allow_code)


def test_one_text_is_no_list_of_modules(of_ranker: Path) -> None:
    with pytest.raises(ValueError, match="allow_code must be a list of modules, got the text 'mine'"):
        local.open(str(of_ranker), allow_code="mine")


@pytest.mark.parametrize("path", ["mine:Ranker", "mine:rank", "mine.sub:Ranker", "mine:halved", "mine:instance"])
def test_a_module_is_allowed_with_what_lies_below_it(
    of_ranker: Path, tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    root = str(renamed(of_ranker, tmp_path, path))
    with pytest.raises(ValueError, match=f"names the ranker '{path}', {NOT_TOLD}"):
        local.open(root)
    assert was_imported(modules) == []
    [result] = local.open(root, allow_code=["mine"]).search(["red hat"], k=3, budget={"calls": 30}).results
    assert result.budget is not None
    assert result.budget.is_reranked
    monkeypatch.setenv(VARIABLE, " other ,mine")
    assert local.open(root).ranker_path == path
    monkeypatch.setenv(VARIABLE, "no module")
    with pytest.raises(ValueError, match=f"{VARIABLE} must name modules, such as .*, got 'no module'"):
        local.open(root)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("mine:getoutput", "subprocess"),
        ("mine:Popen", "subprocess"),
        ("mine:hidden", "subprocess"),
        ("mine:Storage", "rails_ray.storage.filesystem"),
        ("mine:borrowed", "support.ranked"),
        ("mine:pathlib", "pathlib"),
        ("mine:__builtins__", "builtins"),
        ("mine:__loader__", "_frozen_importlib_external"),
    ],
)
def test_what_an_allowed_module_has_imported_is_not_allowed(
    of_ranker: Path, tmp_path: Path, modules: Path, path: str, place: str
) -> None:
    program, ran = write_program(tmp_path)
    root = renamed(of_ranker, tmp_path, path, str(program))
    told = f"version v1 must name a ranker that is defined where code is allowed, got '{path}', which is defined in "
    with pytest.raises(ValueError, match=f"^{told}{place}$"):
        local.open(str(root), allow_code=["mine"])
    assert not ran.exists()


def test_one_path_is_allowed_as_it_is_named(of_ranker: Path, tmp_path: Path, modules: Path) -> None:
    root = renamed(of_ranker, tmp_path, "mine:borrowed")
    assert local.open(str(root), allow_code=["mine:borrowed"]).ranker is not None
    with pytest.raises(ValueError, match=NOT_TOLD):
        local.open(str(root), allow_code=["mine:rank"])


@pytest.mark.parametrize(
    "path",
    [
        "builtins:eval",
        "builtins:__import__",
        "importlib:import_module",
        "os:system",
        "mine_evil:rank",
        "rails_ray_evil:rank",
        "Mine:rank",
        "RAILS_RAY.build.run_ranker:RunRanker",
        "rails_ray.cli.main:main",
        "rails_ray.serving.http.keys:Path",
        "rails_ray.serving.http.keys:KeysFile",
        "rails_ray.storage.filesystem:Storage",
        "rails_ray.reranking.rankers.calling:importlib",
        "rails_ray.reranking.rankers.calling:ranker_of",
        "rails_ray.training.collectives.processes:pickle",
        "rails_ray:__loader__",
        # what is no MODULE:NAME
        "rails_ray.serving.http.keys:os.system",
        "rails_ray.families.rbe.run_ranker:RunRanker.__init__",
        "rails_ray.reranking.rankers..evil:rank",
        "rails_ray.families.rbe.run_ranker:RunRanker:more",
        "rails_ray.families.rbe.run_ranker:RunRanker\n",
        "rails_ray.families.rbe.run_ranker: RunRanker",
        " rails_ray.families.rbe.run_ranker:RunRanker",
        "rails_ray.families.rbe.run_ranker",
        ".mine:rank",
        "mine/sub:rank",
        "../mine:rank",
        "m\u0131ne:rank",
        "mine:",
        ":rank",
    ],
)
def test_ways_round_it(of_ranker: Path, tmp_path: Path, modules: Path, path: str) -> None:
    program, ran = write_program(tmp_path)
    root = renamed(of_ranker, tmp_path, path, str(program))
    told = f"{NOT_TOLD}|must name a ranker that rails-ray has|ranker must be the import path of a callable, MODULE:NAME"
    with pytest.raises(ValueError, match=told) as refused:
        local.open(str(root), allow_code=["mine"])
    assert str(refused.value).count("\n") == 0
    assert was_imported(modules) == []
    assert not ran.exists()


def test_our_own_rankers_are_those_that_may_be_named() -> None:
    """A new one is a line in the list, and nothing else of ours is in it."""
    found = {f"{RunRanker.__module__}:{RunRanker.__name__}"}
    for module in pkgutil.iter_modules(rankers.__path__, f"{rankers.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and value.__module__ == module.name and name.endswith("Ranker"):
                found.add(f"{module.name}:{name}")
    assert found == OWN_RANKERS


def test_modules_of_the_storage_are_not_imported(
    of_ranker: Path, tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs in the storage's folder finds there what whoever writes to it has put in front."""
    root = renamed(of_ranker, tmp_path, "mine:rank")
    (root / "mine").mkdir()
    (root / "mine" / "__init__.py").write_text(MINE)
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend("")
    with pytest.raises(ValueError, match=r"the ranker 'mine:rank' of version v1 must lie outside the storage.*, got /"):
        local.open(".", allow_code=["mine"])
    assert not (root / "mine" / "imported").exists()


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


def test_a_run_that_ranks_is_passed_what_is_allowed(tmp_path: Path, of_ranker: Path) -> None:
    publish_with_encoder(tmp_path / "s", "support.text_vectors:encode")
    path, folder = "rails_ray.families.rbe.run_ranker:RunRanker", f"{tmp_path}/s/runs/named"
    root = renamed(of_ranker, tmp_path, path, folder)
    opened = local.open(str(root), allow_code=["support"])
    [result] = opened.search(["red hat"], k=3, budget={"calls": 30}).results
    assert result.budget is not None
    assert result.budget.is_reranked


def test_an_encoder_that_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "s"
    publish_with_encoder(root, "support.text_vectors:encode")
    assert local.open(str(root), allow_code=["support"]).search(["red hat"], k=3).results[0].items
    assert tune_cutoffs(Storage(str(root)), version="v1", kinds=["top_k"], allow_code=["support"]).cutoff
    query = ["query", "red hat", "--local", "--storage", str(root), "--cutoff", "top_k", "3"]
    assert main(query) == EXIT_BAD_ARGUMENT
    assert main([*query, "--allow-code", "support.text_vectors"]) == 0
    assert main(["tune", "--cutoff", "top_k", "--storage", str(root), "--allow-code", "support"]) == 0
    assert "red hat" in capsys.readouterr().out
    printed = ["serve", "--print-config", "--allow-anonymous", "--storage", str(root), "--allow-code", "support"]
    assert main(printed) == 0
    [served] = yaml.safe_load(capsys.readouterr().out)["applications"]
    assert served["args"]["allow_code"] == ["support"]


def test_a_width_that_the_config_leaves_out_calls_nothing(of_encoder: Path) -> None:
    """What a config leaves out is filled in by a call of the encoder."""
    found = runs.read(Storage(str(of_encoder)), "named")
    config: Any = from_json(found.config)
    config = config.with_family(encoder=replace(config.family.encoder, width=0))
    with pytest.raises(ValueError, match=NOT_TOLD):
        family(from_json(to_json(config))).completed(read_data(config, Storage(str(of_encoder))))


def test_a_model_that_travels_takes_its_allowance_along(of_ranker: Path, tmp_path: Path) -> None:
    found = runs.read(Storage(str(of_ranker)), "named")
    own = family(from_json(found.config))
    model: Any = pickle.loads(pickle.dumps(own.trained_model(runs.weights(Storage(str(of_ranker)), found))))
    with pytest.raises(ValueError, match=NOT_TOLD):
        model.query_features(["a text that nobody has scored"])


def test_nothing_is_left_in_a_process(of_ranker: Path, tmp_path: Path, modules: Path) -> None:
    """What one call allows is not allowed to the next."""
    root = str(renamed(of_ranker, tmp_path, "mine:rank"))
    local.open(root, allow_code=["mine"])
    with pytest.raises(ValueError, match=NOT_TOLD):
        local.open(root)


def test_in_a_process_of_its_own(of_ranker: Path, made: Path) -> None:
    """As the report has it: the command, as a user runs it."""
    command = [sys.executable, "-m", "rails_ray.cli", "query", "red", "--local", "--storage", str(of_ranker)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == EXIT_BAD_ARGUMENT
    assert ended.stderr.startswith("rails-ray: version v1 names the ranker 'subprocess:Popen', code that")
    assert not made.exists()
