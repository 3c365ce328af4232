"""Versions whose config names code, and modules that can be imported."""

import sys
from pathlib import Path

import pytest

from rails_ray.schema.ranker import RankerConfig
from support.stored_code import MINE, publish_with_encoder, publish_with_ranker, write_program


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
