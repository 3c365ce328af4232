"""Who may name the members of a union: its own files, those that choose, and the mathematics that computes on it."""

import importlib
from functools import cache
from typing import Any, get_args

import pytest
from torch import nn

from rails_ray.data.forms import FORMS
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.config import FamilyConfig
from rails_ray.families.recipes import RECIPES
from rails_ray.families.served_family import ServedFamily
from rails_ray.families.training_family import TrainingFamily
from rails_ray.modules.similarities.states import AnyItems, AnyQuery
from support.sources import ROOT, asked_about, imported, module_of, modules_of, named, sources

# The members of the unions: a sixth family, a new kind of item or a new way to ask is named in its own files, in those
# that choose, and in the mathematics that computes on it.

FAMILY_ROOMS = {"rails_ray/families/": "one folder of a member each, and the union of their configs"}
STATE_ROOMS = {
    "rails_ray/families/": "says which states a family has, and whose models return them",
    "rails_ray/modules/": "defines, makes, compares and scores them, and reads them back from codes",
    "rails_ray/search/": "holds their tensors and searches them",
    "rails_ray/kernels/": "scan their tensors",
    "rails_ray/reranking/surrogate.py": "fits vectors to their scores",
}
STEP_ROOMS = {
    "rails_ray/training/contrast.py": "scores a dual encoder's queries against its items, on other workers too",
    "rails_ray/training/objectives.py": "reads the components that a loss compares",
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
    """The classes in `families/*/model.py` that encode queries and items."""
    modules = [importlib.import_module(name) for name in modules_of("families") if name.endswith(".model")]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return {one for one in classes if issubclass(one, nn.Module) and hasattr(one, "encode_items")}


@cache
def families() -> set[type]:
    """The classes of each family that serve and that train."""
    for name in modules_of("families"):
        importlib.import_module(name)
    return in_package(subclasses(ServedFamily)) - {TrainingFamily}


@cache
def states() -> set[type]:
    for name in modules_of("modules/similarities"):
        importlib.import_module(name)
    return in_package(subclasses(AnyQuery) | subclasses(AnyItems))


@cache
def forms() -> set[type]:
    return {type(form) for form in FORMS.values()}


def test_the_members_are_found() -> None:
    assert len(configs()) == len(families()) / 2 == len(models()) >= 3
    assert {family.__name__ for family in families()} >= {"DualEncoderFamily", "DualEncoderTraining", "SolarFamily"}
    assert {folder_of(own.__module__) for own in models()} == {folder_of(own.__module__) for own in families()}
    assert len(states()) >= 6
    assert len(forms()) == len(FORMS)


def mentions(source: str, members: set[type], *, modules: bool = True) -> set[str]:
    """The members that a module names, and the modules of members from which it imports anything."""
    names = named(source) & {member.__name__ for member in members}
    return names | (imported(source) & {member.__module__ for member in members} if modules else set())


def is_in(path: str, rooms: Any) -> bool:
    return any(path == room or (room.endswith("/") and path.startswith(room)) for room in rooms)


FOLDERS = {file.parent.name for file in (ROOT / "rails_ray" / "families").glob("*/config.py")}


def folder_of(module: str) -> str:
    """The folder of a family that a module lies in; nothing if it lies in none."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["rails_ray", "families"] and parts[2:] and parts[2] in FOLDERS else ""


def violations(path: str, source: str) -> set[str]:
    """Names in a module that it should not know.

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
    if not path.startswith("rails_ray/families/"):
        members = (
            configs() | families() | models() | states() | forms() | {ServedFamily, TrainingFamily, AnyQuery, AnyItems}
        )
        asked = asked_about(source) & {*(member.__name__ for member in members), "family.kind", "form"}
        found |= {f"asks for {name}" for name in asked}
    if not path.startswith("rails_ray/families/"):
        found |= {name for name in imported(source) if folder_of(name)}
    if own := folder_of(module_of(path)):  # one family knows no other
        all_of_families = configs() | families() | models()
        found |= mentions(source, {member for member in all_of_families if folder_of(member.__module__) != own})
        found |= {name for name in imported(source) if folder_of(name) not in ("", own)}
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


STATES = "rails_ray.modules.similarities.states"
SOLAR = "rails_ray.families.solar.train"


@pytest.mark.parametrize(
    ("path", "line", "violation"),
    [
        ("on_ray/encoding.py", "from rails_ray.families.solar.config import SolarConfig", "SolarConfig"),
        (
            "on_ray/encoding.py",
            "from rails_ray.families.solar.train import LAST_STEPS",
            "rails_ray.families.solar.train",
        ),
        ("on_ray/encoding.py", "from rails_ray.families import solar", "rails_ray.families.solar"),
        ("on_ray/training.py", "import rails_ray.families.dual_encoder.model", "rails_ray.families.dual_encoder.model"),
        ("on_ray/serving/router.py", "from rails_ray.families.solar.model import Solar", "Solar"),
        ("on_ray/serving/shard.py", f"from {STATES} import Codes", "Codes"),
        ("on_ray/serving/shard.py", "import rails_ray.modules.similarities as s; s.states.Codes", "Codes"),
        ("serving/encoder.py", "def f(query: 'Tables'): ...", "Tables"),
        ("storage/parquet.py", "from rails_ray.modules.similarities.bm25 import TermWeights", "TermWeights"),
        ("training/evaluation/report.py", f"from {STATES} import ItemState", "ItemState"),
        (
            "training/collectives/gather.py",
            f"from {STATES} import QueryState",
            "QueryState",
        ),
        ("training/loop.py", "from rails_ray.families.dual_encoder.model import DualEncoder", "DualEncoder"),
        ("cli/query.py", "from rails_ray.data.forms.text import TextForm", "TextForm"),
        ("cli/main.py", "is_solar = config.family.kind == 'solar'", "solar"),
        ("cli/main.py", "is_solar = config.family.kind == one", "asks for family.kind"),
        ("cli/rendering.py", "if model.form == 'text': ...", "asks for form"),
        ("families/bm25/config.py", "from rails_ray.families.solar.config import SolarConfig", "SolarConfig"),
        (
            "families/bm25/train.py",
            "from rails_ray.families.solar.train import LAST_STEPS",
            "rails_ray.families.solar.train",
        ),
        ("families/bm25/model.py", "from rails_ray.families.dual_encoder.model import DualEncoder", "DualEncoder"),
        (
            "modules/similarities/explain.py",
            "isinstance(items, Codes | ItemState)",
            "asks for Codes",
        ),
        ("search/rounds.py", "def f(q):\n    match q:\n        case Tables(): ...", "asks for Tables"),
        ("search/rounds.py", "is_codes = type(items) is Codes", "asks for Codes"),
    ],
)
def test_one_line_too_many_is_found(path: str, line: str, violation: str) -> None:
    path = f"rails_ray/{path}"
    assert violation in violations(path, f"{sources()[path]}\n{line}\n")


def test_a_family_is_two_lines_of_files_that_others_share() -> None:
    """BM25 came last. Beside its own files it is named by the union of the config and by the list of recipes."""
    recipes = {recipe.__module__ for recipe in RECIPES if isinstance(recipe().family, Bm25Config)}
    own = {path for path in sources() if "/bm25" in path or module_of(path) in recipes}
    assert len(own) == 8, "a folder of five files, a similarity, a method, recipes"
    modules = {module_of(path) for path in own}
    members = {one for one in configs() | families() | models() | states() if one.__module__ in modules}
    assert len(members) == 6, "config, serving, training, model, and the states of queries and items"
    names = {member.__name__ for member in members} | {Bm25Config.kind}
    shared = {
        path
        for path, source in sources().items()
        if path not in own and (imported(source) & modules or named(source) & names)
    }
    assert shared == {f"rails_ray/families/{name}.py" for name in ("config", "recipes/__init__")}
