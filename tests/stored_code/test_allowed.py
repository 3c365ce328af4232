"""Code that the opener of a version allows, and what slips in with it: no more than that.

Each version here has right checksums. A program or a module that runs leaves a file.
"""

import importlib
import pkgutil
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from rails_ray.allowed_code import VARIABLE, AllowedCode
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.cli.tuning import tune_cutoffs
from rails_ray.families.config import from_json, to_json
from rails_ray.families.rbe.run_ranker import RunRanker
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.reranking import rankers
from rails_ray.reranking.rankers.calling import OWN_RANKERS, check_ranker
from rails_ray.schema.ranker import FORMER_MODULES, RankerConfig
from rails_ray.serving import local
from rails_ray.storage import relevances
from rails_ray.storage.filesystem import Storage
from support.ranked import small_rbe_config
from support.stored_code import (
    MINE,
    NOT_TOLD,
    publish_with_encoder,
    renamed,
    was_imported,
    write_program,
)


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


def test_nothing_is_left_in_a_process(of_ranker: Path, tmp_path: Path, modules: Path) -> None:
    """What one call allows is not allowed to the next."""
    root = str(renamed(of_ranker, tmp_path, "mine:rank"))
    local.open(root, allow_code=["mine"])
    with pytest.raises(ValueError, match=NOT_TOLD):
        local.open(root)


@pytest.mark.parametrize("path", sorted(OWN_RANKERS))
def test_a_config_of_an_earlier_release_names_our_rankers_by_their_former_modules(path: str) -> None:
    module, _, name = path.partition(":")
    [former] = [old for old, new in FORMER_MODULES.items() if new == module]
    config = small_rbe_config(ranker=RankerConfig(path=path, folder="f"))
    stored = to_json(config).replace(module.encode(), former.encode())
    assert former.encode() in stored
    assert from_json(stored) == config
    check_ranker(RankerConfig(path=f"{former}:{name}"), AllowedCode())


def test_a_version_of_an_earlier_release_is_ranked(of_ranker: Path, tmp_path: Path) -> None:
    publish_with_encoder(tmp_path / "s", "support.text_vectors:encode")
    root = renamed(of_ranker, tmp_path, "rails_ray.build.run_ranker:RunRanker", f"{tmp_path}/s/runs/named")
    opened = local.open(str(root), allow_code=["support"])
    [result] = opened.search(["red hat"], k=3, budget={"calls": 30}).results
    assert result.budget is not None
    assert result.budget.is_reranked


def test_a_matrix_that_an_earlier_release_began_goes_on(tmp_path: Path) -> None:
    storage, no_rows = Storage(str(tmp_path)), pa.table({"item_id": ["a"]})
    former = {"ranker": {"path": "rails_ray.relevance.rankers.boosted:BoostedRanker", "folder": "f"}}
    relevances.begin(storage, "m", former, no_rows, no_rows)
    now = {"ranker": asdict(RankerConfig(**former["ranker"]))}
    assert now != former
    relevances.begin(storage, "m", now, no_rows, no_rows)
    other = {"ranker": asdict(RankerConfig(path="rails_ray.reranking.rankers.boosted:BoostedRanker", folder="g"))}
    with pytest.raises(ValueError, match="matrix 'm' must keep the ranker that it was begun with"):
        relevances.begin(storage, "m", other, no_rows, no_rows)
