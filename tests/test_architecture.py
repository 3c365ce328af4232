"""What may be imported where, and who may name the members of a union, seen from outside the linters."""

import importlib
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from typing import Any, get_args

import pytest
from torch import nn

from rails_ray.build.family import Family
from rails_ray.config import FamilyConfig
from rails_ray.config.bm25 import Bm25Config
from rails_ray.data.forms import FORMS
from rails_ray.recipes import RECIPES
from rails_ray.similarities.states import AnyItems, AnyQuery
from support.sources import ROOT, asked_about, imported, module_of, named, sources

MATHEMATICS = (
    "encoders",
    "similarities",
    "kernels",
    "losses",
    "quantizers",
    "indexes",
    "retrieval",
    "relevance",
    "cutoffs",
    "models",
)


def modules_of(*folders: str) -> list[str]:
    files = [file for folder in folders for file in (ROOT / "rails_ray" / folder).rglob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def run_without(blocked: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own in which some packages cannot be imported."""
    prelude = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
"""
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_mathematics_runs_where_only_torch_numpy_scipy_and_jaxtyping_are() -> None:
    blocked = {
        "ray",
        "tokenizers",
        "numba",
        "mmh3",
        "pyarrow",
        "faiss",
        "fsspec",
        "s3fs",
        "pydantic",
        "rich",
        "tyro",
        "httpx",
        "emoji",
        "fastapi",
        "sklearn",
        "rdkit",
        "apted",
    }
    names = [*modules_of(*MATHEMATICS), "rails_ray.top_k", "rails_ray.masks", "rails_ray.wanted", "rails_ray.scan"]
    names.remove("rails_ray.encoders.tokenizer")  # imported where there are tokens to learn or to read
    names.remove("rails_ray.kernels.compiled_loops")  # imported where there is numba
    code = f"""
import importlib
for name in {names!r}:
    importlib.import_module(name)
import torch
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.wanted import Wanted
vectors = torch.eye(4)[:, None]
query = QueryState(vectors[:2], None, torch.ones(2))
found = BruteForce(DotProduct(DotProductConfig()), ItemState(vectors, None, vectors[:, 0])).search(query, Wanted(1))
assert found.item_rows.tolist() == [[0], [1]]
"""
    done = run_without(blocked, code)
    assert done.returncode == 0, done.stderr


def test_training_and_evaluation_run_without_ray() -> None:
    names = modules_of("training", "evaluation", "collectives", "data", "storage", "recipes")
    names.remove("rails_ray.storage.s3")  # imported where a root is on S3, and there alone
    code = f"""
import importlib
for name in {[*names, "rails_ray.build", "rails_ray.config"]!r}:
    importlib.import_module(name)
"""
    done = run_without({"ray", "faiss", "fsspec", "s3fs", "botocore", "aiobotocore"}, code)
    assert done.returncode == 0, done.stderr


def test_nothing_in_the_package_imports_what_is_not_installed_with_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["packages"]["find"]["include"] == ["rails_ray*"]
    for path, source in sources().items():
        assert not {name.split(".")[0] for name in imported(source)} & {"serve", "jobs", "tests"}, path


def test_nothing_that_is_printed_or_deployed_names_a_module_that_is_not_installed() -> None:
    """The benches aside, which the repository alone has. READMEs may name the repository's own names too."""
    lacking = re.compile(r"(?<![\w.])(serve\.app\b|jobs\.(?!benches\b|plots\b)[a-z]\w*)")
    assert lacking.findall("serve.app:build, python -m jobs.train, rails_ray.jobs.train") == ["serve.app", "jobs.train"]
    files = [*(ROOT / "rails_ray").rglob("*.py"), *(ROOT / "k8s").rglob("*.yaml"), ROOT / "serve" / "config.yaml"]
    assert {str(file): found for file in files if (found := lacking.findall(file.read_text()))} == {}


def test_no_test_imports_another() -> None:
    tests = sources("tests")
    others = {path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in tests}
    others = {name for name in others if name.rpartition(".")[2].startswith(("test_", "conftest"))}
    for path, source in tests.items():
        parts = {part for name in imported(source) for part in name.split(".")[:-1]} | imported(source)
        assert not imported(source) & others, path
        assert not {part for part in parts if part.startswith("tests")}, path


def test_the_deployable_application_is_a_typed_builder() -> None:
    import inspect

    from ray.serve import Application

    from rails_ray.serve_app import ServeArgs, build
    from serve import app

    assert app.build is build, "a config with the name of old must deploy the same"
    (parameter,) = inspect.signature(build).parameters.values()
    assert parameter.annotation is ServeArgs  # a string would make Ray pass a plain dict
    assert inspect.signature(build).return_annotation is Application


def test_faiss_searches_without_a_gpu() -> None:
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(2)
    index.add(np.eye(2, dtype=np.float32))
    assert index.search(np.array([[0, 1]], dtype=np.float32), 1)[1].tolist() == [[1]]


# The members of the unions: a sixth family, a new kind of item or a new way to ask is named in its own files, in those
# that choose, and in the mathematics that computes on it.

FAMILY_ROOMS = {
    "rails_ray/build/": "chooses: config to objects, and the one match",
    "rails_ray/config/": "one file of a member each, which names itself, and the union",
    "rails_ray/recipes/": "are configs of a family",
    "rails_ray/models/": "one file of a member each, which names itself",
}
STATE_ROOMS = {
    "rails_ray/build/": "says which states a family has",
    "rails_ray/encoders/": "make them",
    "rails_ray/indexes/": "hold their tensors",
    "rails_ray/kernels/": "scan their tensors",
    "rails_ray/losses/": "compare them",
    "rails_ray/models/": "return them",
    "rails_ray/quantizers/": "read them back from codes",
    "rails_ray/relevance/surrogate.py": "fits vectors to their scores",
    "rails_ray/retrieval/": "searches them",
    "rails_ray/similarities/": "defines them, and scores the ones against the others",
}
STEP_ROOMS = {
    "rails_ray/training/contrast.py": "scores a dual encoder's queries against its items, on other workers too",
    "rails_ray/training/objectives.py": "reads the components that a loss compares",
    "rails_ray/training/over_frozen.py": "stands in for a dual encoder whose states are there already",
    "rails_ray/training/quantizing.py": "replaces the components of items by what their codes stand for",
    "rails_ray/training/step.py": "is the step of a dual encoder",
    "rails_ray/training/terms.py": "regularises the components of items",
}
FORM_ROOMS = {"rails_ray/data/forms/": "one file of a member each, and the table of them"}


def subclasses(of: type) -> set[type]:
    direct = set(of.__subclasses__())
    return direct.union(*(subclasses(one) for one in direct))


def in_package(classes: set[type]) -> set[type]:
    return {one for one in classes if one.__module__.startswith("rails_ray.")}


@cache
def configs() -> set[type]:
    return set(get_args(FamilyConfig))


@cache
def models() -> set[type]:
    """What can encode queries and items, of the modules of `models`."""
    modules = [importlib.import_module(name) for name in modules_of("models")]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return {one for one in classes if issubclass(one, nn.Module) and hasattr(one, "encode_items")}


@cache
def families() -> set[type]:
    return in_package(subclasses(Family))


@cache
def states() -> set[type]:
    for name in modules_of("similarities"):
        importlib.import_module(name)
    return in_package(subclasses(AnyQuery) | subclasses(AnyItems))


@cache
def forms() -> set[type]:
    return {type(form) for form in FORMS.values()}


def test_the_members_are_found() -> None:
    assert len(configs()) == len(families()) == len(models()) >= 3
    assert {family.__name__ for family in families()} >= {"DualEncoderFamily", "SolarFamily", "Bm25Family"}
    assert {own.__module__.rpartition(".")[2] for own in models()} == {
        own.__module__.rpartition(".")[2] for own in families()
    }
    assert len(states()) >= 6
    assert len(forms()) == len(FORMS)


def mentions(source: str, members: set[type], *, modules: bool = True) -> set[str]:
    """The members that a module names, and the modules of members from which it imports anything."""
    names = named(source) & {member.__name__ for member in members}
    return names | (imported(source) & {member.__module__ for member in members} if modules else set())


def is_in(path: str, rooms: Any) -> bool:
    return any(path == room or (room.endswith("/") and path.startswith(room)) for room in rooms)


def is_beside(module: str, member: type) -> bool:
    """Whether both are of one family, as build.solar and models.solar are."""
    return module.rpartition(".")[2] == member.__module__.rpartition(".")[2]


def violations(path: str, source: str) -> set[str]:
    """What a module names and should not know.

    A family's files are its own: that one of them is imported from is as good as a name. A state's module holds
    several, and the base that everyone may know.
    """
    found = set()
    if not is_in(path, FAMILY_ROOMS):
        found |= mentions(source, configs() | families())
        found |= named(source) & {kind.kind for kind in configs()}
    if not is_in(path, [*FAMILY_ROOMS, *STEP_ROOMS]):
        found |= mentions(source, models())
    if not is_in(path, [*STATE_ROOMS, *STEP_ROOMS]):
        found |= mentions(source, states(), modules=False)
    if not is_in(path, FORM_ROOMS):
        found |= mentions(source, forms())
    if not path.startswith("rails_ray/build/"):
        members = configs() | families() | models() | states() | forms() | {Family, AnyQuery, AnyItems}
        asked = asked_about(source) & {*(member.__name__ for member in members), "family.kind", "form"}
        found |= {f"asks for {name}" for name in asked}
    all_of_families = configs() | families() | models()
    if module_of(path) in {member.__module__ for member in all_of_families}:  # one family knows no other
        found |= mentions(source, {member for member in all_of_families if not is_beside(module_of(path), member)})
    return found


def test_nobody_names_a_member_who_need_not_know_it() -> None:
    found = {path: violations(path, source) for path, source in sources().items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_each_room_is_there_and_has_a_member_at_home() -> None:
    members = configs() | families() | models() | states() | forms()
    for room in {**FAMILY_ROOMS, **STATE_ROOMS, **STEP_ROOMS, **FORM_ROOMS}:
        inside = [source for path, source in sources().items() if is_in(path, [room])]
        assert inside, room
        if not room.endswith(("indexes/", "kernels/", "losses/")):  # which take bare tensors so far
            assert any(mentions(source, members) for source in inside), room


@pytest.mark.parametrize(
    ("path", "line", "violation"),
    [
        ("on_ray/encoding.py", "from rails_ray.config.solar import SolarConfig", "SolarConfig"),
        ("on_ray/encoding.py", "from rails_ray.build.solar import LAST_STEPS", "rails_ray.build.solar"),
        ("on_ray/encoding.py", "from rails_ray.build import solar", "rails_ray.build.solar"),
        ("on_ray/training.py", "import rails_ray.models.dual_encoder", "rails_ray.models.dual_encoder"),
        ("on_ray/serving/router.py", "from rails_ray.models.solar import Solar", "Solar"),
        ("on_ray/serving/shard.py", "from rails_ray.similarities.states import Codes", "Codes"),
        ("on_ray/serving/shard.py", "import rails_ray.similarities as s; s.states.Codes", "Codes"),
        ("answering/encoder.py", "def f(query: 'Tables'): ...", "Tables"),
        ("storage/parquet.py", "from rails_ray.similarities.bm25 import TermWeights", "TermWeights"),
        ("evaluation/report.py", "from rails_ray.similarities.states import ItemState", "ItemState"),
        ("collectives/gather.py", "from rails_ray.similarities.states import QueryState", "QueryState"),
        ("training/loop.py", "from rails_ray.models.dual_encoder import DualEncoder", "DualEncoder"),
        ("commands/query.py", "from rails_ray.data.forms.text import TextForm", "TextForm"),
        ("cli.py", "is_solar = config.family.kind == 'solar'", "solar"),
        ("cli.py", "is_solar = config.family.kind == one", "asks for family.kind"),
        ("rendering.py", "if model.form == 'text': ...", "asks for form"),
        ("config/bm25.py", "from rails_ray.config.solar import SolarConfig", "SolarConfig"),
        ("build/bm25.py", "from rails_ray.build.solar import LAST_STEPS", "rails_ray.build.solar"),
        ("models/bm25.py", "from rails_ray.models.dual_encoder import DualEncoder", "DualEncoder"),
        ("similarities/explain.py", "def f(items):\n    return isinstance(items, Codes | ItemState)", "asks for Codes"),
        ("retrieval/rounds.py", "def f(q):\n    match q:\n        case Tables(): ...", "asks for Tables"),
        ("retrieval/rounds.py", "is_codes = type(items) is Codes", "asks for Codes"),
    ],
)
def test_one_line_too_many_is_found(path: str, line: str, violation: str) -> None:
    path = f"rails_ray/{path}"
    assert violation in violations(path, f"{sources()[path]}\n{line}\n")


def test_a_family_is_three_lines_of_files_that_others_share() -> None:
    """BM25 came last. Beside its own files it is named by the union of the config, by the match, and by the list of
    recipes."""
    recipes = {recipe.__module__ for recipe in RECIPES if isinstance(recipe().family, Bm25Config)}
    own = {path for path in sources() if path.endswith("/bm25.py") or module_of(path) in recipes}
    assert len(own) == 6, "config, build, models, similarities, retrieval, recipes"
    modules = {module_of(path) for path in own}
    members = {one for one in configs() | families() | models() | states() if one.__module__ in modules}
    assert len(members) == 5, "config, family, model, and the states of queries and items"
    names = {member.__name__ for member in members} | {Bm25Config.kind}
    shared = {
        path
        for path, source in sources().items()
        if path not in own and (imported(source) & modules or named(source) & names)
    }
    assert shared == {"rails_ray/build/__init__.py", "rails_ray/config/__init__.py", "rails_ray/recipes/__init__.py"}


def test_no_folder_of_tests_is_left_out(request: pytest.FixtureRequest) -> None:
    """pytest passes over some names of folders, build among them, unless it is told otherwise."""
    left_out = request.config.getini("norecursedirs")
    folders = {part for file in (ROOT / "tests").rglob("test_*.py") for part in file.relative_to(ROOT).parts[:-1]}
    assert "build" in folders
    assert [name for name in folders for pattern in left_out if fnmatch(name, pattern)] == []
